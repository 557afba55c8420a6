"""A segment of a journal: a file on disk, and before it one in memory, which a stalled disk does not hold up.

The event loop writes to the file in memory (tmpfs), which outlives a killed process as a page of the disk's file would.
The journal's thread copies records to disk. What a dead worker did not copy, the supervisor does (`restore_segments`).
Where memory is not used or has no room, the event loop writes to the disk.
"""

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.edges.journal.segment_files import allocate, sync_directory, write_at

log = logging.getLogger(__name__)
_LINK = "journal"
"""The name of the link to the worker's journal. If the journal is gone, nobody will copy the directory's segments."""
_MEMORY = "memory"
"""The name of the journal's link to its directory in memory: its reader needs no setting."""


@dataclass(slots=True, eq=False)
class Segment:
    """The first `used_bytes` hold records; the rest are zeros. Only the thread calls the methods."""

    fd: int
    """The descriptor of the file on disk."""
    write_fd: int
    """The descriptor of the file that is written first: in memory, or `fd`."""
    used_bytes: int = 0
    memory: Path | None = None
    """The file in memory."""
    _copied: int = 0

    def copy(self) -> None:
        """Copy all records to the file on disk. The segments before this one must be copied first."""
        if self.memory is None:
            return
        while (size := self.used_bytes - self._copied) > 0:
            data = os.pread(self.write_fd, size, self._copied)
            write_at(self.fd, data, self._copied)
            self._copied += len(data)

    def sync(self) -> None:
        """Make all records durable."""
        self.copy()
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Close both files. The one on disk stays, and the one in memory if it has records that could not be copied."""
        os.close(self.fd)
        if self.memory is not None:
            os.close(self.write_fd)
            if self._copied == self.used_bytes:
                self.memory.unlink(missing_ok=True)


def new_segment(path: Path, size: int, memory: Path | None) -> Segment:
    """Allocate a segment on disk, and first in the directory `memory` if that is given and has room."""
    place = None if memory is None else _new_memory_file(memory / path.name, path.parent, size)
    try:
        fd = _allocated(path, size, synced=True)
    except OSError:
        if place is not None:
            place.unlink()
        raise
    if place is None:
        return Segment(fd, fd)
    return Segment(fd, os.open(place, os.O_RDWR | os.O_CLOEXEC), memory=place)


def _new_memory_file(place: Path, journal: Path, size: int) -> Path | None:
    link = place.with_name(_LINK)
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(place.parent):
            raise PermissionError(errno.EPERM, "a directory of another user is in its place")
        for name, target in ((link, journal), (journal / _MEMORY, place.parent)):
            if not name.is_symlink():
                name.symlink_to(target.absolute())
        os.close(_allocated(place, size))
    except OSError as error:
        log.warning(
            "A journal segment is on disk alone, because there is no room for it in %s (%s). Calls wait if the disk"
            " stalls. Give the machine or container more shared memory.",
            place.parent.parent,
            error.strerror,
        )
        return None
    return place


def _is_ours(directory: Path) -> bool:
    """Return whether it is a directory of this user: anybody may make one in the memory's root."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(directory)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _allocated(path: Path, size: int, synced: bool = False) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        allocate(fd, size)
        if synced:
            sync_directory(path.parent)
    except OSError:
        os.close(fd)
        path.unlink()
        raise
    return fd


def open_segment(path: Path) -> int:
    """Open a segment for reading: the file in memory as long as there is one, since it has all records."""
    memory = _memory_of(path.parent)
    if memory is not None:
        with contextlib.suppress(FileNotFoundError):
            return os.open(memory / path.name, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _memory_of(journal: Path) -> Path | None:
    """The directory in memory that a journal has left there. None if it has none, or none of this user."""
    try:
        memory = (journal / _MEMORY).readlink()
    except FileNotFoundError:
        return None
    return memory if _is_ours(memory) else None


def memory_directory(incarnation: str, root: Path) -> Path:
    return root / f"tollgate-journal-{incarnation}"


def remove_memory(directory: Path) -> None:
    """Remove the directory of a worker whose segments are all closed, unless the supervisor has to copy from it."""
    with contextlib.suppress(FileNotFoundError):  # there was no room for any
        if not _segments_in(directory):
            remove(directory)


def restore_segments(journal: Path) -> None:
    """Copy what a dead worker's segments had in memory to their files on disk, and remove it from memory."""
    directory = _memory_of(journal)
    if directory is None:
        return
    for place in _segments_in(directory):
        with contextlib.suppress(FileNotFoundError):  # its events were committed, so it was copied before
            _restore(place, journal / place.name)
        place.unlink()
    remove(directory)


def remove_strays(older_than_s: float, root: Path) -> None:
    """Remove what dead workers left in memory whose journals are gone: nobody can copy it."""
    for directory, journal in memory_directories(root):
        if not journal.exists() and time.time() - directory.lstat().st_mtime > older_than_s:
            remove(directory)


def memory_directories(root: Path) -> Iterator[tuple[Path, Path]]:
    """Each directory in memory of this user, and the journal that it belongs to."""
    for directory in root.glob(memory_directory("*", root).name):
        if _is_ours(directory):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield directory, (directory / _LINK).readlink()


def _segments_in(directory: Path) -> list[Path]:
    return sorted(place for place in directory.iterdir() if place.name != _LINK)


def remove(directory: Path) -> None:
    """Remove a directory in memory with all that is in it."""
    for place in directory.iterdir():
        place.unlink()
    directory.rmdir()


def _restore(place: Path, file: Path) -> None:
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        write_at(fd, place.read_bytes().rstrip(b"\0"), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
