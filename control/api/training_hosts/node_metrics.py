"""The members of a job's metrics that the original's clients read: what its nodes use of their machines.

See docs/reference/training.md#logs-and-metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field

from control.api.protocol.schemas import INTEGRAL, ResponseV1, TimeText
from control.records.times import time_text
from control.records.training import StoredSample

StepSeconds = Annotated[int, Field(ge=1, le=86_400), INTEGRAL]


class MeasuredValueV1(ResponseV1):
    """A value, and when it was measured."""

    timestamp: TimeText
    value: float


class StorageUseV1(ResponseV1):
    """The use of a disk. `utilization`: the part of the disk, 0 to 1."""

    usage_bytes: list[MeasuredValueV1]
    utilization: list[MeasuredValueV1]


class NodeUseV1(ResponseV1):
    """The use that a node makes of its machine, the oldest first. GPUs are not measured."""

    cpu_usage: list[MeasuredValueV1] = Field(description="In processors.")
    cpu_memory_usage_bytes: list[MeasuredValueV1]
    gpu_utilization: dict[str, list[MeasuredValueV1]] = Field(description="Always empty.")
    gpu_memory_usage_bytes: dict[str, list[MeasuredValueV1]] = Field(description="Always empty.")
    ephemeral_storage: StorageUseV1 = Field(description="The files in the node's own directory.")


class NodeMetricsV1(ResponseV1):
    """The use that one node makes. `node_id`: as `g00r0`."""

    node_id: str
    metrics: NodeUseV1


class JobUseV1(NodeUseV1):
    """The use that a job's nodes make of their machines; besides `per_node_metrics`, node 0."""

    cache: StorageUseV1 | None = Field(description="Always null: caches are not measured.")
    per_node_metrics: list[NodeMetricsV1]


def use_members(samples: Sequence[StoredSample]) -> dict[str, Any]:
    """The members of `JobUseV1`, of samples by rank and time."""
    by_rank = {rank: _use(list(group)) for rank, group in groupby(samples, key=lambda sample: sample.rank)}
    nodes = [{"node_id": f"g00r{rank}", "metrics": use} for rank, use in by_rank.items()]
    return {**(by_rank.get(0) or _use(())), "cache": None, "per_node_metrics": nodes}


def _use(samples: Sequence[StoredSample]) -> Mapping[str, Any]:
    times = [time_text(sample.timestamp_ms) for sample in samples]

    def series(figure: Callable[[StoredSample], float | None]) -> list[dict[str, Any]]:
        values = zip(times, map(figure, samples), strict=True)
        return [{"timestamp": time, "value": value} for time, value in values if value is not None]

    return {
        "cpu_usage": series(lambda sample: sample.cpu_millicores / 1000),
        "cpu_memory_usage_bytes": series(lambda sample: sample.memory_bytes),
        "gpu_utilization": {},
        "gpu_memory_usage_bytes": {},
        "ephemeral_storage": {
            "usage_bytes": series(lambda sample: sample.storage_bytes),
            "utilization": series(_utilization),
        },
    }


def _utilization(sample: StoredSample) -> float | None:
    if sample.storage_bytes is None or not sample.storage_total_bytes:
        return None
    return round(sample.storage_bytes / sample.storage_total_bytes, 6)
