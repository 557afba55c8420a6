"""Sums of the machine's calls to upstreams as the `gen_ai.client.*` metrics of OpenTelemetry's conventions.

They are sent by OTLP alone: the metrics for Prometheus have other names. The number of their series is bounded.

See docs/reference/metrics.md#gen_ai.
"""

from collections.abc import Iterator, Sequence, Set
from itertools import accumulate
from typing import Any

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.edges.telemetry.gen_ai_counts import DURATION_BOUNDS_S, TOKEN_BOUNDS
from proxy.edges.telemetry.supervisor.bounded_labels import OTHER, BoundedLabels

DURATION = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"
_ATTRIBUTES = (
    *("tollgate.workspace", "tollgate.slug"),
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
)
_SLUG = _ATTRIBUTES.index("tollgate.slug")


class _Histogram:
    """A histogram per set of attributes."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._edges = [*map(str, bounds), "+Inf"]
        self.sums: dict[tuple[str, ...], tuple[list[int], float]] = {}

    def add(self, key: tuple[str, ...], buckets: list[int], total: float) -> None:
        if any(buckets):
            counts, before = self.sums.get(key, ([0] * len(buckets), 0))
            self.sums[key] = (list(map(int.__add__, counts, buckets)), before + total)

    def forget(self, slugs: Set[str]) -> None:
        for key in [key for key in self.sums if key[_SLUG] in slugs]:
            del self.sums[key]

    def family(self, name: str, about: str, unit: str, last_attribute: str) -> Metric:
        """All of them. `last_attribute` is absent where it is empty."""
        family = HistogramMetricFamily(name, about, labels=[*_ATTRIBUTES, last_attribute])
        family.unit = unit
        plain = HistogramMetricFamily(name, about, labels=_ATTRIBUTES)
        for key, (counts, total) in list(self.sums.items()):
            buckets = list(zip(self._edges, accumulate(counts), strict=True))
            if key[-1]:
                family.add_metric(key, buckets, total)
            else:
                plain.add_metric(key[:-1], buckets, total)
        family.samples += plain.samples
        return family


class GenAiMetrics(Collector):
    """Adds up what workers send. May be collected in a thread beside `add`."""

    def __init__(self, max_targets: int) -> None:
        """`max_targets`: the most slugs, each with the provider and the model that it had, that are distinguished."""
        self._targets = BoundedLabels(max_targets)
        self._durations = _Histogram(DURATION_BOUNDS_S)
        self._tokens = _Histogram(TOKEN_BOUNDS)

    def add(self, rows: Sequence[list[Any]]) -> None:
        """Add the rows of `GenAiCounts.drain`."""
        for workspace, slug, operation, provider, model, error, durations, duration_s, *tokens in rows:
            target = "\n".join((slug, provider, model))
            if self._targets.bounded(workspace, target) == OTHER:
                slug, provider, model = (OTHER, OTHER, OTHER)
            key = (workspace, slug, operation, provider, model)
            self._durations.add((*key, error), durations, duration_s)
            inputs, input_tokens, outputs, output_tokens = tokens
            self._tokens.add((*key, "input"), inputs, input_tokens)
            self._tokens.add((*key, "output"), outputs, output_tokens)

    def forget_slugs(self, slugs: Set[str]) -> None:
        """Remove these slugs' series, and free the values that only they used."""
        self._durations.forget(slugs)
        self._tokens.forget(slugs)
        keys = self._durations.sums
        self._targets.keep((key[0], "\n".join((key[1], *key[3:5]))) for key in keys if key[_SLUG] != OTHER)

    def collect(self) -> Iterator[Metric]:
        yield self._durations.family(DURATION, "GenAI operation duration.", "s", "error.type")
        yield self._tokens.family(TOKENS, "Number of input and output tokens used.", "{token}", "gen_ai.token.type")
