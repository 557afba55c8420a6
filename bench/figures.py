"""The results of a run: samples per gateway and number of connections, memory, streams, and single facts by name."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.load import Load

GOVERNED, OPEN, BARE = "tollgate_governed", "tollgate_open", "tollgate_bare"
OURS = (GOVERNED, OPEN, BARE)
COMPARED_AT = 64
"""Connections at which the goals are evaluated."""


class NotMeasuredError(Exception):
    """This run has no figure for it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: the load's figures, and CPU µs per request of each part. A peer counts as `worker` only."""

    load: Load
    worker_us: float
    supervisor_us: float = 0.0
    redis_us: float = 0.0
    control_us: float = 0.0

    @property
    def proxy_us(self) -> float:
        return self.worker_us + self.supervisor_us


@dataclass(slots=True)
class Figures:
    """Everything measured of one gateway."""

    name: str
    version: str
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    idle_mib: float = 0.0
    loaded_mib: float = 0.0
    after_mib: float = 0.0
    idle_cpu_ms_per_s: float | None = None
    streams: dict[str, float] = field(default_factory=dict)

    def median(self, connections: int, of: Callable[[Sample], float]) -> float:
        """The median over the rounds. Raises `NotMeasuredError` if there are none."""
        taken = self.samples.get(connections)
        if not taken:
            raise NotMeasuredError(self.name)
        return statistics.median(of(sample) for sample in taken)

    def cpu_us(self, connections: int = COMPARED_AT) -> float:
        """CPU µs per request of the proxy's processes."""
        return self.median(connections, lambda sample: sample.proxy_us)

    def per_stream(self, name: str) -> float:
        if name not in self.streams:
            raise NotMeasuredError(f"streams of {self.name}")
        return self.streams[name]


@dataclass(slots=True)
class Findings:
    """Everything measured in one run. `missing`: what was not, and why. `took`: seconds per part, in order."""

    machine: str
    tools: Sequence[str]
    figures: dict[str, Figures] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)

    def of(self, name: str) -> Figures:
        if name not in self.figures:
            raise NotMeasuredError(name)
        return self.figures[name]

    def fact(self, name: str) -> float:
        if name not in self.facts:
            raise NotMeasuredError(name)
        return self.facts[name]
