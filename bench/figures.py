"""The results of a run: samples per gateway and number of connections, memory, streams, and single facts by name."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

from bench.load import Load
from bench.usage import Usage

GOVERNED = "tollgate_governed"
OPEN = "tollgate_open"
BARE = "tollgate_bare"
OURS = (GOVERNED, OPEN, BARE)
BUILT = "nginx_governed"
"""A gateway that an operator could build of nginx, Lua and Redis."""
BUDGETS = "litellm_budgets"
CALLS_ALONE = (OPEN, BARE, BUILT, BUDGETS)
"""Subjects that only small completions are measured of."""
COMPARED_AT = 64
"""Connections at which the goals are evaluated."""


class NotMeasuredError(Exception):
    """This run has no figure for it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of one run: the median of its rounds, and the least and the most of them.

    Of five rounds, these two enclose the true median with a probability of 94 % (1 - 2 / 2**5), however the rounds are
    distributed. A figure that a run takes once has no spread.
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> "Measured":
        return cls(statistics.median(rounds), min(rounds), max(rounds))

    @classmethod
    def ratio(cls, above: Sequence[float], below: Sequence[float]) -> "Measured":
        """The ratios of the rounds, each with its own neighbour: what drifts over a run cancels out."""
        return cls.of([one / other for one, other in zip(above, below, strict=False)])


@dataclass(frozen=True, slots=True)
class Cost:
    """The CPU of a part of a gateway per request: CPU µs, those in user mode and in the kernel, context switches."""

    cpu_us: float = 0.0
    user_us: float = 0.0
    system_us: float = 0.0
    switches: float = 0.0

    @classmethod
    def of(cls, usage: Usage, requests: int) -> "Cost":
        return cls(
            usage.cpu_s * 1e6 / requests,
            usage.user_s * 1e6 / requests,
            usage.system_s * 1e6 / requests,
            usage.switches / requests,
        )

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.cpu_us + other.cpu_us,
            self.user_us + other.user_us,
            self.system_us + other.system_us,
            self.switches + other.switches,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: the load's figures, and the cost per request of each part. Of peers: no more than two."""

    load: Load
    worker: Cost
    supervisor: Cost = Cost()
    redis: Cost = Cost()
    control: Cost = Cost()

    @property
    def proxy(self) -> Cost:
        return self.worker + self.supervisor

    @property
    def whole(self) -> Cost:
        """The cost of all processes that a call needs."""
        return self.proxy + self.redis + self.control


@dataclass(slots=True)
class Figures:
    """Everything measured of one gateway. `samples`: by number of connections, a sample per round."""

    name: str
    version: str
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    system_calls: float = nan
    idle_mib: float = 0.0
    loaded_mib: float = 0.0
    after_mib: float = 0.0
    idle_cpu_ms_per_s: float | None = None
    streams: dict[str, float] = field(default_factory=dict)

    def rounds(self, connections: int, of: Callable[[Sample], float]) -> list[float]:
        """A figure per round. Raises `NotMeasuredError` if there are none."""
        samples_taken = self.samples.get(connections)
        if not samples_taken:
            raise NotMeasuredError(self.name)
        return [of(sample) for sample in samples_taken]

    def median(self, connections: int, of: Callable[[Sample], float]) -> float:
        """The median over the rounds, without those in which the figure is unknown (NaN)."""
        figures = [figure for figure in self.rounds(connections, of) if not isnan(figure)]
        return statistics.median(figures) if figures else nan

    def cpu_us(self, connections: int = COMPARED_AT) -> list[float]:
        """CPU µs per request of the proxy's processes, per round."""
        return self.rounds(connections, lambda sample: sample.proxy.cpu_us)

    def whole_us(self, connections: int = COMPARED_AT) -> list[float]:
        """CPU µs per request of all processes, per round."""
        return self.rounds(connections, lambda sample: sample.whole.cpu_us)

    def per_stream(self, name: str) -> float:
        if name not in self.streams:
            raise NotMeasuredError(f"streams of {self.name}")
        return self.streams[name]


@dataclass(slots=True)
class Findings:
    """Everything measured in one run.

    `missing`: what was not, and why. `facts`: figures by name, one per round. `took`: seconds per part, in order.
    """

    machine: str
    tools: Sequence[str]
    figures: dict[str, Figures] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)
    foreign_shares: list[float] = field(default_factory=list)

    def of(self, name: str) -> Figures:
        if name not in self.figures:
            raise NotMeasuredError(name)
        return self.figures[name]

    def rounds(self, name: str) -> list[float]:
        if name not in self.facts:
            raise NotMeasuredError(name)
        return self.facts[name]
