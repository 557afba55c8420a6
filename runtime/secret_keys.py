"""The keys of TOLLGATE_SECRET_KEY, or of the file that TOLLGATE_SECRET_KEY_FILE names and that may change meanwhile.

Whoever holds such keys must not copy them. The parser is given, because this package knows no rules of ours.

See docs/operating.md#rotating-the-secret-key.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from runtime.background import repeat_in_thread
from runtime.environment import Environment, SettingsError
from runtime.log_lines import cause_of

LOOK_AGAIN_S = 0.5
Parse = Callable[[str], tuple[bytes, ...]]
Stamp = tuple[int, int, int]
log = logging.getLogger(__name__)


def secret_keys(read: Environment, name: str, file_name: str, parse: Parse) -> Sequence[bytes]:
    """The keys of the setting `name`, or of the file that the setting `file_name` names. Raises `SettingsError`."""
    if not read.has(file_name):
        return read.parsed(name, parse)
    if read.has(name):
        raise SettingsError(f"{name} and {file_name} are both set: unset one of them")
    try:
        return SecretKeyFile(Path(read.text(file_name)), parse)
    except OSError as error:
        raise SettingsError(f"{file_name}: it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{file_name}: {error}") from None


def has_secret_keys(environ: Mapping[str, str]) -> bool:
    """Return whether this environment names keys, itself or by a file."""
    read = Environment(environ)
    return read.has("TOLLGATE_SECRET_KEY") or read.has("TOLLGATE_SECRET_KEY_FILE")


def services_of(keys: Sequence[bytes]) -> tuple[Callable[[], Any], ...]:
    """Services that a process with these keys runs in the background."""
    return (keys.follow,) if isinstance(keys, SecretKeyFile) else ()


class SecretKeyFile(Sequence[bytes]):
    """The keys of a file, as they were when it was last read.

    Whoever tries one after the other and finds that none fits gets those that the file has had since: a value may be
    sealed under a new key a moment before this process has looked again.
    """

    def __init__(self, path: Path, parse: Parse) -> None:
        self._path = path
        self._parse = parse
        self._stamp = _stamp_of(path)
        self._keys = parse(path.read_text())

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        return self._keys[index]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[bytes]:
        tried = self._keys
        yield from tried
        self.look_again()
        yield from (key for key in self._keys if key not in tried)

    def look_again(self) -> None:
        """Read the file if it has changed. One that cannot be read leaves the keys as they are."""
        try:
            stamp = _stamp_of(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            keys = self._parse(self._path.read_text())
        except (OSError, ValueError) as error:
            log.warning(
                "The secret keys in %s cannot be read (%s); this process keeps those that it has. Mend the file.",
                self._path,
                cause_of(error),
            )
            return
        if keys != self._keys:
            self._keys = keys
            log.info("This process has read the secret keys in %s again; it seals under the first one.", self._path)

    async def follow(self) -> None:
        """Look again for ever, in a thread."""
        await repeat_in_thread(self.look_again, LOOK_AGAIN_S)


def _stamp_of(path: Path) -> Stamp:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size
