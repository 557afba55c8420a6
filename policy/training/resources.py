"""The needs of a job's node and the capacity of a host.

See docs/reference/training.md#instance-types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.training.wire import count, members, optional_text, text


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources that each node of a job gets. `gpu_type` None: `gpu_count` is 0."""

    millicpu: int
    memory_mib: int
    gpu_count: int = 0
    gpu_type: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "NodeResources":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        return cls(
            count(wire, "millicpu"),
            count(wire, "memory_mib"),
            count(wire, "gpu_count"),
            optional_text(wire, "gpu_type"),
        )


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of a backend, as if no job ran on it. `gpus`: how many there are of each type."""

    name: str
    millicpu: int
    memory_mib: int
    max_nodes: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    gpu_memory_mib: Mapping[str, int] = field(default_factory=dict)
    """The memory of one GPU of each type, where it is known."""

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Host":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        gpus = members(wire, "gpus")
        gpu_memory_mib = members(wire, "gpu_memory_mib")
        return cls(
            name=text(wire, "name"),
            millicpu=count(wire, "millicpu"),
            memory_mib=count(wire, "memory_mib"),
            max_nodes=count(wire, "max_nodes"),
            gpus={type: count(gpus, type) for type in gpus},
            gpu_memory_mib={type: count(gpu_memory_mib, type) for type in gpu_memory_mib},
        )
