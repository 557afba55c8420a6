"""Measures what a node uses: by its cgroup, else by its runner's descendants; and the bytes in its directory.

See docs/reference/training.md#logs-and-metrics.
"""

import os
from pathlib import Path

from trainer.runner.cgroup import Cgroup
from trainer.runner.processes import cpu_ns, proportional_bytes, reaped_cpu_ns, tree_pids
from trainer.runner.state import RunnerState

MAX_FILES = 100_000
"""A directory with more files and directories is not added up."""
_BLOCK_BYTES = 512


def processes_use(state: RunnerState) -> tuple[int, int]:
    """Return the CPU time in nanoseconds, since the node began, and the bytes of memory of all its processes."""
    group = Cgroup.of_runner(state.cgroup) if state.cgroup else None
    pids = list(tree_pids(state.pid))
    cpu = group.cpu_ns if group is not None else None
    memory = group.memory_bytes if group is not None else None
    if cpu is None:
        cpu = reaped_cpu_ns(state.pid) + sum(map(cpu_ns, pids))
    return cpu, sum(map(proportional_bytes, pids)) if memory is None else memory


def directory_bytes(root: Path, most: int = MAX_FILES) -> int | None:
    """Add up what the files below a directory take of the disk. None if there are too many.

    What the trainer may not read counts as empty, and so does what vanishes meanwhile.
    """
    total = 0
    count = 0
    directories = [str(root)]
    while directories:
        try:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > most:
                        return None
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
        except OSError:
            continue
    return total


def disk_bytes(path: Path) -> int | None:
    """The size of the disk that the path is on."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize
