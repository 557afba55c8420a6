"""The trainer's directory on this machine: one trainer at a time, with a name that outlives the process.

Control listens to one trainer at a time and knows it by this name, so a restarted one need not wait until control has
given the dead one up.
"""

import os
import secrets
from pathlib import Path

from runtime.file_locks import try_lock

_NAME_BYTES = 8


class DirectoryInUseError(Exception):
    """Another trainer runs in this directory."""


class DirectoryUnusableError(Exception):
    """The directory cannot be created or written. The message names the setting and the cause."""


class TrainerDirectory:
    """A directory that is locked from `lock` until `release` or the process's end. Children do not inherit the lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def lock(self) -> str:
        """Lock the directory and return this trainer's name."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path / "trainer.id", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DirectoryUnusableError(f"TOLLGATE_TRAINING_DIR: {self._path}: {error.strerror}") from None
        try:
            if not try_lock(descriptor):
                os.close(descriptor)
                raise DirectoryInUseError(f"another trainer runs in {self._path}")
            name = _name_in(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise DirectoryUnusableError(f"TOLLGATE_TRAINING_DIR: {self._path}: {error.strerror}") from None
        self._descriptor = descriptor
        return name

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _name_in(descriptor: int) -> str:
    """The name that is written there, or a new one."""
    name = os.pread(descriptor, 2 * _NAME_BYTES + 1, 0).decode("ascii", "replace")
    if len(name) == 2 * _NAME_BYTES and all(digit in "0123456789abcdef" for digit in name):
        return name
    name = secrets.token_hex(_NAME_BYTES)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, name.encode(), 0)
    return name
