"""The worker's journal: no call is dispatched before its `open` is here, none ends before its `close` is.

Each record is one write of the whole record before the method returns, so `kill -9` loses none; a thread brings it to
the disk within 100 ms. Segments are allocated before use, and each open call keeps room for its own close: a full disk
or a backlog at its bound refuses new calls, from the first one on, and never loses the end of one.

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
"""Room kept for one call: its first progress record and its `close`."""
_MAX_RECORD_BYTES = HEAD_BYTES + MAX_PAYLOAD_BYTES
_END = frame(Kind.END, b"")


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """`max_backlog_bytes`: of all journals in the directory together; unread_closes it new calls are refused."""

    segment_bytes: int = 8 * 1024 * 1024
    max_backlog_bytes: int = 4 * 1024 * 1024 * 1024
    sync_interval_s: float = 0.05
    backlog_interval_s: float = 1.0
    log_interval_s: float = 1.0
    """A trouble is logged, and a write that the disk refused is tried again, at most this often."""


class RecordTooLargeError(ValueError):
    """The call's request metadata is too large to be journaled."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class IncarnationUsedError(ValueError):
    """There is a journal of that incarnation already."""

    def __init__(self, incarnation: str) -> None:
        super().__init__(f"{incarnation}: {self.__doc__}")


@dataclass(slots=True)
class _Segment:
    """One allocated file. `used`: what holds records; the rest is zeros."""

    fd: int
    used: int = 0


class JournalWriter:
    """Append-only segments of one worker incarnation, in a directory of its own that it holds locked while it lives."""

    def __init__(self, directory: Path, incarnation: str, options: JournalOptions | None = None) -> None:
        self._root = directory
        self._directory = directory / incarnation
        self._options = options or JournalOptions()
        if self._directory.exists():
            raise IncarnationUsedError(incarnation)
        self._lock_fd = -1
        self._made = 0
        self._making = threading.Lock()
        self._current = _Segment(-1, self._options.segment_bytes)  # none yet: as if full
        self._spare: _Segment | None = None
        self._retired: list[_Segment] = []
        self._usable = self._options.segment_bytes - len(_END)
        self._owed = 0  # room for the ends of the calls that are open
        self._dirty = False
        self._troubles: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}
        self._try_again_at = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._sync_forever, name="journal-sync", daemon=True)
        try:
            self._current = self._new_segment()
        except OSError as error:  # full already, which must not keep a worker from saying so to its callers
            self._cannot_allocate(error)

    @property
    def pending(self) -> int:
        """Calls that are open here."""
        return self._owed // END_ROOM_BYTES

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why new calls are refused, or soon will be; empty when all is well."""
        return tuple(self._troubles.values())

    def start(self) -> None:
        """From here on records reach the disk within 100 ms."""
        self._thread.start()

    def open(self, call: OpenCall) -> None:
        """Before dispatch. `JournalUnavailableError`: do not dispatch; nothing was written."""
        record = open_record(call)
        if (size := len(record)) > _MAX_RECORD_BYTES:
            raise RecordTooLargeError
        if self._troubles:
            self._refuse_if_troubled()
        owed = self._owed + END_ROOM_BYTES
        if size + owed > self._usable - self._current.used:
            self._ensure_room(size, owed)
        self._append_new(record)
        self._owed = owed

    def answered(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        """The first bytes of the answer are about to leave: from here on an orphan is billed its last progress."""
        self._append(progress_record(event_key, tokens, now_ms))

    def progress(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        """So much has been delivered. Left out where there is no room but for the ends of calls."""
        record = progress_record(event_key, tokens, now_ms)
        if self._troubles:
            return
        if len(record) + self._owed > self._usable - self._current.used:
            try:
                self._ensure_room(len(record), self._owed)
            except JournalUnavailableError:
                return
        self._append(record)

    def close(self, call: CloseCall) -> None:
        """Before the last bytes leave."""
        self._append(close_record(call))
        self._owed -= END_ROOM_BYTES

    def stop(self) -> None:
        """All on the disk, the lock given up: from here on the journal counts as that of a dead incarnation."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._sync()
        fds = (self._lock_fd, self._current.fd, -1 if self._spare is None else self._spare.fd)
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    # The event loop's side: one write per record, room known beforehand.

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
        """A disk may refuse the write for which it has given room, where writing never happens in place."""
        try:
            self._append(record)
        except OSError as error:
            with contextlib.suppress(OSError):  # half a record would look like damage, until another covers it
                _write_at(self._current.fd, bytes(len(record)), self._current.used)
            self._try_again_at = time.monotonic() + self._options.log_interval_s
            self._trouble("write", f"the journal cannot be written: {error.strerror}")
            raise JournalUnavailableError(*self.troubles) from None
        if "write" in self._troubles:
            self._well("write")

    def _rotate(self) -> _Segment:
        """On into the spare segment; the thread syncs and closes the full one, and allocates the next spare."""
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

    def _ensure_room(self, size: int, owed: int) -> None:
        """Raise unless this record, and the ends of all open calls with this one's, surely find room."""
        left = self._usable - self._current.used
        if self._spare is None and "allocate" not in self._troubles:
            self._make_spare()
        spare = self._usable if self._spare is not None else 0
        needed = size + owed + END_ROOM_BYTES - (left if size <= left else 0)
        if needed > spare:
            raise JournalUnavailableError(*self.troubles or ("more calls are open than the journal keeps room for",))

    def _refuse_if_troubled(self) -> None:
        """A disk that cannot allocate refuses once room is short (`_ensure_room`); other troubles refuse at once.

        Whether the disk can be written again only a write can tell: one call tries it, once in a while.
        """
        for kind, trouble in list(self._troubles.items()):
            if kind == "allocate" or (kind == "write" and time.monotonic() >= self._try_again_at):
                continue
            raise JournalUnavailableError(trouble)

    # The thread's side: the disk.

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
            self._trouble("sync", f"the journal cannot be brought to the disk: {error.strerror}")
        else:
            self._well("sync")

    def _make_spare(self) -> None:
        """Called from both sides: from the loop only when the thread has not come round to it."""
        with self._making:
            if self._spare is not None:
                return
            try:
                self._spare = self._new_segment()
            except OSError as error:
                self._cannot_allocate(error)
            else:
                self._well("allocate")

    def _new_segment(self) -> _Segment:
        if self._lock_fd < 0:
            self._lock_fd = claim(self._directory)
        path = self._directory / f"{self._made + 1:08d}{SEGMENT_SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            allocate(fd, self._options.segment_bytes)
            _sync_directory(self._directory)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        self._made += 1
        return _Segment(fd)

    def _measure_backlog(self) -> None:
        if backlog_bytes(self._root) > self._options.max_backlog_bytes:
            self._trouble("backlog", "the journal's backlog is at its bound: events have not been taken for too long")
        else:
            self._well("backlog")

    def _cannot_allocate(self, error: OSError) -> None:
        self._trouble("allocate", f"the journal cannot allocate a segment: {error.strerror}")

    def _trouble(self, kind: str, text: str) -> None:
        if kind not in self._troubles and self._may_log(kind):
            log.error(
                "%s; new calls are answered 503 while there is no room left for their records."
                " Free space on the disk of TOLLGATE_JOURNAL_DIR, or mend it",
                text,
            )
        self._troubles[kind] = text

    def _well(self, kind: str) -> None:
        if self._troubles.pop(kind, None) and self._may_log(f"{kind} recovered"):
            log.warning("the journal has recovered (%s)", kind)

    def _may_log(self, line: str) -> bool:
        """At most once a second: a disk at its limit fails and recovers with every call."""
        now = time.monotonic()
        if now - self._logged_at.get(line, -self._options.log_interval_s) < self._options.log_interval_s:
            return False
        self._logged_at[line] = now
        return True


def claim(directory: Path) -> int:
    """Make an incarnation's directory, locked from the first moment that it can be seen; the lock's descriptor."""
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
    """What all journals below `root` take. A segment that is shipped away while one looks counts for nothing."""
    total = 0
    for path in root.glob(f"*/*{SEGMENT_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _write_at(fd: int, data: bytes, offset: int) -> None:
    """The kernel takes a record whole, but for a signal or a disk that fills up half-way: then on with the rest."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def allocate(fd: int, size: int) -> None:
    """Room on the disk, readable as zeros, so that no later write within it can find the disk full."""
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
