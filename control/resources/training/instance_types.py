"""Instance types: what a node of a job gets, and what a node can get at most on each kind of machine. Pure.

See docs/reference/training.md#instance-types.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from control.records.training import JobRecord
from policy.training.resources import Host, NodeResources


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One instance type. The id follows from the figures, except the memory of a GPU."""

    id: str
    name: str
    memory_limit_mib: int
    millicpu_limit: int
    gpu_count: int
    gpu_type: str | None
    gpu_memory_limit_mib: int | None
    """The memory of one GPU; None if the backend does not know it."""


def instance_type_of(job: JobRecord) -> InstanceType:
    """The resources that each node of the job gets."""
    return _instance_type(job.resources, job.gpu_memory_mib)


def instance_types(hosts: Sequence[Host]) -> list[InstanceType]:
    """The most that one node gets on each kind of machine, the smallest first; one for each type of its GPUs."""
    types = {type.id: type for type in _types_of(hosts)}
    return sorted(
        types.values(), key=lambda type: (type.gpu_count, type.millicpu_limit, type.memory_limit_mib, type.id)
    )


def gpu_memory_mib(hosts: Iterable[Host], gpu_type: str | None) -> int | None:
    """The memory of one GPU of this type, the least that a machine has; None if no machine says."""
    sizes = (host.gpu_memory_mib.get(gpu_type) for host in hosts) if gpu_type else ()
    return min((mib for mib in sizes if mib is not None), default=None)


def _types_of(hosts: Sequence[Host]) -> Iterable[InstanceType]:
    for host in hosts:
        if not host.gpus:
            yield _instance_type(NodeResources(host.millicpu, host.memory_mib), None)
        for type, count in host.gpus.items():
            resources = NodeResources(host.millicpu, host.memory_mib, count, type)
            yield _instance_type(resources, gpu_memory_mib(hosts, type))


def _instance_type(resources: NodeResources, gpu_memory: int | None) -> InstanceType:
    id = f"{resources.millicpu}m-{resources.memory_mib}Mi"
    name = f"{resources.millicpu / 1000:g} CPU, {_memory_text(resources.memory_mib)}"
    if resources.gpu_type is not None:
        id += f"-{resources.gpu_count}x{resources.gpu_type}"
        name += f", {resources.gpu_count} {resources.gpu_type}"
    return InstanceType(
        id=id,
        name=name,
        memory_limit_mib=resources.memory_mib,
        millicpu_limit=resources.millicpu,
        gpu_count=resources.gpu_count,
        gpu_type=resources.gpu_type,
        gpu_memory_limit_mib=gpu_memory,
    )


def _memory_text(mib: int) -> str:
    return f"{mib} MiB" if mib % 1024 else f"{mib // 1024} GiB"
