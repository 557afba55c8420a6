"""A directory of statements, locked for one command. Each file is complete, or as it was before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commands.errors import ManagementError
from runtime.file_locks import try_lock
from runtime.private_files import replace_file


class StatementDirectory:
    """Files by name. Only their owner may read them. ManagementError if one cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> str | None:
        """The file's text; None if there is no such file."""
        content = self._bytes(name)
        return None if content is None else content.decode(errors="replace")

    def write(self, name: str, text: str) -> bool:
        """Replace the file, unless it has this text. Whether it had another one."""
        before = self._bytes(name)
        if before == text.encode():
            return False
        try:
            replace_file(self._path / name, text)
        except OSError as error:
            raise self._failed(name, error) from None
        return before is not None

    def remove(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(name, error) from None

    def _bytes(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: OSError) -> ManagementError:
        return ManagementError(f"{self._path / name}: {error.strerror}. Mend that and run the same command again")


@contextmanager
def opened_directory(path: Path) -> Iterator[StatementDirectory]:
    """The directory, made if need be. ManagementError if it cannot be used, or another command writes into it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ManagementError(
            f"{path} is no directory to write into: {error.strerror}. Name another --output"
        ) from None
    try:
        if not try_lock(fd):
            raise ManagementError(f"another command writes statements into {path} now")
        yield StatementDirectory(path)
    finally:
        os.close(fd)
