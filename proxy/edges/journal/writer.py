"""Writes a worker's journal: the `open` record before a call is dispatched, the `close` record before its last byte.

Each method writes the whole record before it returns, so `kill -9` loses none. A thread syncs records to disk within
100 ms. Segments are allocated before use and every open call has room reserved for its `close`, so a full disk or a
full backlog makes the journal refuse new calls but never loses the end of an open one.

See docs/reference/events-and-webhooks.md#from-call-to-database.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from policy.billing import Tokens
from proxy.accounting.journal_records import HEAD_BYTES, MAX_PAYLOAD_BYTES, Kind, frame
from proxy.accounting.recovery import CloseCall, OpenCall, close_record, open_record, progress_record
from proxy.exchange import JournalUnavailableError

log = logging.getLogger(__name__)

LOCK_NAME = "lock"
SEGMENT_SUFFIX = ".journal"
END_ROOM_BYTES = 512
"""Room reserved for one open call: its first progress record and its `close`."""
_MAX_RECORD_BYTES = HEAD_BYTES + MAX_PAYLOAD_BYTES
_END = frame(Kind.END, b"")


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """`max_backlog_bytes` bounds all journals in the directory together. Above it new calls are refused."""

    segment_bytes: int = 8 * 1024 * 1024
    max_backlog_bytes: int = 4 * 1024 * 1024 * 1024
    sync_interval_s: float = 0.05
    backlog_interval_s: float = 1.0
    log_interval_s: float = 1.0
    """The same trouble is logged, and a refused write is tried again, at most this often."""


class RecordTooLargeError(ValueError):
    """The call's request metadata is too large to be journaled."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class IncarnationUsedError(ValueError):
    """A journal of that incarnation exists already."""

    def __init__(self, incarnation: str) -> None:
        super().__init__(f"{incarnation}: {self.__doc__}")


@dataclass(slots=True)
class _Segment:
    """One allocated file. The first `used` bytes hold records; the rest are zeros."""

    fd: int
    used: int = 0


class JournalWriter:
    """The append-only segments of one worker incarnation, in their own directory, which stays locked until `stop`."""

    def __init__(self, directory: Path, incarnation: str, options: JournalOptions | None = None) -> None:
        self._root = directory
        self._directory = directory / incarnation
        self._options = options or JournalOptions()
        if self._directory.exists():
            raise IncarnationUsedError(incarnation)
        self._lock_fd = -1
        self._segments_made = 0
        self._spare_lock = threading.Lock()
        self._current = _Segment(-1, self._options.segment_bytes)  # no segment yet: treated as full
        self._spare: _Segment | None = None
        self._retired: list[_Segment] = []
        self._usable = self._options.segment_bytes - len(_END)
        self._reserved = 0  # bytes reserved for the ends of open calls
        self._dirty = False
        self._troubles: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}
        self._retry_write_at = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._sync_forever, name="journal-sync", daemon=True)
        try:
            self._current = self._new_segment()
        except OSError as error:  # a full disk must not stop the worker from starting: it answers 503 with the reason
            self._cannot_allocate(error)

    @property
    def pending(self) -> int:
        """How many calls are open."""
        return self._reserved // END_ROOM_BYTES

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why new calls are refused, or soon will be. Empty when the journal works."""
        return tuple(self._troubles.values())

    def start(self) -> None:
        """Start the thread that syncs records to disk."""
        self._thread.start()

    def open(self, call: OpenCall) -> None:
        """Record a call before dispatch. On `JournalUnavailableError` nothing was written: do not dispatch."""
        record = open_record(call)
        if (size := len(record)) > _MAX_RECORD_BYTES:
            raise RecordTooLargeError
        if self._troubles:
            self._refuse_if_troubled()
        reserved = self._reserved + END_ROOM_BYTES
        if size + reserved > self._usable - self._current.used:
            self._ensure_room(size, reserved)
        self._append_new(record)
        self._reserved = reserved

    def answered(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        """Record that the answer's first bytes are about to leave. An orphan is then billed its last progress."""
        self._append(progress_record(event_key, tokens, now_ms))

    def progress(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        """Record how much has been delivered. Skipped when only the room reserved for ends of calls is left."""
        record = progress_record(event_key, tokens, now_ms)
        if self._troubles:
            return
        if len(record) + self._reserved > self._usable - self._current.used:
            try:
                self._ensure_room(len(record), self._reserved)
            except JournalUnavailableError:
                return
        self._append(record)

    def close(self, call: CloseCall) -> None:
        """Record the end of a call before its last bytes leave."""
        self._append(close_record(call))
        self._reserved -= END_ROOM_BYTES

    def stop(self) -> None:
        """Sync everything and release the lock. The supervisor then treats the journal as that of a dead worker."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._sync()
        fds = (self._lock_fd, self._current.fd, -1 if self._spare is None else self._spare.fd)
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    # Called on the event loop: one write per record, after the room has been checked.

    def _append(self, record: bytes) -> None:
        segment, size = self._current, len(record)
        if segment.used + size > self._usable:
            segment = self._rotate()
        if (written := os.pwrite(segment.fd, record, segment.used)) < size:
            _write_at(segment.fd, record[written:], segment.used + written)
        segment.used += size
        if not self._dirty:
            self._dirty = True
            self._wake.set()

    def _append_new(self, record: bytes) -> None:
        """Append; refuse the call if that fails: copy-on-write file systems can fail within allocated space."""
        try:
            self._append(record)
        except OSError as error:
            with contextlib.suppress(OSError):  # part of a record would look like damage
                _write_at(self._current.fd, bytes(len(record)), self._current.used)
            self._retry_write_at = time.monotonic() + self._options.log_interval_s
            self._set_trouble("write", f"the journal cannot be written: {error.strerror}")
            raise JournalUnavailableError(*self.troubles) from None
        if "write" in self._troubles:
            self._clear_trouble("write")

    def _rotate(self) -> _Segment:
        """Switch to the spare segment. The thread syncs and closes the full one, and allocates the next spare."""
        if self._spare is None:
            self._make_spare()
        following, self._spare = self._spare, None
        if following is None:
            raise JournalUnavailableError(*self.troubles)
        if self._current.fd >= 0:
            _write_at(self._current.fd, _END, self._current.used)
            self._retired.append(self._current)
        self._current = following
        self._wake.set()
        return following

    def _ensure_room(self, size: int, reserved: int) -> None:
        """Raise unless this record fits together with the ends of all open calls and of this one."""
        left = self._usable - self._current.used
        if self._spare is None and "allocate" not in self._troubles:
            self._make_spare()
        spare = self._usable if self._spare is not None else 0
        needed = size + reserved + END_ROOM_BYTES - (left if size <= left else 0)
        if needed > spare:
            raise JournalUnavailableError(*self.troubles or ("more calls are open than the journal has room for",))

    def _refuse_if_troubled(self) -> None:
        """Refuse the call for any trouble but a failed allocation, which `_ensure_room` refuses once room is short.

        After a failed write one call per `log_interval_s` is let through: only a write shows that the disk is back.
        """
        for kind, trouble in list(self._troubles.items()):
            if kind == "allocate" or (kind == "write" and time.monotonic() >= self._retry_write_at):
                continue
            raise JournalUnavailableError(trouble)

    # Called on the thread: allocation and syncing.

    def _sync_forever(self) -> None:
        measured_at = 0.0
        while not self._stopping:
            if self._spare is None:
                self._make_spare()
            if (now := time.monotonic()) - measured_at >= self._options.backlog_interval_s:
                self._measure_backlog()
                measured_at = now
            self._wake.wait(self._options.backlog_interval_s)
            self._wake.clear()
            if self._dirty and not self._stopping:
                time.sleep(self._options.sync_interval_s)
                self._sync()

    def _sync(self) -> None:
        self._dirty = False
        try:
            while self._retired:
                os.fdatasync(self._retired[0].fd)
                os.close(self._retired.pop(0).fd)
            if self._current.fd >= 0:
                os.fdatasync(self._current.fd)
        except OSError as error:
            self._dirty = True
            self._set_trouble("sync", f"the journal cannot be synced to disk: {error.strerror}")
        else:
            self._clear_trouble("sync")

    def _make_spare(self) -> None:
        """Allocate the spare segment. The loop calls this only when the thread has not done it in time."""
        with self._spare_lock:
            if self._spare is not None:
                return
            try:
                self._spare = self._new_segment()
            except OSError as error:
                self._cannot_allocate(error)
            else:
                self._clear_trouble("allocate")

    def _new_segment(self) -> _Segment:
        if self._lock_fd < 0:
            self._lock_fd = claim(self._directory)
        path = self._directory / f"{self._segments_made + 1:08d}{SEGMENT_SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            allocate(fd, self._options.segment_bytes)
            _sync_directory(self._directory)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        self._segments_made += 1
        return _Segment(fd)

    def _measure_backlog(self) -> None:
        if backlog_bytes(self._root) > self._options.max_backlog_bytes:
            self._set_trouble("backlog", "the journal's backlog is full: control has not taken events for too long")
        else:
            self._clear_trouble("backlog")

    def _cannot_allocate(self, error: OSError) -> None:
        self._set_trouble("allocate", f"the journal cannot allocate a segment: {error.strerror}")

    def _set_trouble(self, kind: str, text: str) -> None:
        if kind not in self._troubles and self._may_log(kind):
            log.error(
                "Journal trouble: %s; new calls are answered 503 while their records cannot be written. Free space on"
                " the disk of TOLLGATE_JOURNAL_DIR or replace it. For a full backlog, check that control is reachable.",
                text,
            )
        self._troubles[kind] = text

    def _clear_trouble(self, kind: str) -> None:
        if self._troubles.pop(kind, None) and self._may_log(f"{kind} recovered"):
            log.warning("The journal has recovered from its %s trouble; new calls are accepted again.", kind)

    def _may_log(self, line: str) -> bool:
        """Limit each line to one per `log_interval_s`: a nearly full disk fails and recovers with every call."""
        now = time.monotonic()
        if now - self._logged_at.get(line, -self._options.log_interval_s) < self._options.log_interval_s:
            return False
        self._logged_at[line] = now
        return True


def claim(directory: Path) -> int:
    """Create an incarnation's directory, locked before others can see it. Return the lock's file descriptor."""
    place = directory.with_name(f".{directory.name}")
    place.mkdir(parents=True, mode=0o700)
    fd = -1
    try:
        fd = os.open(place / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        place = place.rename(directory)
        _sync_directory(directory.parent)
    except OSError:
        if fd >= 0:
            os.close(fd)
        shutil.rmtree(place, ignore_errors=True)
        raise
    return fd


def backlog_bytes(root: Path) -> int:
    """The size of all journals below `root`. Ignores segments that are removed meanwhile."""
    total = 0
    for path in root.glob(f"*/*{SEGMENT_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`. A signal or a disk that fills up can make the kernel write only part of it."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def allocate(fd: int, size: int) -> None:
    """Allocate disk space that reads as zeros, so that later writes to it cannot find the disk full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.pwrite(fd, bytes(size), 0)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
