"""Locks of files (`flock`) that one process holds alone. They end with the process, however it ends."""

import fcntl
import os
from pathlib import Path


def try_lock(fd: int) -> bool:
    """Lock the file until it is closed. Returns False if another process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process has locked the file. One that tries to meanwhile fails, so it should try again."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
