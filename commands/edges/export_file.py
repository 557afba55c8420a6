"""The file of an export and, beside it, `FILE.state`: which events it holds and how many of its bytes are theirs.

The text is on the disk before the state names its length. After a crash the file is cut to that length, so no event is
missing and none is there twice. The state also says what was asked for, so that another export is not mixed in.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.errors import ManagementError
from runtime.file_locks import try_lock
from runtime.private_files import replace_file

_ANEW = "To export anew, remove the file and its .state, or name another file"


class ExportFileError(ManagementError):
    """The file cannot be continued; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ExportState:
    """The content of the state: the flags of the export, and the position behind the file's last event."""

    flags: Mapping[str, Any]
    position: Mapping[str, Any]
    length: int
    """The length of the file, in bytes."""


class ExportFile:
    """An open export, locked for this process. `state` is None until `begin` or an earlier run wrote a state."""

    def __init__(self, path: Path, fd: int, content: ExportState | None) -> None:
        self._path = path
        self._fd = fd
        self.state = content

    def begin(self, flags: Mapping[str, Any], position: Mapping[str, Any]) -> None:
        """Write the first state. The file is empty. Raises ExportFileError."""
        self._keep(ExportState(flags, position, 0))

    def append(self, text: str, position: Mapping[str, Any]) -> None:
        """Write the text, then the position behind it. Raises ExportFileError."""
        assert self.state is not None, "begin comes first"
        length = self.state.length
        rest = memoryview(text.encode())
        try:
            while rest:
                count = os.pwrite(self._fd, rest, length)
                length += count
                rest = rest[count:]
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from None
        self._keep(ExportState(self.state.flags, position, length))

    def _keep(self, content: ExportState) -> None:
        state = {"asked": content.flags, "position": content.position, "bytes": content.length}
        try:
            replace_file(_state_of(self._path), json.dumps(state, ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            raise self._failed(error) from None
        self.state = content

    def _failed(self, error: OSError) -> ExportFileError:
        return ExportFileError(f"{self._path} cannot be written: {error.strerror}. The same command goes on from here")


@contextmanager
def opened(path: Path) -> Iterator[ExportFile]:
    """The file, cut to what its state says, or a new one. Raises ExportFileError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ExportFileError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        if not try_lock(fd):
            raise ExportFileError(f"another export writes {path} now")
        content = _read_state(path)
        _cut(fd, path, content)
        yield ExportFile(path, fd, content)
    finally:
        os.close(fd)


def _read_state(path: Path) -> ExportState | None:
    state_path = _state_of(path)
    try:
        state = json.loads(state_path.read_text())
        return ExportState(dict(state["asked"]), dict(state["position"]), int(state["bytes"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportFileError(f"{state_path} cannot be read ({error}). {_ANEW}") from None


def _cut(fd: int, path: Path, content: ExportState | None) -> None:
    """Drop what a crash left behind the length that the state names."""
    size = os.fstat(fd).st_size
    if content is None and size:
        raise ExportFileError(f"{path} exists, and no export began it. Name another file, or remove it")
    if content is not None and size < content.length:
        raise ExportFileError(f"{path} is shorter than {_state_of(path)} says: events are missing. {_ANEW}")
    os.ftruncate(fd, content.length if content else 0)


def _state_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")
