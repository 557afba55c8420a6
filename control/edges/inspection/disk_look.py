"""A look at a directory: can it be written, and how much room does it have."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

_PROBE = b"\0" * 4096


@dataclass(frozen=True, slots=True)
class DiskLook:
    """`path`: the directory, or the nearest one above it that exists. `trouble`: why it cannot be written, or ""."""

    path: Path
    trouble: str
    free_bytes: int = 0
    free_files: int | None = None
    """The number of free files; None where the file system has no fixed number."""


def look_at_disk(directory: Path) -> DiskLook:
    """Write and sync a page to a file without a name, which is gone when it is closed."""
    path = directory.absolute()
    try:
        while not path.exists():
            path = path.parent
        if not path.is_dir():
            return DiskLook(path, os.strerror(errno.ENOTDIR))
        room = os.statvfs(path)
    except OSError as error:
        return DiskLook(path, error.strerror or str(error))
    files = room.f_favail if room.f_files else None
    return DiskLook(path, _write_trouble(path), room.f_bavail * room.f_frsize, files)


def _write_trouble(path: Path) -> str:
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if isinstance(error, PermissionError) or not os.access(path, os.W_OK):
            return error.strerror or str(error)
        return ""  # the file system knows no files without names
    try:
        os.write(fd, _PROBE)
        os.fsync(fd)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(fd)
    return ""
