"""Disk space that is allocated in advance, so that a write which frees space succeeds on a full disk.

The shipper needs it: before it can delete segments it must write its position.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from proxy.edges.journal.segment_files import allocate

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """A file of `size` bytes that is deleted when its space is needed."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def allocate(self) -> None:
        """Create the file, if it is not there and the disk has room."""
        if self._path.exists():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            allocate(fd, self._size)
        except OSError:
            self._path.unlink()
        finally:
            os.close(fd)

    def write_using(self, write: Callable[[], None]) -> None:
        """Call `write`, which frees disk space. On a full disk delete the file first; create it again afterwards."""
        try:
            write()
        except OSError as error:
            if error.errno not in _FULL or not self._path.exists():
                raise
            self._path.unlink()
            write()
        self.allocate()
