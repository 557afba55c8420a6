"""Writes a worker's journal: the `open` record before a call is dispatched, the `close` record before its last byte.

The records of one event-loop tick are one write, for which their calls wait (docs/hot-path.md): `kill -9` loses
none of anything that left. A thread brings them to disk within 100 ms (decision 0071). Segments are allocated before
use, and every open call has room reserved for its `close`: a full disk or backlog never loses an open one's end.

See docs/reference/events-and-webhooks.md#from-call-to-database.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.accounting.journal_records import HEAD_BYTES, MAX_PAYLOAD_BYTES, Kind, frame
from proxy.accounting.journaled_call import JournaledCall
from proxy.edges.journal.disk_watch import DiskWatch
from proxy.edges.journal.segment_files import SEGMENT_SUFFIX, backlog_bytes, claim, write_at
from proxy.edges.journal.segments import Segment, memory_directory, new_segment, remove_memory
from proxy.edges.journal.troubles import Troubles
from proxy.errors import JournalUnavailableError

END_ROOM_BYTES = 832
"""Room reserved for one open call: its first progress record and its `close`. A segment has room for 10 000 calls."""
_MAX_RECORD_BYTES = HEAD_BYTES + MAX_PAYLOAD_BYTES
_END = frame(Kind.END, b"")


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """`max_backlog_bytes` bounds all journals in the directory together. Above it new calls are refused."""

    segment_bytes: int = 8 * 1024 * 1024
    max_backlog_bytes: int = 4 * 1024 * 1024 * 1024
    sync_interval_s: float = 0.05
    backlog_interval_s: float = 1.0
    memory_root: Path | None = None
    """The directory in memory where records wait for the disk. None: the event loop writes to the disk."""
    log_interval_s: float = 1.0
    """The least time between two logs of the same trouble, and between two tries of a refused write."""


class RecordTooLargeError(ValueError):
    """The call's request metadata is too large to be journaled."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class IncarnationUsedError(ValueError):
    """A journal of that incarnation exists already."""

    def __init__(self, incarnation: str) -> None:
        super().__init__(f"{incarnation}: {self.__doc__}")


class JournalWriter:
    """The append-only segments of one worker incarnation, in their own directory, which stays locked until `stop`."""

    def __init__(self, directory: Path, incarnation: str, options: JournalOptions | None = None) -> None:
        self._root = directory
        self._directory = directory / incarnation
        self._options = options or JournalOptions()
        if self._directory.exists():
            raise IncarnationUsedError(incarnation)
        memory_root = self._options.memory_root
        self._memory = None if memory_root is None else memory_directory(incarnation, memory_root)
        self._lock_fd = -1
        self._segments_made = 0
        self._spare_lock = threading.Lock()
        self._rotation = threading.Lock()  # held for as long as it takes to exchange segments
        self._current = Segment(-1, -1, self._options.segment_bytes)  # no segment yet: treated as full
        self._number = 0  # of the current segment
        self._spare: Segment | None = None
        self._retired: list[Segment] = []
        self._usable = self._options.segment_bytes - len(_END)
        self._reserved = 0  # bytes reserved for the ends of open calls
        self._loop: asyncio.AbstractEventLoop | None = None  # kept: in Python 3.11 asking for it is a system call
        self._group: list[JournaledCall] = []  # the calls whose records wait for the end of this tick
        self._records: list[bytes] = []  # theirs, in the same order; they fit into the current segment
        self._room = 0  # room in the current segment, once the group is written
        self._nobody = JournaledCall()  # no call waits for progress records
        self._nobody.ends = True  # like a close, each is tried alone if the group cannot be written
        self._has_lost_end = False
        self._dirty = False
        self._troubles = Troubles(self._options.log_interval_s)
        self._disk = DiskWatch(self._troubles)
        self._retry_write_at = 0.0
        self._is_stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._sync_forever, name="journal-sync", daemon=True)
        try:
            self._current = self._new_segment()
            self._number = 1
            self._room = self._usable
        except OSError as error:  # a full disk must not stop the worker from starting: it answers 503 with the reason
            self._troubles.cannot_allocate(error)

    @property
    def pending(self) -> int:
        """The number of open calls."""
        return self._reserved // END_ROOM_BYTES

    @property
    def troubles(self) -> tuple[str, ...]:
        """The reasons to refuse new calls now or soon. Empty when the journal works. Ask often: it notes a stall."""
        self._disk.note_stall()
        return self._troubles.faults

    @property
    def place(self) -> tuple[int, int] | None:
        """The segment, from 1, and the offset where all that is written ends; segment 0 if nothing is.

        None if the disk has refused the end of a call, whose event comes only when this worker has died.
        """
        if self._has_lost_end:
            return None
        place = (self._number, self._current.used_bytes)
        return place if place > (1, 0) else (0, 0)  # readers are in no segment until one has a record

    def start(self) -> None:
        """Start the thread that syncs records to disk."""
        self._thread.start()

    def open(self, record: bytes) -> JournaledCall:
        """Record a call before dispatch. Nothing of it may be sent before `is_written`.

        The call must be closed, unless this raises `JournalUnavailableError`, or OSError for want of a descriptor.
        """
        if (size := len(record)) > _MAX_RECORD_BYTES:
            raise RecordTooLargeError
        if self._troubles.texts:
            self._refuse_if_troubled()
        if size + self._reserved + END_ROOM_BYTES > self._room:
            self._make_room(size)
        call = JournaledCall()
        if self._reserved or self._group:
            self._join(call, record, size)
        else:  # no other call is open: there is nobody to share a write with
            self._append_new(record)
            call.is_written = True
        self._reserved += END_ROOM_BYTES
        return call

    def answered(self, record: bytes) -> None:
        """Record that the answer's first bytes are about to leave. An orphan is then billed its last progress."""
        self._append(record)

    def progress(self, records: Sequence[bytes]) -> None:
        """Record how much has been delivered. Skipped when only the room reserved for ends of calls is left."""
        if self._troubles.texts:
            return
        size = sum(map(len, records))
        if size + self._reserved > self._room:
            try:
                self._make_room(size)
            except (JournalUnavailableError, OSError):
                return
        for record in records:
            self._join(self._nobody, record, len(record))

    def close(self, call: JournaledCall, record: bytes) -> JournaledCall | None:
        """Record the end of a call: `close_record`. Its last bytes may leave at once if this returns None.

        Else they may leave when the call `is_written` again. Raises OSError if the disk refuses a record at once.
        """
        if not call.is_written:
            if call.refused is None:  # it ended before its open was written
                self.write_now()
            if call.refused is not None:
                return None
        try:
            if self._group or self._reserved > END_ROOM_BYTES:
                if (size := len(record)) > self._room:
                    self._rotate()
                call.is_written = False
                call.ends = True
                self._join(call, record, size)
            else:
                self._append(record)
        except (OSError, JournalUnavailableError):
            self._has_lost_end = True
            raise
        self._reserved -= END_ROOM_BYTES
        return None if call.is_written else call

    def stop(self) -> None:
        """Sync everything and release the lock. The supervisor then treats the journal as that of a dead worker."""
        self.write_now()
        self._is_stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._sync()
        for segment in (self._current, self._spare):
            if segment is not None and segment.fd >= 0:
                segment.close()
        if self._memory is not None:
            remove_memory(self._memory)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    # Called on the event loop: one write per group or record, after the room has been checked.

    def _join(self, call: JournaledCall, record: bytes, size: int) -> None:
        """Add a record to the tick's group. The first one has the group written at the end of the tick."""
        if not self._group:
            loop = self._loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(self.write_now)
        self._group.append(call)
        self._records.append(record)
        self._room -= size

    def write_now(self) -> None:
        """Write what waits and let the calls go on, at the tick's end or earlier: settlements must not leave before the
        ends of their calls are written."""
        if not self._group:
            return
        group = self._group.copy()
        records = self._records.copy()
        self._group.clear()
        self._records.clear()
        bytes_written, failure = self._write(b"".join(records))
        if failure is not None:
            self._write_failed(failure)
            self._keep(bytes_written, group, records)
            return
        self._advance(bytes_written)
        for call in group:  # `tell`, without a call for each record
            call.is_written = True
            if (go_on := call.go_on) is not None:
                call.go_on = None
                go_on(None)
        if "write" in self._troubles.texts:
            self._troubles.clear("write")

    def _keep(self, bytes_written: int, group: list[JournaledCall], records: list[bytes]) -> None:
        """Keep the records within `bytes_written`, which the disk took. Refuse the other opens; try the rest alone."""
        for call, record in zip(group, records, strict=True):
            if (size := len(record)) <= bytes_written:
                bytes_written -= size
                self._advance(size)
                call.tell()
                continue
            bytes_written = 0
            self._room += size
            if not call.ends:
                self._erase(size)
                self._reserved -= END_ROOM_BYTES
                call.tell(JournalUnavailableError(*self.troubles))
                continue
            try:
                self._append(record)
            except OSError as error:
                self._erase(size)
                self._has_lost_end |= call is not self._nobody
                call.tell(error)
            else:
                call.tell()

    def _append(self, record: bytes) -> None:
        """Write one record now. Raises OSError."""
        if len(record) > self._room:
            self._rotate()
        bytes_written, failure = self._write(record)
        if failure is not None:
            raise failure
        self._room -= bytes_written
        self._advance(bytes_written)

    def _append_new(self, record: bytes) -> None:
        """Append; refuse the call if that fails: copy-on-write file systems can fail within allocated space."""
        try:
            self._append(record)
        except OSError as error:
            self._erase(len(record))
            self._write_failed(error)
            raise JournalUnavailableError(*self.troubles) from None
        if "write" in self._troubles.texts:
            self._troubles.clear("write")

    def _write(self, data: bytes) -> tuple[int, OSError | None]:
        """Write after the last record. Return the number of bytes that the disk took, and why it took no more."""
        segment = self._current
        bytes_written = 0
        try:
            while bytes_written < len(data):  # a signal or a disk that fills up can make the kernel write only a part
                bytes_written += os.pwrite(segment.write_fd, data[bytes_written:], segment.used_bytes + bytes_written)
        except OSError as error:
            return bytes_written, error
        return bytes_written, None

    def _advance(self, size: int) -> None:
        """Count `size` more bytes of whole records."""
        self._current.used_bytes += size
        if not self._dirty:
            self._dirty = True
            self._wake.set()

    def _erase(self, size: int) -> None:
        """Erase a partly written record, which would look like damage."""
        with contextlib.suppress(OSError):
            write_at(self._current.write_fd, bytes(size), self._current.used_bytes)

    def _write_failed(self, error: OSError) -> None:
        self._retry_write_at = time.monotonic() + self._options.log_interval_s
        self._troubles.set("write", f"the journal cannot be written: {error.strerror}")

    def _rotate(self) -> None:
        """Write the group and switch to the spare segment. The thread syncs the full one, and makes the next spare."""
        self.write_now()
        if self._spare is None and not self._disk.is_slow:
            self._make_spare()
        if (following := self._spare) is None:
            raise self._troubles.refusal()
        if self._current.fd >= 0:
            write_at(self._current.write_fd, _END, self._current.used_bytes)
            self._current.used_bytes += len(_END)
        with self._rotation:
            if self._current.fd >= 0:
                self._retired.append(self._current)
            self._current = following
        self._number += 1
        self._room = self._usable
        self._spare = None
        self._wake.set()

    def _make_room(self, size: int) -> None:
        """Switch to the next segment if records of this size do not fit into this one, with the ends of all open calls
        and of one more. Raises `JournalUnavailableError` if that fails."""
        if self._spare is None and "allocate" not in self._troubles.texts and not self._disk.is_slow:
            self._make_spare()
        spare = self._usable if self._spare is not None else 0
        needed = size + self._reserved + 2 * END_ROOM_BYTES - (self._room if size <= self._room else 0)
        if needed > spare:
            raise self._troubles.refusal("more calls are open than the journal has room for")
        if size > self._room:
            try:
                self._rotate()
            except OSError as error:
                self._write_failed(error)
                raise self._troubles.refusal() from None

    def _refuse_if_troubled(self) -> None:
        """Refuse the call for any trouble but a failed allocation, which `_make_room` refuses once room is short.

        After a failed write one call per `log_interval_s` is let through: only a write shows that the disk is back.
        """
        for kind, trouble in list(self._troubles.texts.items()):
            if kind == "allocate" or (kind == "write" and time.monotonic() >= self._retry_write_at):
                continue
            raise JournalUnavailableError(trouble)

    # Called on the thread: allocation and syncing.

    def _sync_forever(self) -> None:
        measured_at = 0.0
        while not self._is_stopping:
            with self._disk.using():
                if self._spare is None:
                    self._make_spare()
                if (now := time.monotonic()) - measured_at >= self._options.backlog_interval_s:
                    self._measure_backlog()
                    measured_at = now
            self._wake.wait(self._options.backlog_interval_s)
            self._wake.clear()
            if self._dirty and not self._is_stopping:
                time.sleep(self._options.sync_interval_s)
                with self._disk.using():
                    self._sync()

    def _sync(self) -> None:
        self._dirty = False
        try:
            with self._rotation:
                retired = list(self._retired)
                current = self._current
            for segment in retired:  # in order: a reader takes a begun segment for the end of the one before
                segment.sync()
                segment.close()
                self._retired.remove(segment)
            if current.fd >= 0:
                current.sync()
        except OSError as error:
            self._dirty = True
            self._troubles.set("sync", f"the journal cannot be synced to disk: {error.strerror}")
        else:
            self._troubles.clear("sync")

    def _make_spare(self) -> None:
        """Allocate the spare segment. The loop calls this only when the thread has not done it in time."""
        with self._spare_lock:
            if self._spare is not None:
                return
            try:
                self._spare = self._new_segment()
            except OSError as error:
                self._troubles.cannot_allocate(error)
            else:
                self._troubles.clear("allocate")

    def _new_segment(self) -> Segment:
        if self._lock_fd < 0:
            self._lock_fd = claim(self._directory)
        path = self._directory / f"{self._segments_made + 1:08d}{SEGMENT_SUFFIX}"
        segment = new_segment(path, self._options.segment_bytes, self._memory)
        self._segments_made += 1
        return segment

    def _measure_backlog(self) -> None:
        if backlog_bytes(self._root) > self._options.max_backlog_bytes:
            self._troubles.set("backlog", "the journal's backlog is full: control has not taken events for too long")
        else:
            self._troubles.clear("backlog")
