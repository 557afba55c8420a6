"""The data directory of one `tollgate up`: its lock, its two key files, and the path of each part's files.

Key files are created once, atomically and readable by their owner only; an existing one is never overwritten. A
directory with a database but without its secret key is refused: a new key could not decrypt the stored secrets.
"""

import base64
import hashlib
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.file_locks import is_locked, try_lock
from runtime.private_files import WrongOwnerError, describe_closed, tighten_directory

_SOCKET_PATH = re.compile(r"[A-Za-z0-9/._+-]{1,100}")
"""A unix socket's path has at most 107 bytes (103 on macOS), and this one also stands in a URL."""
LOCK_PATIENCE_S = 3.0
log = logging.getLogger(__name__)


class DataDirectoryError(Exception):
    """The data directory cannot be used; the message says why."""


class DataDirectoryBusyError(DataDirectoryError):
    """Another `tollgate up` serves this data directory."""


class DataDirectory:
    """Paths below one directory. It is created on first use (mode 0700); an existing one is closed to other users."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if "?" in str(self.path):
            raise DataDirectoryError(f"{self.path}: a data directory's path must not contain '?'")
        self.journal = self.path / "journal"
        self.replica = self.path / "replica.db"
        self.database = self.path / "control.db"
        self.redis_log = self.path / "redis.log"
        self.secret_key = self.path / "secret.key"

    @property
    def database_url(self) -> str:
        return f"sqlite+aiosqlite:///{self.database}"

    def make(self) -> None:
        """Create the directory, or close an existing one to other users."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = tighten_directory(self.path)
        except OSError as error:
            raise DataDirectoryError(f"cannot create the data directory {self.path}: {error.strerror}") from error
        except WrongOwnerError as error:
            raise DataDirectoryError(str(error)) from None
        if opened:
            log.warning("%s", describe_closed(opened))

    def lock(self, patience_s: float = LOCK_PATIENCE_S) -> int:
        """Lock the directory for this process and the children that inherit the returned descriptor.

        The lock lasts until the last of them has ended. After a `kill -9` the children end a moment later, so this
        waits for a dead holder, but not for a live one.
        """
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up_at = time.monotonic() + patience_s
        while not try_lock(fd):
            holder = _pid_in(fd)
            if _is_alive(holder) or time.monotonic() > give_up_at:
                os.close(fd)
                raise DataDirectoryBusyError(f"{self.path} is in use by another `tollgate up` (pid {holder or '?'})")
            time.sleep(0.05)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def is_served(self) -> bool:
        """Return whether a `tollgate up` holds the lock. An `up` that starts meanwhile waits for this look."""
        return is_locked(self.path / "lock")

    def internal_token(self) -> str:
        """The token that proxy and control share; created on first use."""
        return self._create_once("internal.token", secrets.token_urlsafe(32))

    def settings_key(self) -> str:
        """The key of the digests of `up`'s settings; created on first use."""
        return self._create_once("settings.key", secrets.token_urlsafe(32))

    def make_secret_key(self) -> Path:
        """The file of the keys that seal this directory's secrets; one is made, but never beside a database."""
        if self.database.exists() and not self.secret_key.exists():
            raise DataDirectoryError(
                f"{self.path} has a database but no secret.key: restore the file,"
                " or set TOLLGATE_SECRET_KEY to the key that sealed its secrets"
            )
        self._create_once(self.secret_key.name, base64.b64encode(secrets.token_bytes(32)).decode())
        return self.secret_key

    @contextmanager
    def changing_secret_keys(self) -> Iterator[None]:
        """Exclude other commands that change the file of the secret keys. Raises DataDirectoryBusyError."""
        fd = os.open(self.path / "secret.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not try_lock(fd):
                raise DataDirectoryBusyError(f"another command changes {self.secret_key}; wait until it has ended")
            yield
        finally:
            os.close(fd)

    def kept(self, name: str) -> str:
        """Read a key file without making one; "" if there is none or it may not be read."""
        try:
            return (self.path / name).read_text().strip()
        except OSError:
            return ""

    def redis_socket(self) -> Path:
        """The embedded Redis' socket: in this directory, reached by a short link if the path is too long."""
        direct = self.path / "redis.sock"
        return direct if _SOCKET_PATH.fullmatch(str(direct)) else self._short_link() / "redis.sock"

    def _short_link(self) -> Path:
        """A link to this directory from a private directory below /tmp. The socket stays in this directory."""
        base = Path(tempfile.gettempdir()) / f"tollgate-{os.getuid()}"
        base.mkdir(mode=0o700, exist_ok=True)
        status = base.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077 or base.is_symlink():
            raise DataDirectoryError(f"{self.path} is too long for a unix socket, and {base} is not private: remove it")
        link = base / hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        if not (link.is_symlink() and os.readlink(link) == str(self.path)):
            link.unlink(missing_ok=True)
            link.symlink_to(self.path)
        return link

    def _create_once(self, name: str, content: str) -> str:
        path = self.path / name
        if not path.exists():
            fd, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=self.path)  # mkstemp: mode 0600
            try:
                with os.fdopen(fd, "w") as file:
                    file.write(content + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                _link_unless_there(temporary, path)
            finally:
                os.unlink(temporary)
        path.chmod(0o600)
        return path.read_text().strip()


def _link_unless_there(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return  # another process created it meanwhile; use that content


def _pid_in(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
