"""The waiting jobs that start now, on which hosts, and the spot jobs that end for them. Pure.

Dedicated jobs come before spot jobs, then the higher priority, then the older. The first job that has to wait reserves
its room on every host that it may get: jobs behind it use only what it leaves, so they cannot keep it waiting.

See docs/reference/training.md#queue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from policy.training.resources import Host, NodeResources


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that waits, or runs."""

    job_id: str
    is_spot: bool
    priority: int
    created_at_ms: int
    node_count: int
    resources: NodeResources

    @property
    def order(self) -> tuple[bool, int, int, str]:
        return (self.is_spot, -self.priority, self.created_at_ms, self.job_id)


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that has hosts, and the host of each node by rank. `is_ending`: it was asked to stop."""

    job: Candidate
    hosts: tuple[str, ...]
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`starts`: the host of each node by rank, by job id, in the order to start. `preempted`: spot jobs to end."""

    starts: Mapping[str, tuple[str, ...]]
    preempted: tuple[str, ...] = ()


class WaitReason(Enum):
    """The reason why a job has not started."""

    STARTS = "STARTS"
    """It fits: it starts with the trainer's next look."""
    PREEMPTS = "PREEMPTS"
    """Spot jobs end to make room for it."""
    NO_ROOM = "NO_ROOM"
    """It does not fit in what the jobs that run leave."""
    RESERVED = "RESERVED"
    """It would fit, but the room is reserved for the first job that waits."""


def unfit_field(hosts: Sequence[Host], node_count: int, resources: NodeResources) -> str | None:
    """The first of `cpu_count`, `memory`, `accelerator` and `node_count` that no waiting would make fit; else None."""
    if not any(host.millicpu >= resources.millicpu for host in hosts):
        return "cpu_count"
    if not any(host.memory_mib >= resources.memory_mib for host in hosts):
        return "memory"
    if resources.gpu_type and not any(host.gpus.get(resources.gpu_type, 0) >= resources.gpu_count for host in hosts):
        return "accelerator"
    return "node_count" if sum(_most_nodes(host, resources) for host in hosts) < node_count else None


def decide(hosts: Sequence[Host], placed: Iterable[Placed], candidates: Iterable[Candidate]) -> Decision:
    """Decide what to do now. A preempted job's room is given only once it has ended: ask again then."""
    room = _Room(hosts)
    placements = list(placed)
    for one in placements:
        room.give(one, -1)
    starts: dict[str, tuple[str, ...]] = {}
    preempted: tuple[str, ...] = ()
    has_reserved = False
    for job in sorted(candidates, key=lambda job: job.order):
        host_names = room.allot(job.node_count, job.resources)
        if host_names is not None:
            starts[job.job_id] = host_names
        elif not has_reserved:
            has_reserved = True
            preempted = () if job.is_spot else _preempted(room, placements, job)
            _reserve(room, hosts, job)
    return Decision(starts, preempted)


def why_waiting(
    hosts: Sequence[Host], placed: Iterable[Placed], candidates: Iterable[Candidate], job: Candidate
) -> WaitReason:
    """Explain what `decide` does with one of the candidates."""
    placements = list(placed)
    queue = {one.job_id: one for one in candidates}
    decision = decide(hosts, placements, queue.values())
    if job.job_id in decision.starts:
        return WaitReason.STARTS
    first = min((one for one in queue.values() if one.job_id not in decision.starts), key=lambda one: one.order)
    if job.job_id == first.job_id:
        return WaitReason.PREEMPTS if decision.preempted else WaitReason.NO_ROOM
    room = _Room(hosts)
    for one in (*placements, *(Placed(queue[id], names) for id, names in decision.starts.items())):
        room.give(one, -1)
    return WaitReason.NO_ROOM if room.allot(job.node_count, job.resources) is None else WaitReason.RESERVED


def _preempted(room: "_Room", placements: Sequence[Placed], job: Candidate) -> tuple[str, ...]:
    """The spot jobs whose end makes room, the least important first; none if their end would not be enough."""
    after = room.copy()
    ending: list[str] = []
    for one in placements:
        if one.is_ending:
            after.give(one, 1)
    for one in sorted((one for one in placements if not one.is_ending), key=lambda one: one.job.order, reverse=True):
        if after.copy().allot(job.node_count, job.resources) is not None:
            return tuple(ending)
        if one.job.is_spot:
            after.give(one, 1)
            ending.append(one.job.job_id)
    return tuple(ending) if after.allot(job.node_count, job.resources) is not None else ()


def _reserve(room: "_Room", hosts: Sequence[Host], job: Candidate) -> None:
    """Take the room that the job may come to use on each host; what is left may become negative.

    On each, because any of them may be the one where a job never ends.
    """
    for host in hosts:
        alone = _Room([host])
        nodes = 0
        while nodes < job.node_count and alone.allot(1, job.resources) is not None:
            nodes += 1
        room.give(Placed(job, (host.name,) * nodes), -1)


class _Room:
    """The room that is left on each host."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._amounts = {host.name: _has(host) for host in hosts}

    def copy(self) -> "_Room":
        room = _Room(())
        room._amounts = {name: dict(amounts) for name, amounts in self._amounts.items()}
        return room

    def allot(self, node_count: int, resources: NodeResources) -> tuple[str, ...] | None:
        """Take room for every node, or none at all: the hosts by rank, or None. Spreads nodes over the emptiest."""
        needs = _needs(resources)
        host_names = list[str]()
        for _ in range(node_count):
            fitting = [name for name, amounts in self._amounts.items() if _fits(amounts, needs)]
            if not fitting:
                for name in host_names:
                    self._change(name, needs, 1)
                return None
            best = max(fitting, key=lambda name: (self._amounts[name]["millicpu"], name))
            self._change(best, needs, -1)
            host_names.append(best)
        return tuple(host_names)

    def give(self, placed: Placed, sign: int) -> None:
        """Give (1) or take (-1) what a placed job has, whatever is left. Ignores hosts that are gone."""
        for name in placed.hosts:
            if name in self._amounts:
                self._change(name, _needs(placed.job.resources), sign)

    def _change(self, name: str, needs: Mapping[str, int], sign: int) -> None:
        amounts = self._amounts[name]
        for kind, amount in needs.items():
            amounts[kind] = amounts.get(kind, 0) + sign * amount


def _has(host: Host) -> dict[str, int]:
    has = {"millicpu": host.millicpu, "memory_mib": host.memory_mib, "nodes": host.max_nodes}
    return has | {f"gpu {type}": count for type, count in host.gpus.items()}


def _needs(resources: NodeResources) -> dict[str, int]:
    needs = {"millicpu": resources.millicpu, "memory_mib": resources.memory_mib, "nodes": 1}
    return needs | ({f"gpu {resources.gpu_type}": resources.gpu_count} if resources.gpu_type else {})


def _most_nodes(host: Host, resources: NodeResources) -> int:
    """The number of a job's nodes that fit on an empty machine. Nodes of one job are alike, so no packing is better."""
    has = _has(host)
    return min(has.get(kind, 0) // amount for kind, amount in _needs(resources).items() if amount)


def _fits(amounts: Mapping[str, int], needs: Mapping[str, int]) -> bool:
    return all(amounts.get(kind, 0) >= amount for kind, amount in needs.items())
