"""The room that this machine has for jobs, as one host, and the processors that each node gets.

See docs/reference/training.md#backends.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from policy.training.resources import Host
from trainer.edges.local.gpus import Gpu
from trainer.settings import Capacity

ADDRESS = "127.0.0.1"
"""The address of every node, for the other nodes of its job."""
_MIN_NODES = 8
_CGROUPS = Path("/sys/fs/cgroup")
_KIB_PER_MIB = 1024
_BYTES_PER_MIB = 1024 * 1024


def this_host(capacity: Capacity, gpus: Sequence[Gpu] = ()) -> Host:
    """Describe this machine. `capacity` wins over what it has, upwards too."""
    cpus = capacity.cpu or _processors()
    return Host(
        name=platform.node() or "localhost",
        millicpu=cpus * 1000,
        memory_mib=capacity.memory_mib or _memory_mib(),
        max_nodes=capacity.nodes or max(_MIN_NODES, cpus),
        gpus=Counter(gpu.type for gpu in gpus),
    )


def least_used(count: int, busy: Iterable[int]) -> tuple[int, ...]:
    """The processors for a node that needs so many: those that the fewest nodes have."""
    uses = Counter(busy)
    ordered = sorted(os.sched_getaffinity(0), key=lambda cpu: (uses[cpu], cpu))
    return tuple(sorted(ordered[:count]))


def _processors() -> int:
    """Return the processors that this process may use; fewer where its container has a quota."""
    quota, _, period = _cgroup_limit("cpu.max").partition(" ")
    own = len(os.sched_getaffinity(0))
    return max(1, min(own, int(quota) // int(period))) if quota.isdigit() and period.isdigit() else own


def _memory_mib() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(next(line for line in file if line.startswith("MemTotal:")).split()[1]) // _KIB_PER_MIB
    limit = _cgroup_limit("memory.max")
    return min(total, int(limit) // _BYTES_PER_MIB) if limit.isdigit() else total


def _cgroup_limit(name: str) -> str:
    """A limit of this process's cgroup; empty if there is none."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next((line.strip()[3:] for line in file if line.startswith("0::")), "/")
        return (_CGROUPS / own.lstrip("/") / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
