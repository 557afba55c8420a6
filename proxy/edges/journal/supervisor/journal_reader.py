"""Reads one incarnation's journal behind its writer, and remembers how far its events have been committed.

The place is written down only after the ack of everything before it, together with the calls still open there; only
then do the segments before it go. What is read again after a crash is the same again. It posts and settles nothing.
"""

import contextlib
import fcntl
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.accounting.journal_records import HEAD_BYTES, MAGIC, MAX_PAYLOAD_BYTES, count_closes, frame_at, resume_at
from proxy.accounting.recovery import Halves, Ledger
from proxy.edges.journal.writer import LOCK_NAME, SEGMENT_SUFFIX

log = logging.getLogger(__name__)

POSITION_NAME = "place.json"
SMALL_READ_BYTES = 64 * 1024
LARGE_READ_BYTES = 4 * (HEAD_BYTES + MAX_PAYLOAD_BYTES)


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """A place in a journal. `last_number`: of the settlements before it, the last one."""

    segment: int
    encoded: bytes
    last_number: int


class JournalReader:
    """The records of one incarnation, in order, from the place that was last written down."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.incarnation = directory.name
        self.dead = False
        self.finished = False
        """Dead, and read to the end."""
        self.all_read = False
        """Whether the last look went to the end of what had been written."""
        self.damage: set[tuple[int, int]] = set()
        """Where something stood that is no record: segment and offset."""
        self._lock_fd = -1
        self._open_fd: tuple[int, int] = (-1, -1)
        place = _load_position(directory)
        self.ledger = Ledger.from_wire(place["ledger"]) if place else Ledger()
        self._segment: int = place["segment"] if place else 0
        self._offset: int = place["offset"] if place else 0
        self._written_segment = self._segment
        self.unread_closes = 0
        """How many ended calls wait behind the place."""
        self._counted = (self._segment, self._offset)

    def check_dead(self) -> bool:
        """Whether the writer is gone; from then on its lock is ours, so that nobody else recovers it too."""
        if self.dead:
            return True
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
            else:
                self._lock_fd, self.dead = fd, True
        return self.dead

    def again(self) -> "JournalReader":
        """A second reader, from the place that was last written down."""
        second = JournalReader(self.directory)
        second.dead = self.dead
        return second

    def read(self, limit: int) -> list[Halves]:
        """The calls that ended next, at most `limit` of them; the place moves on. Blocks on the disk: for a thread."""
        ended: list[Halves] = []
        unmatched = self.ledger.unmatched
        while len(ended) < limit and not self.finished and self._read_chunk(ended, limit):
            pass
        if self.ledger.unmatched > unmatched:
            count = self.ledger.unmatched - unmatched
            log.error("journal %s: %d calls cannot be billed: the disk lost their beginning", self.incarnation, count)
        self.all_read = len(ended) < limit
        self.unread_closes = 0 if self.all_read else max(0, self.unread_closes - len(ended))
        return ended

    def count_unread_closes(self) -> None:
        """Bring `unread_closes` up to date; walks only what has come since the last time."""
        if self._counted < (self._segment, self._offset):
            self._counted, self.unread_closes = (self._segment, self._offset), 0
        segment, offset = self._counted
        segment = segment or self._after(0) or 0
        while data := self._records_at(segment, offset):
            closes, end, ended = count_closes(data)
            self.unread_closes += closes
            offset += end
            if ended and (following := self._after(segment)) is not None:
                segment, offset = following, 0
            elif not end:
                break
        self._counted = (segment, offset)

    @property
    def may_save_position(self) -> bool:
        """Whether segments could go if the place were written down now."""
        return self._segment > self._written_segment

    def position(self) -> ReadPosition:
        """Where this reader stands, to be written down once all before it has been committed and settled."""
        place = {"segment": self._segment, "offset": self._offset, "ledger": self.ledger.to_wire()}
        return ReadPosition(self._segment, orjson.dumps(place), self.ledger.last_number)

    def save_position(self, position: ReadPosition) -> None:
        """Note the place durably, then let the segments before it go."""
        replace_durably(self.directory / POSITION_NAME, position.encoded)
        self._written_segment = position.segment
        for number in self._segments():
            if number < position.segment:
                self._path(number).unlink()

    def remove(self) -> None:
        """Everything there ever was has been committed and settled. Atomic: seen whole, or not at all."""
        self.release()
        done = self.directory.with_name(f".done-{self.incarnation}")
        self.directory.rename(done)
        shutil.rmtree(done)

    def release(self) -> None:
        """Give back what is held of the operating system."""
        for fd in (self._lock_fd, self._open_fd[1]):
            if fd >= 0:
                os.close(fd)
        self._lock_fd, self._open_fd = -1, (-1, -1)

    def _read_chunk(self, ended: list[Halves], limit: int) -> bool:
        """Take what one read brings; False when there is nothing more for now."""
        taken, over = self.ledger.feed(self._records_at(self._segment, self._offset), ended, limit)
        self._offset += taken
        if over:
            return self._on_to_the_next_segment()
        return taken > 0 or self._beyond_the_gap()

    def _beyond_the_gap(self) -> bool:
        """Handle an offset where no record starts: unwritten space, a torn record at the end, or damage to skip."""
        if not self.dead and not self._goes_on_beyond(self._segment):
            return False
        rest = self._pread(self._segment, self._offset, 1 << 30)
        if (step := resume_at(rest, 0)) is not None:
            log.error("journal %s: %d damaged bytes in segment %d", self.incarnation, step, self._segment)
            self.damage.add((self._segment, self._offset))
            self._offset += step
            return True
        if rest.strip(b"\0"):
            log.warning("journal %s: segment %d ends in a torn record", self.incarnation, self._segment)
            self.damage.add((self._segment, self._offset))
        return self._on_to_the_next_segment()

    def _goes_on_beyond(self, segment: int) -> bool:
        """Whether a living worker writes into the next segment already. Asked at each look, so it looks no further than
        it must."""
        following = self._after(segment)
        if following is None:
            return False
        with self._path(following).open("rb", buffering=0) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
        return frame_at(self._records_at(following, 0), 0) is not None

    def _on_to_the_next_segment(self) -> bool:
        following = self._after(self._segment)
        if following is None:
            self.finished = self.dead
            return False
        self._segment, self._offset = following, 0
        return True

    def _segments(self) -> list[int]:
        names = os.listdir(self.directory)
        return sorted(int(name.removesuffix(SEGMENT_SUFFIX)) for name in names if name.endswith(SEGMENT_SUFFIX))

    def _after(self, segment: int) -> int | None:
        return next((number for number in self._segments() if number > segment), None)

    def _path(self, segment: int) -> Path:
        return self.directory / f"{segment:08d}{SEGMENT_SUFFIX}"

    def _records_at(self, segment: int, offset: int) -> bytes:
        """Some bytes from there on; the one record that stands there at least, however large."""
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
            self._open_fd = (segment, os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC))
        return os.pread(self._open_fd[1], size, offset)


def _load_position(directory: Path) -> dict[str, Any] | None:
    try:
        place: dict[str, Any] = orjson.loads((directory / POSITION_NAME).read_bytes())
    except FileNotFoundError:
        return None
    return place


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
