"""Reads one incarnation's journal while its worker writes it, and saves how far its events have been committed.

The position is saved, with the calls that are open there, only after everything before it is committed and settled.
The segments before it are deleted only then. Reading again after a crash gives the same records. Posts and settles
nothing.
"""

import contextlib
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.accounting.journal_records import HEAD_BYTES, MAGIC, MAX_PAYLOAD_BYTES, count_closes, frame_at, resume_at
from proxy.accounting.recovery import Halves, Ledger
from proxy.edges.journal.segment_files import LOCK_NAME, SEGMENT_SUFFIX
from proxy.edges.journal.segments import open_segment, restore_segments
from runtime.file_locks import try_lock

log = logging.getLogger(__name__)

POSITION_NAME = "place.json"
SMALL_READ_BYTES = 64 * 1024
LARGE_READ_BYTES = 4 * (HEAD_BYTES + MAX_PAYLOAD_BYTES)


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """A position in a journal. `last_number` is the number of the last settlement before it."""

    segment: int
    encoded: bytes
    last_number: int


class JournalReader:
    """The records of one incarnation, in order, from the position that was last saved."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.incarnation = directory.name
        self.dead = False
        self.finished = False
        """True once the worker is dead and its journal is read to the end."""
        self.all_read = False
        """True if the last `read` reached the end of what had been written."""
        self.damage: set[tuple[int, int]] = set()
        """Segment and offset of each place that held neither a record nor zeros."""
        self._lock_fd = -1
        self._open_fd: tuple[int, int] = (-1, -1)
        saved = _load_position(directory)
        self.ledger = Ledger.from_wire(saved["ledger"]) if saved else Ledger()
        self._segment: int = saved["segment"] if saved else 0
        self._offset: int = saved["offset"] if saved else 0
        self._written_segment = self._segment
        self.unread_closes = 0
        """The number of ended calls that have not been read yet."""
        self._counted_to = (self._segment, self._offset)

    def check_dead(self) -> bool:
        """Return whether the worker has died. If so, take its lock: no other supervisor may recover the journal too."""
        if self.dead:
            return True
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
            if try_lock(fd):
                self._lock_fd = fd
                restore_segments(self.directory)
                self.dead = True
            else:
                os.close(fd)
        return self.dead

    def from_saved_position(self) -> "JournalReader":
        """A second reader that starts at the position that was last saved."""
        second = JournalReader(self.directory)
        second.dead = self.dead
        return second

    def read(self, limit: int) -> list[Halves]:
        """Read the next calls that ended, at most `limit`. Blocks on the disk: call it in a thread."""
        ended: list[Halves] = []
        unmatched = self.ledger.unmatched
        while len(ended) < limit and not self.finished and self._read_chunk(ended, limit):
            pass
        if self.ledger.unmatched > unmatched:
            count = self.ledger.unmatched - unmatched
            log.error(
                "Journal %s: %d calls cannot be billed: the disk has lost their `open` records. Check the disk.",
                self.incarnation,
                count,
            )
        self.all_read = len(ended) < limit
        self.unread_closes = 0 if self.all_read else max(0, self.unread_closes - len(ended))
        return ended

    def count_unread_closes(self) -> None:
        """Update `unread_closes`. Reads only what was written since the last time."""
        if self._counted_to < (self._segment, self._offset):
            self._counted_to = (self._segment, self._offset)
            self.unread_closes = 0
        segment, offset = self._counted_to
        segment = segment or self._after(0) or 0
        while data := self._records_at(segment, offset):
            closes, end, ended = count_closes(data)
            self.unread_closes += closes
            offset += end
            if ended and (following := self._after(segment)) is not None:
                segment = following
                offset = 0
            elif not end:
                break
        self._counted_to = (segment, offset)

    @property
    def place(self) -> tuple[int, int]:
        """The segment and the offset up to which it is read."""
        return self._segment, self._offset

    @property
    def may_save_position(self) -> bool:
        """True if segments could be deleted once the position is saved."""
        return self._segment > self._written_segment

    def position(self) -> ReadPosition:
        """The current position, to be saved once everything before it is committed and settled."""
        state = {"segment": self._segment, "offset": self._offset, "ledger": self.ledger.to_wire()}
        return ReadPosition(self._segment, orjson.dumps(state), self.ledger.last_number)

    def save_position(self, position: ReadPosition) -> None:
        """Save the position durably, then delete the segments before it."""
        replace_durably(self.directory / POSITION_NAME, position.encoded)
        self._written_segment = position.segment
        for number in self._segments():
            if number < position.segment:
                self._path(number).unlink()

    def remove(self) -> None:
        """Delete a journal that is committed and settled entirely. The rename makes that atomic."""
        self.release()
        doomed = self.directory.with_name(f".done-{self.incarnation}")
        self.directory.rename(doomed)
        shutil.rmtree(doomed)

    def release(self) -> None:
        """Close the file descriptors, and with them give up the lock."""
        for fd in (self._lock_fd, self._open_fd[1]):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = -1
        self._open_fd = (-1, -1)

    def _read_chunk(self, ended: list[Halves], limit: int) -> bool:
        """Feed what one read returns to the ledger. Return False when there is nothing more for now."""
        size, over = self.ledger.feed(self._records_at(self._segment, self._offset), ended, limit)
        self._offset += size
        if over:
            return self._next_segment()
        return size > 0 or self._skip_gap()

    def _skip_gap(self) -> bool:
        """Handle an offset where no record starts: unwritten space, a torn record at the end, or damage to skip."""
        if not self.dead and not self._next_segment_in_use(self._segment):
            return False
        rest = self._pread(self._segment, self._offset, 1 << 30)
        if (step := resume_at(rest, 0)) is not None:
            log.error(
                "Journal %s: skipped %d damaged bytes in segment %d; calls recorded there may not be billed. Check the"
                " disk.",
                self.incarnation,
                step,
                self._segment,
            )
            self.damage.add((self._segment, self._offset))
            self._offset += step
            return True
        if rest.strip(b"\0"):
            log.warning(
                "Journal %s: segment %d ends in a torn record, as a crash leaves it; all records before it are used.",
                self.incarnation,
                self._segment,
            )
            self.damage.add((self._segment, self._offset))
        return self._next_segment()

    def _next_segment_in_use(self, segment: int) -> bool:
        """Return whether the worker already writes into the next segment. Called in every round, so it reads little."""
        following = self._after(segment)
        if following is None:
            return False
        fd = open_segment(self._path(following))
        try:
            if os.pread(fd, len(MAGIC), 0) != MAGIC:
                return False
        finally:
            os.close(fd)
        return frame_at(self._records_at(following, 0), 0) is not None

    def _next_segment(self) -> bool:
        following = self._after(self._segment)
        if following is None:
            self.finished = self.dead
            return False
        self._segment = following
        self._offset = 0
        return True

    def _segments(self) -> list[int]:
        names = os.listdir(self.directory)
        return sorted(int(name.removesuffix(SEGMENT_SUFFIX)) for name in names if name.endswith(SEGMENT_SUFFIX))

    def _after(self, segment: int) -> int | None:
        return next((number for number in self._segments() if number > segment), None)

    def _path(self, segment: int) -> Path:
        return self.directory / f"{segment:08d}{SEGMENT_SUFFIX}"

    def _records_at(self, segment: int, offset: int) -> bytes:
        """Read some bytes from there, at least one whole record, however large."""
        data = self._pread(segment, offset, SMALL_READ_BYTES)
        if len(data) == SMALL_READ_BYTES and frame_at(data, 0) is None and data.startswith(MAGIC):
            return self._pread(segment, offset, LARGE_READ_BYTES)
        return data

    def _pread(self, segment: int, offset: int, size: int) -> bytes:
        if segment == 0:
            return b""
        if self._open_fd[0] != segment:
            if self._open_fd[1] >= 0:
                os.close(self._open_fd[1])
            self._open_fd = (-1, -1)
            self._open_fd = (segment, open_segment(self._path(segment)))
        return os.pread(self._open_fd[1], size, offset)


def _load_position(directory: Path) -> dict[str, Any] | None:
    try:
        saved: dict[str, Any] = orjson.loads((directory / POSITION_NAME).read_bytes())
    except FileNotFoundError:
        return None
    return saved


def replace_durably(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
