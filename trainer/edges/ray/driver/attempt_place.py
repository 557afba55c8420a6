"""The files of one attempt on a Ray machine, below `<TOLLGATE_TRAINING_DIR>/ray-nodes`, and what crashes left there.

Whoever uses the files holds a shared lock beside them, so what has no lock and no living runner can be removed.
See docs/reference/training.md#ray.
"""

import fcntl
import os
import shutil
from pathlib import Path

from runtime.file_locks import try_lock
from trainer.edges.local.directories import AttemptDirectory
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.submissions import submission_id
from trainer.runner.state import read_state

_ROOT = "ray-nodes"
_LOCK_SUFFIX = ".lock"
_PRIVATE = 0o700


def nodes_directory(launch: RayLaunch) -> Path:
    """The directory of all attempts on a machine."""
    return Path(launch.directory) / _ROOT


class AttemptPlace:
    """The attempt's directory on this machine, with the layout of local jobs. It is made when it is locked."""

    def __init__(self, launch: RayLaunch) -> None:
        self._job = launch.job
        self._root = nodes_directory(launch)
        self.directory = AttemptDirectory(self._root / submission_id(launch.job.job_id, launch.job.attempt))
        self._lock_file = self.directory.root.with_suffix(_LOCK_SUFFIX)

    @property
    def checkpoints(self) -> Path:
        return self.directory.checkpoints(self._job)

    def working_directory(self, rank: int) -> Path:
        return self.directory.working_directory(self._job, rank)

    def lock(self) -> None:
        """Remove what crashes left of other attempts; then lock this one and make the directory of checkpoints."""
        self._root.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        for lock_file in sorted(self._root.glob(f"*{_LOCK_SUFFIX}")):
            _remove_abandoned(lock_file)
        _lock_shared(self._lock_file)
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    def make(self, rank: int) -> None:
        """Make the directories of one node."""
        self.directory.make_loads(self._job)
        for path in (self.working_directory(rank), self.directory.temporary(rank)):
            path.mkdir(parents=True, exist_ok=True)
        self.directory.control_directory(rank).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def remove_node(self, rank: int) -> None:
        """Remove the files of one node; with the last node of this machine all files of the attempt."""
        _remove(self.directory.node(rank))
        _remove(self.directory.control_directory(rank))
        if not any(self.directory.files.glob("node-*")):
            self.remove()

    def remove(self) -> None:
        """Remove all files of the attempt on this machine."""
        _remove(self.directory.root)
        self._lock_file.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove the directory. What cannot be removed now is tried again before the next attempt on this machine."""
    shutil.rmtree(path, ignore_errors=True)


def _lock_shared(path: Path) -> None:
    """Hold the lock until this process ends. Somebody may remove the file between the opening and the locking."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)
        if _is_at(file, path):
            return
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned(lock_file: Path) -> None:
    """Remove an attempt that nobody uses. A runner that ends its node goes on using it."""
    file = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(file):
            return  # in use
        root = lock_file.with_suffix("")
        states = [read_state(str(control)) for control in root.glob("control/node-*")]
        if not any(state is not None and state.is_present for state in states):
            _remove(root)
            lock_file.unlink(missing_ok=True)
    finally:
        os.close(file)
