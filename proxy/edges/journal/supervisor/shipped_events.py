"""Keeps the events that control has committed for a day, in case its database is restored from a backup.

Files of compressed batches beside the journals, about 75 bytes per call: events only, nothing to settle. The oldest
file is deleted by age, by size, and when the disk fills up, since new calls need the room more. Blocks on the disk:
called in a thread, one call at a time. Posts nothing; `delivery.py` does.
"""

import contextlib
import logging
import os
import shutil
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from proxy.edges.journal.supervisor.journal_reader import replace_durably

log = logging.getLogger(__name__)

DIRECTORY_NAME = ".shipped"
FILE_SUFFIX = ".events"
RESEND_NAME = "resend.json"
"""Names the files that are still to be sent again. Exists only during a resend."""
_HEAD = struct.Struct("<4sII")
_MAGIC = b"TGS1"
_LEVEL = 1
_TIDY_INTERVAL_S = 10.0
_WARN_INTERVAL_S = 600.0
_Record = tuple[int, int, bytes]
"""Start and end offset in the file, and the compressed events."""


@dataclass(frozen=True, slots=True)
class ShippedOptions:
    """Bounds of the kept events. `retention_s` 0 keeps none. Below `keep_free_bytes` the oldest files are deleted."""

    retention_s: float = 86_400.0
    max_bytes: int = 8 * 1024**3
    keep_free_bytes: int = 256 * 1024**2
    file_bytes: int = 64 * 1024**2
    file_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one request, and where they are kept."""

    file: str
    start: int
    end: int
    events: list[bytes]


class ShippedEvents:
    """The events shipped from one journal directory. Call `open` first."""

    def __init__(self, directory: Path, options: ShippedOptions | None = None) -> None:
        self._directory = directory
        self._options = options or ShippedOptions()
        self._fd = -1
        self._size = 0
        self._began_at_s = self._tidied_at_s = 0.0
        self._to_resend: list[str] = []
        self._offset = 0
        self._last: Batch | None = None
        self._disk_is_short = False
        self._warned_at_s = float("-inf")
        self.last_key: str | None = None
        """The idempotency key of the event that control committed last. None when nothing is kept."""
        self.bytes = 0

    @property
    def keeps(self) -> bool:
        return self._options.retention_s > 0

    @property
    def resending(self) -> bool:
        """True while a resend is under way."""
        return bool(self._to_resend)

    def open(self) -> None:
        """Load what an earlier process kept."""
        if not self.keeps:
            shutil.rmtree(self._directory, ignore_errors=True)
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._to_resend = orjson.loads((self._directory / RESEND_NAME).read_bytes())["files"]
        self._tidy()
        if self._to_resend:
            return  # unknown which event was committed last: control is not asked until all are sent again
        for name in reversed(self._names()):
            if newest := deque(self._records(name, 0), maxlen=1):
                self.last_key = key_of(_batch(name, newest[0]).events[-1])
                return

    def keep(self, events: Sequence[bytes]) -> None:
        """Keep committed events, one or more. If the disk refuses them, they only cannot be sent again after a
        restore."""
        if not self.keeps:
            return
        self.last_key = key_of(events[-1])
        self.make_room()
        if self._disk_is_short:
            return
        payload = zlib.compress(b"\n".join(events), _LEVEL)
        try:
            self._append(_HEAD.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload)
        except OSError as error:
            self._close_file()
            log.error(
                "Shipped events cannot be kept (%s); a restore of the control database would lose them."
                " Check the disk of TOLLGATE_JOURNAL_DIR.",
                error.strerror,
            )

    def begin_resend(self) -> None:
        """Mark everything that is kept for sending again, also after a restart of the supervisor."""
        self._close_file()
        self.last_key = None
        self._offset = 0
        self._last = None
        self._save_to_resend(self._names())
        log.warning(
            "Control no longer has the last events it committed: its database was restored or replaced. Sending the"
            " events of the last %g hours again, %d MB in %d files; control ignores those that it has.",
            self._options.retention_s / 3600,
            self.bytes // 1_000_000,
            len(self._to_resend),
        )

    def next_to_resend(self) -> Batch | None:
        """The next batch to send again, or None when there is none left."""
        while self._to_resend:
            for record in self._records(self._to_resend[0], self._offset):
                return _batch(self._to_resend[0], record)
            self._save_to_resend(self._to_resend[1:])
            self._offset = 0
            if not self._to_resend:
                self._finish_resend()
        return None

    def resent(self, batch: Batch) -> None:
        """Note that control has committed this batch again."""
        self.last_key = key_of(batch.events[-1])
        if self._to_resend and (batch.file, batch.start) == (self._to_resend[0], self._offset):
            self._offset = batch.end
            self._last = batch

    def make_room(self) -> None:
        """Delete the oldest files when the disk fills up: the journals need the room for new calls."""
        if not self.keeps:
            return
        if time.monotonic() - self._tidied_at_s >= _TIDY_INTERVAL_S:
            self._tidy()
        was_short = self._disk_is_short = self._free_bytes() < self._options.keep_free_bytes
        while self._disk_is_short and self._drop_oldest():
            self._disk_is_short = self._free_bytes() < self._options.keep_free_bytes
        if was_short and time.monotonic() - self._warned_at_s > _WARN_INTERVAL_S:
            self._warned_at_s = time.monotonic()
            log.warning(
                "Less than %d MB are free on the disk of %s; shipped events are dropped, oldest first. A restore of the"
                " control database would lose them. Free some space, or lower TOLLGATE_SHIPPED_MAX_BYTES.",
                self._options.keep_free_bytes // 1024**2,
                self._directory.parent,
            )

    def close(self) -> None:
        self._close_file()

    def _finish_resend(self) -> None:
        """Finish the resend. Keep the batch that was committed last as the newest one: the next process asks by it."""
        log.warning("Sent all kept events to control again; the resend is complete.")
        if self._last is not None:
            self.keep(self._last.events)

    def _append(self, record: bytes) -> None:
        now_s = time.monotonic()
        if self._size >= self._options.file_bytes or now_s - self._began_at_s >= self._options.file_s:
            self._close_file()
        if self._fd < 0:
            path = self._directory / f"{time.time_ns():020d}{FILE_SUFFIX}"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._size = 0
            self._began_at_s = now_s
        bytes_written = 0
        while bytes_written < len(record):
            bytes_written += os.write(self._fd, record[bytes_written:])
        os.fdatasync(self._fd)
        self._size += len(record)
        self.bytes += len(record)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._size = 0

    def _names(self) -> list[str]:
        return names_in(self._directory)

    def _records(self, name: str, offset: int) -> Iterator[_Record]:
        """The records of one file from `offset` to its end, or to a record that a crash tore."""
        path = self._directory / name
        with contextlib.suppress(FileNotFoundError):
            for record in records_in(path, offset):
                offset = record[1]
                yield record
            if path.stat().st_size > offset:
                log.warning(
                    "%s ends in a torn record at byte %d, as after a crash; its batch cannot be sent again.",
                    path,
                    offset,
                )

    def _save_to_resend(self, names: list[str]) -> None:
        self._to_resend = names
        path = self._directory / RESEND_NAME
        if names:
            replace_durably(path, orjson.dumps({"files": names}))
        else:
            path.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Delete files that are too old or too much, except those that are still to be sent again."""
        self._tidied_at_s = time.monotonic()
        sizes = dict(self._sizes())
        self.bytes = sum(size for size, _ in sizes.values())
        oldest_s = time.time() - self._options.retention_s
        for name, (size, written_s) in sorted(sizes.items()):
            if written_s < oldest_s or self.bytes > self._options.max_bytes:
                if name in self._to_resend:
                    continue
                self._drop(name, size)

    def _sizes(self) -> Iterator[tuple[str, tuple[int, float]]]:
        for name in self._names():
            with contextlib.suppress(FileNotFoundError):
                status = (self._directory / name).stat()
                yield name, (status.st_size, status.st_mtime)

    def _drop_oldest(self) -> bool:
        for name, (size, _) in self._sizes():
            self._drop(name, size)
            return True
        return False

    def _drop(self, name: str, size: int) -> None:
        if name == next(iter(reversed(self._names())), None):
            self._close_file()
        (self._directory / name).unlink(missing_ok=True)
        self.bytes -= size

    def _free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize


def names_in(directory: Path) -> list[str]:
    """The files of shipped events, oldest first."""
    return sorted(name for name in os.listdir(directory) if name.endswith(FILE_SUFFIX))


def records_in(path: Path, offset: int = 0) -> Iterator[_Record]:
    """The complete records of one file from `offset` on. Reads only, so it may run beside the supervisor."""
    with path.open("rb") as file:
        file.seek(offset)
        while head := file.read(_HEAD.size):
            magic, size, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0)
            payload = file.read(size)
            if magic != _MAGIC or len(payload) < size or zlib.crc32(payload) != checksum:
                return
            start = offset
            offset = file.tell()
            yield start, offset, payload


def events_of(record: _Record) -> list[bytes]:
    """The events of one record, as ingest takes them."""
    return zlib.decompress(record[2]).split(b"\n")


def _batch(name: str, record: _Record) -> Batch:
    return Batch(name, record[0], record[1], events_of(record))


def key_of(event: bytes) -> str:
    key: str = orjson.loads(event)["idempotency_key"]
    return key
