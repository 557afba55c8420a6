"""The limits of a node: by a cgroup, else by processor affinity and a watch over the node's memory.

See docs/reference/training.md#limits.
"""

import os
import time

from trainer.runner.cgroup import Cgroup
from trainer.runner.launch import Launch
from trainer.runner.processes import proportional_bytes, resident_bytes, tree_pids

_MIB = 1024 * 1024
_LOOK_EVERY_S = 0.25
_LOOK_SHARE = 20
"""A look that took long is not repeated until this many times as long has passed."""


class NodeLimits:
    """The limits of one node. `name` of its cgroup: see `cgroup`."""

    def __init__(self, launch: Launch) -> None:
        self._memory_mib = launch.memory_mib
        self.cgroup = Cgroup.make(launch.name)
        if self.cgroup is not None:
            self.cgroup.set_limits(launch.memory_mib * _MIB, launch.millicpu)
        if launch.cpus and (self.cgroup is None or not self.cgroup.has_cpu):
            _run_on(launch.cpus)
        self._is_watching = self.cgroup is None or not self.cgroup.has_memory
        self._look_at = 0.0
        self._is_exceeded = False

    @property
    def reason(self) -> str | None:
        """The reason why the node was killed; None if no limit did that."""
        was_exceeded = self._is_exceeded or (self.cgroup is not None and self.cgroup.was_out_of_memory)
        return f"memory limit {self._memory_mib} MiB" if was_exceeded else None

    def next_look_s(self, now: float) -> float | None:
        """Return in how many seconds `look` is due; None: never."""
        return max(0.0, self._look_at - now) if self._is_watching and not self._is_exceeded else None

    def is_exceeded(self) -> bool:
        """Look, if it is time, whether the node holds more memory than it may."""
        began = time.monotonic()
        if not self._is_watching or self._is_exceeded or began < self._look_at:
            return False
        limit = self._memory_mib * _MIB
        pids = list(tree_pids(os.getpid()))
        if sum(map(resident_bytes, pids)) > limit:  # counts shared memory several times, so look closer
            self._is_exceeded = sum(map(proportional_bytes, pids)) > limit
        took = time.monotonic() - began
        self._look_at = began + max(_LOOK_EVERY_S, _LOOK_SHARE * took)
        return self._is_exceeded


def _run_on(cpus: list[int]) -> None:
    allowed = os.sched_getaffinity(0) & set(cpus)
    if allowed:
        os.sched_setaffinity(0, allowed)
