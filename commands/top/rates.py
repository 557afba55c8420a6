"""Rates between two looks at the proxies' metrics: calls, errors, refusals and tokens per second. Pure.

See docs/reference/metrics.md#proxy-metrics.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commands.records.metrics_sample import ENDED, IN_FLIGHT, PARKED, REQUESTS, TOKENS, Labels, Sample


@dataclass(slots=True)
class Traffic:
    """The traffic of the whole, of a group or of a slug, per second. Every call counts, also one whose caller left."""

    calls: float = 0.0
    errors: float = 0.0
    """Calls answered 5xx, but for 529."""
    refused: float = 0.0
    """Calls answered 429 by a limit, or 529 for want of capacity."""
    tokens: float = 0.0

    def count(self, status: str, calls: float) -> None:
        self.calls += calls
        if status in ("429", "529"):
            self.refused += calls
        elif status.startswith("5"):
            self.errors += calls

    def to_json(self) -> dict[str, float]:
        figures = {"calls": self.calls, "errors": self.errors, "refused": self.refused, "tokens": self.tokens}
        return {f"{name}_per_second": round(value, 3) for name, value in figures.items()}


def _by_name() -> dict[tuple[str, str], Traffic]:
    return defaultdict(Traffic)


@dataclass(slots=True)
class Rates:
    """The rates between two looks, over all proxies."""

    whole: Traffic = field(default_factory=Traffic)
    groups: dict[tuple[str, str], Traffic] = field(default_factory=_by_name)
    """Traffic by workspace id and external id; the latter is empty where no group is known."""
    slugs: dict[tuple[str, str], Traffic] = field(default_factory=_by_name)
    """Traffic by workspace id and slug."""
    statuses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_flight: int = 0
    parked: int = 0

    def add(self, before: Sample, after: Sample) -> None:
        """Add what one proxy did between two looks."""
        seconds = max(after.at_s - before.at_s, 1e-3)
        for metric, labels, grown in _growth(before, after):
            self._count(metric, dict(labels), grown / seconds)

    def to_json(self) -> dict[str, Any]:
        """One object, the busiest first."""
        statuses = {status: round(calls, 3) for status, calls in sorted(self.statuses.items())}
        now = {"in_flight": self.in_flight, "parked": self.parked, "statuses_per_second": statuses}
        listed = {
            "groups": _listed("external_entity_id", self.groups),
            "slugs": _listed("model_slug", self.slugs),
        }
        return self.whole.to_json() | now | listed

    def _count(self, metric: str, labels: Mapping[str, str], per_second: float) -> None:
        workspace = labels.get("workspace", "")
        status = labels.get("status_code", "")
        group = self.groups[workspace, labels.get("external_entity_id", "")]
        slug = self.slugs[workspace, labels.get("model_slug", "")]
        if metric == REQUESTS:
            self.statuses[status] += per_second
        for traffic in (self.whole, group, slug):
            if metric == REQUESTS:
                traffic.count(status, per_second)
            else:
                traffic.tokens += per_second


def busiest(traffic: Mapping[tuple[str, str], Traffic]) -> list[tuple[tuple[str, str], Traffic]]:
    """The most calls first, then the most tokens."""
    return sorted(traffic.items(), key=lambda item: (-item[1].calls, -item[1].tokens, item[0]))


def has_restarted(before: Sample, after: Sample) -> bool:
    """Return whether the proxy began to count anew. Only a counter that is never dropped tells."""
    return after.value(ENDED) < before.value(ENDED)


def rates_of(pairs: Iterable[tuple[Sample | None, Sample]]) -> Rates:
    """All proxies together: what each did since its earlier look, and what it does now."""
    rates = Rates()
    for before, after in pairs:
        rates.in_flight += int(after.value(IN_FLIGHT))
        rates.parked += int(after.value(PARKED))
        if before is not None:
            rates.add(before, after)
    return rates


def _growth(before: Sample, after: Sample) -> Iterator[tuple[str, Labels, float]]:
    """Return how much each counter grew. After a restart all began at 0; alone, one that was dropped and came back."""
    values = {} if has_restarted(before, after) else before.values
    for (metric, labels), value in after.values.items():
        earlier = values.get((metric, labels), 0.0)
        grown = value - earlier if value >= earlier else value
        if metric in (REQUESTS, TOKENS) and grown:
            yield metric, labels, grown


def _listed(name: str, traffic: Mapping[tuple[str, str], Traffic]) -> list[dict[str, Any]]:
    return [{"workspace": key[0], name: key[1], **rate.to_json()} for key, rate in busiest(traffic)]
