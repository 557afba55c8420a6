"""Events as lines of a file. After a crash it is cut to the length that the state has, and the rest is written again.

The same events are written again as the same bytes, so who reads the file meanwhile loses nothing.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands.records.billing_events import Event
from commands.records.receiver import ReceiverError, Recovery, RefusedEvent


class LinesFile:
    """A file of JSON lines that grows only. `length`: its durable length in bytes.

    `may_go`: whoever dealt with the lines may take the file away, or empty it; then another begins.
    """

    def __init__(self, path: Path, may_go: bool = False) -> None:
        self._path = path
        self._may_go = may_go
        self._fd = -1
        self.length = 0

    def open(self, length: int | None) -> None:
        """Go on after `length` bytes; None: the file must be empty or missing. Raises ReceiverError."""
        try:
            if self._may_go and not (self._path.exists() and self._path.stat().st_size):
                length = None
            flags = os.O_RDWR | os.O_CLOEXEC | (0 if length else os.O_CREAT)
            self._fd = os.open(self._path, flags, 0o600)
            size = os.fstat(self._fd).st_size
        except OSError as error:
            raise ReceiverError(f"{self._path}: {error.strerror}. {self._remedy(length)}") from None
        if length is None and size:
            raise ReceiverError(f"{self._path}: not empty, and not of this forwarder. Name another file")
        if size < (length or 0):
            raise ReceiverError(f"{self._path}: {size} bytes, but {length} were written. {self._remedy(length)}")
        os.ftruncate(self._fd, length or 0)
        self.length = length or 0

    def append(self, values: Sequence[Any]) -> int:
        """The new length, once the lines are on the disk. Raises ReceiverError."""
        text = "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values)
        data = text.encode()
        count = 0
        try:
            while count < len(data):
                count += os.pwrite(self._fd, data[count:], self.length + count)
            os.fsync(self._fd)
        except OSError as error:
            raise ReceiverError(
                f"{self._path}: {error.strerror}. Nothing is lost; run it again once it is mended"
            ) from None
        self.length += len(data)
        return self.length

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _remedy(self, length: int | None) -> str:
        if not length:
            return "Check the path"
        another = "take it away" if self._may_go else "begin another with --state, --output and --since"
        return f"Put the file back, or {another}"


class JsonlFile:
    """A receiver: each event is a line, as the API lists it."""

    remembers_s: float | None = None

    def __init__(self, path: Path, batch_events: int) -> None:
        self.batch_events = batch_events
        self._file = LinesFile(path)

    def recover(self, mark: int | None) -> Recovery | None:
        self._file.open(mark)
        return None

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        return [], self._file.append([event.listed for event in events])

    async def close(self) -> None:
        self._file.close()
