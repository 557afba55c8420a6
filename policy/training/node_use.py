"""The use that a job's node makes of its machine, as a trainer measures it.

See docs/reference/training.md#logs-and-metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policy.training.wire import count, text


@dataclass(frozen=True, slots=True)
class NodeSample:
    """The use of one node at one time. `cpu_millicores`: since the sample before.

    `storage_bytes` None: there are too many files to add up. `storage_total_bytes`: of the disk that they are on.
    """

    job_id: str
    attempt: int
    rank: int
    timestamp_ms: int
    cpu_millicores: int
    memory_bytes: int
    storage_bytes: int | None
    storage_total_bytes: int | None

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "NodeSample":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        return cls(
            text(wire, "job_id"),
            count(wire, "attempt"),
            count(wire, "rank"),
            count(wire, "timestamp_ms"),
            count(wire, "cpu_millicores"),
            count(wire, "memory_bytes"),
            _optional_count(wire, "storage_bytes"),
            _optional_count(wire, "storage_total_bytes"),
        )


def _optional_count(wire: Mapping[str, Any], name: str) -> int | None:
    return None if wire[name] is None else count(wire, name)
