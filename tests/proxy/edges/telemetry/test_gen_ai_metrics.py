"""Calls to upstreams as `gen_ai.client.*` metrics: names, attributes, buckets, bounds."""

from dataclasses import replace
from typing import Any

from policy.billing import Tokens
from policy.endpoints import Target
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.answers import EndCause
from proxy.edges.telemetry.gen_ai_counts import DURATION_BOUNDS_S, TOKEN_BOUNDS, GenAiCounts
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor.bounded_labels import OTHER
from proxy.edges.telemetry.supervisor.gen_ai_metrics import DURATION, TOKENS
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from tests.proxy.edges.telemetry.test_metrics import Line, call, route_of

ROUTE = {
    "tollgate.workspace": "ws",
    "tollgate.slug": "org/m",
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt",
}


def to_slug(
    slug: str = "org/m", target: Target | None = None, path: str = "/v1/chat/completions", **more: Any
) -> RequestReport:
    labels = CallLabels(method="POST", path=path, workspace_id="ws", external_entity_id="acme", slug=slug)
    tokens = more.pop("tokens", None)
    return replace(call(tokens=tokens), labels=labels, route=route_of(None, target, slug), **more)


def totals_of(*calls: RequestReport, max_slugs: int = 100) -> MetricTotals:
    """The counts of two workers, one of which has died since."""
    totals = MetricTotals(100, lambda: (), max_slugs)
    for number in (0, 1):
        worker = WorkerMetrics(Line(totals, number), gen_ai=GenAiCounts())
        for one in calls[number::2]:
            worker.finished(one)
        worker.close()
    totals.forget_gauges(1)
    return totals


def series(totals: MetricTotals, metric: str) -> dict[tuple[tuple[str, str], ...], tuple[float, float]]:
    """Count and sum of each set of attributes."""
    [family] = [one for one in totals.exported[1].collect() if one.name == metric]
    figures: dict[tuple[tuple[str, str], ...], tuple[float, float]] = {}
    for sample in family.samples:
        key = tuple(sorted(sample.labels.items()))
        if sample.name.endswith("_count"):
            count = sample.value
        elif sample.name.endswith("_sum"):
            figures[key] = (count, sample.value)
    return figures


def place(**more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((ROUTE | {name.replace("__", "."): value for name, value in more.items()}).items()))


async def test_tokens_and_duration_of_a_call_have_the_conventions_attributes() -> None:
    totals = totals_of(*[to_slug(tokens=Tokens(input=100, output=7, cached_input=40), upstream_s=0.25)] * 3)
    assert series(totals, DURATION) == {place(): (3, 0.75)}
    assert series(totals, TOKENS) == {
        place(gen_ai__token__type="input"): (3, 300),
        place(gen_ai__token__type="output"): (3, 21),
    }


async def test_bounds_and_units_are_those_of_the_conventions() -> None:
    totals = totals_of(to_slug(tokens=Tokens(input=4, output=5), upstream_s=0.02))
    families = {family.name: family for family in totals.exported[1].collect()}
    assert (families[DURATION].unit, families[TOKENS].unit) == ("s", "{token}")
    assert len(DURATION_BOUNDS_S) == len(TOKEN_BOUNDS) == 14
    assert (TOKEN_BOUNDS[0], TOKEN_BOUNDS[-1]) == (1, 67_108_864)
    buckets = {
        (sample.labels.get("gen_ai.token.type"), sample.labels["le"]): sample.value
        for sample in families[TOKENS].samples
        if "le" in sample.labels
    }
    assert (buckets["input", "1"], buckets["input", "4"]) == (0, 1), "a bound belongs to the bucket below it"
    assert (buckets["output", "4"], buckets["output", "16"]) == (0, 1)


async def test_errors_have_their_type_and_no_tokens_that_were_not_reported() -> None:
    totals = totals_of(
        to_slug(status=502, end_cause=EndCause("UPSTREAM_UNREACHABLE")),
        to_slug(status=400),
        to_slug(status=200, tokens=Tokens()),
    )
    assert series(totals, DURATION).keys() == {
        place(error__type="UPSTREAM_UNREACHABLE"),
        place(error__type="400"),
        place(),
    }
    assert series(totals, TOKENS) == {}


async def test_calls_that_reached_no_upstream_and_direct_calls_are_not_counted() -> None:
    totals = totals_of(to_slug(status=429, upstream_s=0.0), call(slug="", model_id="mdl_1"))
    assert series(totals, DURATION) == {}


async def test_a_changed_target_is_another_series_and_a_model_without_a_name_is_the_slug() -> None:
    platform = Target("PLATFORM", model_id="mdl_1")
    totals = totals_of(to_slug(), to_slug(target=Target("ANTHROPIC", target_model="other")), to_slug(target=platform))
    models = {dict(key)["gen_ai.request.model"] for key in series(totals, DURATION)}
    assert models == {"gpt", "other", "org/m"}


async def test_the_number_of_targets_is_bounded_and_nothing_is_lost() -> None:
    calls = [to_slug(f"org/{number}", Target("VENDOR_B", target_model=f"m{number}")) for number in range(20)]
    totals = totals_of(*calls, max_slugs=5)
    figures = series(totals, DURATION)
    assert len(figures) == 6
    assert sum(count for count, _ in figures.values()) == 20
    [other] = [count for key, (count, _) in figures.items() if dict(key)["tollgate.slug"] == OTHER]
    assert other == 15


async def test_a_deleted_slug_leaves_no_series_and_gives_its_place_back() -> None:
    totals = totals_of(to_slug(tokens=Tokens(input=1, output=1)), max_slugs=1)
    totals.forget_slugs({"org/m"})
    assert series(totals, DURATION) == series(totals, TOKENS) == {}
    worker = WorkerMetrics(Line(totals), gen_ai=GenAiCounts())
    worker.finished(to_slug("org/n"))
    worker.close()
    [key] = series(totals, DURATION)
    assert dict(key)["tollgate.slug"] == "org/n"


async def test_a_worker_that_sends_no_metrics_counts_nothing_for_them() -> None:
    totals = MetricTotals(100, lambda: ())
    worker = WorkerMetrics(Line(totals))
    worker.finished(to_slug(tokens=Tokens(input=1, output=1)))
    worker.close()
    assert series(totals, DURATION) == {}


async def test_every_metric_can_be_sent() -> None:
    """The types that the bridge knows."""
    totals = totals_of(to_slug())
    assert {family.type for source in totals.exported for family in source.collect()} == {
        *("counter", "gauge", "histogram"),
    }
