"""Ends what a runner left behind that was killed itself: by its cgroup, and by the mark in its processes' environment.

See docs/reference/training.md#after-a-crash.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from policy.training.job_variables import JOB_ID, NODE_RANK
from trainer.runner.cgroup import Cgroup
from trainer.runner.processes import Process, processes
from trainer.runner.state import RunnerState

_PATIENCE_S = 10.0
_PAUSE_S = 0.01


def kill_leftovers(state: RunnerState | None, job_id: str, rank: int) -> bool:
    """Kill every process of the node; returns whether none is left. Blocks until then, but not for ever."""
    give_up_at = time.monotonic() + _PATIENCE_S
    group = None if state is None or state.cgroup is None else Cgroup.of_runner(state.cgroup)
    while True:
        if group is not None:
            group.kill()
        processes = _marked(job_id, rank)
        for one in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL)
        if not processes and (group is None or group.is_empty):
            break
        if time.monotonic() > give_up_at:
            return False
        time.sleep(_PAUSE_S)
    if group is not None:
        group.remove()
    return True


def _marked(job_id: str, rank: int) -> list[Process]:
    """The processes of the node, those below them, and those in their sessions' groups, as far as they live."""
    every = [one for one in processes() if one.is_alive and one.pid != os.getpid()]
    marks = {f"{JOB_ID}={job_id}".encode(), f"{NODE_RANK}={rank}".encode()}
    marked = {one.pid for one in every if marks <= _environment(one.pid)}
    groups = {one.group for one in every if one.pid in marked} - {os.getpgrp()}
    by_pid = {one.pid: one for one in every if one.pid in marked or one.group in groups}
    while more := {one.pid: one for one in every if one.parent in by_pid and one.pid not in by_pid}:
        by_pid |= more
    return list(by_pid.values())


def _environment(pid: int) -> set[bytes]:
    """Return what the process was started with; empty if it may not be known."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
