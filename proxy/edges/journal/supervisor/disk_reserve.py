"""Room that is held on a disk to be given up when the disk is full, so that what frees room can be written.

The shipper's: a full disk must not keep it from noting the place that lets whole segments go.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from proxy.edges.journal.writer import allocate

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """A file of `size` bytes that nobody reads."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def hold(self) -> None:
        """Take the room, if it is not held and can be had."""
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

    def use(self, write: Callable[[], None]) -> None:
        """Do this, which makes room; in the room held, where there is no other."""
        try:
            write()
        except OSError as error:
            if error.errno not in _FULL or not self._path.exists():
                raise
            self._path.unlink()
            write()
        self.hold()
