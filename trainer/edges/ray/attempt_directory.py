"""The files of one attempt on a Ray machine, below `<TOLLGATE_TRAINING_DIR>/ray-nodes`, and what crashes left there.

Whoever uses the files holds a shared lock beside them, so what has no lock and no living runner can be removed.
See docs/reference/training.md#ray.
"""

import fcntl
import os
import shutil
from pathlib import Path

from policy.training.job_spec import DEFAULT_CHECKPOINT_PATH
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.submissions import submission_id
from trainer.runner.state import read_state

_ROOT = "ray-nodes"
_PRIVATE = 0o700


class AttemptDirectory:
    """Made when it is locked; the lock ends with the process."""

    def __init__(self, launch: RayLaunch) -> None:
        spec = launch.job.spec
        self._root = Path(launch.directory) / _ROOT
        self._path = self._root / submission_id(launch.job.job_id, launch.job.attempt)
        self._working_directory = spec.working_directory or "."
        self.checkpoints = self._path / (spec.checkpoint_path or DEFAULT_CHECKPOINT_PATH)

    def home(self, rank: int) -> Path:
        return self._path / f"node-{rank}"

    def working_directory(self, rank: int) -> Path:
        return self.home(rank) / self._working_directory

    def control(self, rank: int) -> Path:
        """The runner's own directory."""
        return self._path / "control" / f"node-{rank}"

    def lock(self) -> None:
        """Remove what crashes left of other attempts; then lock this one and make the directory of checkpoints."""
        self._root.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        for lock_file in sorted(self._root.glob("*.lock")):
            _remove_abandoned(lock_file)
        _lock_shared(self._path.with_name(f"{self._path.name}.lock"))
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    def make(self, rank: int) -> None:
        """Make the directories of one node."""
        self.working_directory(rank).mkdir(parents=True, exist_ok=True)
        self.control(rank).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def remove_node(self, rank: int) -> None:
        """Remove the files of one node; with the last node of this machine all files of the attempt."""
        shutil.rmtree(self.home(rank), ignore_errors=True)
        shutil.rmtree(self.control(rank), ignore_errors=True)
        if not any(self._path.glob("node-*")):
            self.remove()

    def remove(self) -> None:
        """Remove all files of the attempt on this machine."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.with_name(f"{self._path.name}.lock").unlink(missing_ok=True)


def _lock_shared(path: Path) -> None:
    """Hold the lock until this process ends. Somebody may remove the file between the opening and the locking."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)
        if path.exists() and os.path.sameopenfile(file, other := os.open(path, os.O_RDONLY)):
            os.close(other)
            return
        os.close(file)


def _remove_abandoned(lock_file: Path) -> None:
    """Remove an attempt that nobody uses. A runner that ends its node goes on using it."""
    file = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = lock_file.with_suffix("")
        states = [read_state(str(control)) for control in path.glob("control/node-*")]
        if not any(state is not None and state.is_alive for state in states):
            shutil.rmtree(path, ignore_errors=True)
            lock_file.unlink(missing_ok=True)
    except BlockingIOError:
        return  # in use
    finally:
        os.close(file)
