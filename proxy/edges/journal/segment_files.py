"""The files of a journal: directories that are locked by their worker, and segments that are allocated before use.

Must not know what records are.
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

LOCK_NAME = "lock"
SEGMENT_SUFFIX = ".journal"


def claim(directory: Path) -> int:
    """Create an incarnation's directory, locked before others can see it. Return the lock's file descriptor."""
    place = directory.with_name(f".{directory.name}")
    place.mkdir(parents=True, mode=0o700)
    fd = -1
    try:
        fd = os.open(place / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        place = place.rename(directory)
        sync_directory(directory.parent)
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


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`, also if the kernel takes only a part at once."""
    bytes_written = 0
    while bytes_written < len(data):
        bytes_written += os.pwrite(fd, data[bytes_written:], offset + bytes_written)


def allocate(fd: int, size: int) -> None:
    """Allocate disk space that reads as zeros, so that later writes to it cannot find the disk full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.pwrite(fd, bytes(size), 0)


def sync_directory(directory: Path) -> None:
    """Make new names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
