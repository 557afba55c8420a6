"""Files that only their owner may read: the data directory's and the journals'.

Directories that an earlier version created under another umask are closed to group and others at start.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077
"""Every process sets it before it creates a file, so only the owner can read what it creates."""
_OTHERS = 0o077


class WrongOwnerError(Exception):
    """A directory for keys and billing events belongs to another user, who could read and change everything in it."""

    def __init__(self, path: Path, owner: int) -> None:
        super().__init__(
            f"{path} belongs to user {owner}, but this process runs as user {os.geteuid()}. Run it as user {owner},"
            f" change the owner (chown), or name a directory inside it that does not exist yet."
        )


def tighten_directory(directory: Path) -> list[str]:
    """Close a directory and everything in it to group and others; returns the paths that were open.

    Raises `WrongOwnerError` if another user owns the directory.
    """
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise WrongOwnerError(directory, status.st_uid)
    opened = [str(directory)] if _close(str(directory), status) else []
    return opened + [path for path, state in _within(str(directory)) if _close(path, state)]


def tighten_files(*paths: Path) -> list[str]:
    """The same for single files in a directory of another user. Missing files are skipped."""
    return [str(path) for path in paths if path.is_file() and _close(str(path), path.stat())]


def replace_file(path: Path, text: str) -> None:
    """Write a file that only its owner may read. A reader, and a crash, see the old content or the new one."""
    fd, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
    sync_directory(path.parent)


def describe_closed(opened: list[str]) -> str:
    """A log message about the paths that were closed."""
    more = f" and {len(opened) - 1} more" if len(opened) > 1 else ""
    return f"Others could read {opened[0]}{more}; closed to all but the owner (modes 0700 and 0600)."


def _close(path: str, status: os.stat_result) -> bool:
    """Close one path; returns whether it was open. Leaves links, sockets and other users' files alone."""
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if not is_plain or status.st_uid != os.geteuid() or not status.st_mode & _OTHERS:
        return False
    os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    return True


def sync_directory(directory: Path) -> None:
    """Make a rename last over the end of the machine."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _within(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a directory. Skips files that disappear meanwhile, such as shipped journals."""
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            try:
                yield path, os.lstat(path)
            except FileNotFoundError:
                continue
