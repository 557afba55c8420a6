"""Workers' counts arrive in the machine's totals, with names and labels.

See docs/reference/metrics.md.
"""

import asyncio
import math
from collections.abc import Set
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from policy.billing import Tokens
from policy.endpoints import Target
from policy.limits.alerts import ReachedLimit
from policy.limits.effective import Plan
from policy.snapshot import EndpointRow
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.accounting.slug_prices import SlugPrices
from proxy.capacity.worker_capacity import Capacity, CapacityLimits
from proxy.directory_values import SlugRoute
from proxy.edges.telemetry.listed_calls import ListedCalls
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor.label_sweep import LabelSweep
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from proxy.refusals import ShedError
from tests.waiting import eventually


class Line:
    """Sends worker `number`'s counts to the totals, through JSON as the channel does."""

    def __init__(self, totals: MetricTotals, number: int = 0) -> None:
        self.totals = totals
        self.number = number
        self.congested = False
        self.message_count = 0

    def counted(self, counts: dict[str, Any]) -> None:
        self.message_count += 1
        self.totals.add(self.number, orjson.loads(orjson.dumps(counts)))


def samples(totals: MetricTotals) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(totals.text()[0].decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(totals: MetricTotals, name: str, **labels: str) -> float | None:
    return samples(totals).get((name, tuple(sorted(labels.items()))))


def call(
    entity: str = "acme", status: int = 200, tokens: Tokens | None = None, slug: str = "org/m", model_id: str = ""
) -> RequestReport:
    return RequestReport(
        labels=CallLabels(
            method="", path="", workspace_id="ws", external_entity_id=entity, slug=slug, model_id=model_id
        ),
        ended_at_ms=0,
        request_id="",
        status=status,
        end_cause=None,
        request_bytes=0,
        response_bytes=0,
        bill=None if tokens is None else Bill(tokens),
        event_key=None,
        duration_s=0.3,
        ours_s=0.0004,
        upstream_s=0.2996,
        first_byte_s=0.02,
        route=None if model_id else route_of(None),
    )


def route_of(prices: SlugPrices | None, target: Target | None = None, slug: str = "org/m") -> SlugRoute:
    """A slug's route. Of it, metrics read the prices and the target."""
    endpoint = EndpointRow(slug, "ep_1", "ws", target or Target("VENDOR_B", target_model="gpt"))
    return SlugRoute(endpoint, Plan(slug, "grp_1", "", (), ()), prices)


@pytest.fixture
def totals() -> MetricTotals:
    return MetricTotals(3, lambda: [("tollgate_snapshot_age_seconds", "age", 1.5)])


async def test_call_is_counted_with_its_labels(totals: MetricTotals) -> None:
    metrics = WorkerMetrics(Line(totals))
    metrics.finished(call(tokens=Tokens(input=100, output=7, cached_input=40)))
    metrics.finished(call(status=429))
    metrics.flush()
    where = {"workspace": "ws", "external_entity_id": "acme", "model_slug": "org/m"}
    requests = "platform_model_api_inference_requests_total"
    spend = "platform_model_api_tokens_total"
    assert value(totals, requests, **where, status_code="200") == 1
    assert value(totals, requests, **where, status_code="429") == 1
    kinds = {kind: value(totals, spend, **where, kind=kind) for kind in ("uncached_input", "cached_input", "output")}
    assert kinds == {"uncached_input": 60, "cached_input": 40, "output": 7}


async def test_calls_counted_together_count_as_one_by_one() -> None:
    random = Random(7)
    calls = [
        replace(
            call(random.choice("abc"), random.choice((200, 201, 429, 502)), slug=random.choice(("", "org/m", "org/n"))),
            bill=random.choice((None, Bill(Tokens(input=random.randrange(9, 99), output=7, cached_input=4)))),
            first_byte_s=random.choice((None, 0.01, random.uniform(0, 90))),
            duration_s=random.uniform(0, 2000),
            ours_s=random.choice((0.0, 0.0001, 0.3)),
        )
        for _ in range(500)
    ]
    sample_sets = []
    for together in (1, 64, 500):
        totals = MetricTotals(100, lambda: ())
        logged: list[RequestReport] = []
        metrics = WorkerMetrics(Line(totals), logged.extend)
        for number, one in enumerate(calls, 1):
            metrics.finished(one)
            if number % together == 0:
                metrics.flush()
        metrics.close()
        assert logged == calls
        sample_sets.append({key: round(figure, 6) for key, figure in samples(totals).items()})
    assert sample_sets[0] == sample_sets[1] == sample_sets[2]


async def test_every_metric_has_its_documented_name(totals: MetricTotals) -> None:
    metrics = WorkerMetrics(Line(totals))
    metrics.finished(call(tokens=Tokens(input=1, output=1)))
    metrics.limit_decision(("refused", "REQUEST", "MINUTE"))
    metrics.redis_round_trip(0.0002)
    metrics.decided_alone()
    capacity = Capacity(CapacityLimits(max_held_bytes=3), in_flight=1)
    load = capacity.enter()
    load.claim("ws", "k")
    load.hold(3)
    load.park()
    with pytest.raises(ShedError):
        load.hold(1)
    metrics.watch(capacity)
    metrics.flush()
    metrics.flush()
    assert value(totals, "tollgate_limit_decisions_total", outcome="refused", type="REQUEST", unit="MINUTE") == 1
    assert value(totals, "tollgate_local_limit_decisions_total") == 1
    assert value(totals, "tollgate_shed_requests_total", resource="memory", scope="worker") == 1
    assert value(totals, "tollgate_inflight_requests") == 2
    assert value(totals, "tollgate_parked_requests") == 1
    assert value(totals, "tollgate_held_bytes") == 3
    assert value(totals, "tollgate_snapshot_age_seconds") == 1.5
    for name in ("request_duration", "overhead", "time_to_first_byte", "redis_round_trip"):
        assert value(totals, f"tollgate_{name}_seconds_count") == 1, name


async def test_histogram_counts_values_up_to_each_bound(totals: MetricTotals) -> None:
    metrics = WorkerMetrics(Line(totals))
    for seconds in (0.0001, 0.00011, 9.0):
        metrics.redis_round_trip(seconds)
    metrics.flush()
    name = "tollgate_redis_round_trip_seconds"
    assert value(totals, f"{name}_bucket", le="0.0001") == 1
    assert value(totals, f"{name}_bucket", le="0.00025") == 2
    assert value(totals, f"{name}_bucket", le="0.5") == 2
    assert value(totals, f"{name}_bucket", le="+Inf") == 3
    total = value(totals, f"{name}_sum")
    assert total is not None
    assert math.isclose(total, 9.00021)


async def test_limit_that_is_reached_is_sent_once_with_the_next_counts() -> None:
    """Counts go to the supervisor as JSON."""
    limits: list[Any] = []

    class Channel:
        congested = False

        def counted(self, counts: dict[str, Any]) -> None:
            limits.append(orjson.loads(orjson.dumps(counts))["limits_reached"])

    metrics = WorkerMetrics(Channel())
    for _ in range(3):
        metrics.limit_reached(ReachedLimit("ws", "grp_1", "acme/chat", "REQUEST", "DAY"))
    metrics.flush()
    metrics.close()
    assert limits == [[["ws", "grp_1", "acme/chat", "REQUEST", "DAY", ""]], []]


async def test_counting_and_sending_keep_each_container(totals: MetricTotals) -> None:
    """One made during a burst would hold the memory that the burst's objects lay in (decision 0052)."""
    metrics = WorkerMetrics(Line(totals))

    def containers() -> dict[str, int]:
        histograms = [(name, one.counts) for name, one in vars(metrics)["_histograms"].items()]
        attributes = [(name, one) for name, one in vars(metrics).items() if isinstance(one, (list, dict))]
        return {name: id(one) for name, one in histograms + attributes}

    before = containers()
    metrics.finished(call())
    metrics.redis_round_trip(0.001)
    metrics.limit_decision(("admitted", "", ""))
    metrics.usage_not_reported("missing")
    metrics.flush()
    assert value(totals, "tollgate_redis_round_trip_seconds_count") == 1
    assert containers() == before
    metrics.flush()
    assert value(totals, "tollgate_redis_round_trip_seconds_count") == 1  # nothing is sent twice


async def test_counts_are_summed_over_workers_and_survive_dead_ones(totals: MetricTotals) -> None:
    workers = [WorkerMetrics(Line(totals, number)) for number in range(2)]
    for metrics in workers:
        metrics.finished(call())
        metrics.redis_round_trip(0.001)
        metrics.watch(Capacity(in_flight=3))
        metrics.flush()
    assert value(totals, "tollgate_inflight_requests") == 6
    totals.forget_gauges(0)
    assert value(totals, "tollgate_inflight_requests") == 3
    assert value(totals, "tollgate_redis_round_trip_seconds_count") == 2
    replacement = WorkerMetrics(Line(totals, 0))
    replacement.finished(call())
    replacement.flush()
    labels = {"workspace": "ws", "external_entity_id": "acme", "model_slug": "org/m", "status_code": "200"}
    assert value(totals, "platform_model_api_inference_requests_total", **labels) == 3


async def test_entities_beyond_the_bound_count_as_other(totals: MetricTotals) -> None:
    metrics = WorkerMetrics(Line(totals))
    for number in range(10):
        metrics.finished(call(entity=f"e{number}"))
    metrics.flush()
    counted = {
        dict(labels)["external_entity_id"]: count
        for (name, labels), count in samples(totals).items()
        if name == "platform_model_api_inference_requests_total"
    }
    assert counted == {"e0": 1, "e1": 1, "e2": 1, "_other": 7}


def labels_of(totals: MetricTotals, label: str) -> list[str]:
    """One label of each series of calls."""
    name = "platform_model_api_inference_requests_total"
    return [dict(labels)[label] for (series, labels) in samples(totals) if series == name]


def counts(*calls: tuple[str, str, str]) -> dict[str, Any]:
    """Return a worker's message after one call each of (workspace, entity, slug)."""
    call_counts = [[*where, 200, 1, 5, 0, 2] for where in calls]
    nothing: dict[str, Any] = {"decisions": [], "sheds": [], "unreported": {}, "async": {}}
    nothing |= {"decided_alone": 0, "overrun_tokens": 0, "spend_overruns": 0, "clock_steps": [], "spend": []}
    return {"calls": call_counts, "histograms": {}, "gauges": {}} | nothing


def test_slugs_beyond_the_bound_count_as_other_over_all_workers() -> None:
    totals = MetricTotals(100, lambda: (), max_slugs=20)
    for number in range(60):
        totals.add(number % 2, counts(("ws", "acme", f"org/m{number}")))
    assert sorted(labels_of(totals, "model_slug")) == sorted([f"org/m{number}" for number in range(20)] + ["_other"])
    where = {"workspace": "ws", "external_entity_id": "acme", "model_slug": "_other"}
    assert value(totals, "platform_model_api_inference_requests_total", **where, status_code="200") == 40
    assert value(totals, "platform_model_api_tokens_total", **where, kind="output") == 80


def test_one_workspace_cannot_use_up_the_labels() -> None:
    totals = MetricTotals(200, lambda: (), max_slugs=200)
    for number in range(300):
        totals.add(0, counts(("greedy", f"e{number}", f"greedy/{number}")))
    for number in range(3):
        totals.add(0, counts(("modest", f"m{number}", f"modest/{number}")))
    mine = [slug for slug in labels_of(totals, "model_slug") if slug.startswith("modest/")]
    assert mine == ["modest/0", "modest/1"]
    assert {"m0", "m1"} < set(labels_of(totals, "external_entity_id"))
    assert len(labels_of(totals, "model_slug")) == 200 + 1 + 2 + 1


async def test_direct_call_is_counted_under_its_models_id(totals: MetricTotals) -> None:
    metrics = WorkerMetrics(Line(totals))
    metrics.finished(call(entity="", slug="", model_id="mdl_1"))
    metrics.close()
    where = {"workspace": "ws", "external_entity_id": "", "model_slug": "mdl_1"}
    assert value(totals, "platform_model_api_inference_requests_total", **where, status_code="200") == 1


async def test_series_of_a_deleted_slug_are_removed_after_a_quiet_time() -> None:
    now_s = 1000.0
    totals = MetricTotals(60, lambda: (), max_slugs=60, clock=lambda: now_s)
    live_slugs = [("ws", "acme", "org/kept"), ("ws", "acme", "org/idle")]
    totals.add(0, counts(*live_slugs, *(("ws", f"e{number}", f"org/deleted-{number}") for number in range(58))))
    looked: list[set[str]] = []

    class Policy:
        def callable_among(self, names: Set[str]) -> Set[str]:
            looked.append(set(names))
            return {"org/idle", "org/kept"} & names

    task = asyncio.create_task(LabelSweep(totals, Policy(), 0.001).run())
    await asyncio.sleep(0.02)
    assert not looked
    now_s += 300
    totals.add(0, counts(("ws", "acme", "org/kept")))
    await eventually(lambda: set(labels_of(totals, "model_slug")) == {"org/kept", "org/idle"})
    task.cancel()
    await asyncio.wait([task])
    assert "org/kept" not in looked[0]
    where = {"workspace": "ws", "external_entity_id": "acme", "model_slug": "org/kept"}
    assert value(totals, "platform_model_api_tokens_total", **where, kind="output") == 4
    totals.add(0, counts(*(("ws", f"n{number}", f"org/new-{number}") for number in range(58))))
    assert "_other" not in labels_of(totals, "model_slug"), "removed series have made room"
    assert "_other" not in labels_of(totals, "external_entity_id")


async def test_text_in_labels_is_escaped(totals: MetricTotals) -> None:
    metrics = WorkerMetrics(Line(totals))
    metrics.finished(call(entity='a"b\\c\nd'))
    metrics.flush()
    entities = {dict(labels).get("external_entity_id") for _, labels in samples(totals)}
    assert 'a"b\\c\nd' in entities


async def test_counts_are_sent_by_a_timer_only_when_there_are_any(totals: MetricTotals) -> None:
    line = Line(totals)
    metrics = WorkerMetrics(line)
    await asyncio.sleep(0.15)
    assert line.message_count == 0
    for _ in range(100):
        metrics.finished(call())
    assert sum(sums[0] for sums, _buckets in metrics._calls.values()) + len(metrics._finished_calls) == 100
    await eventually(lambda: line.message_count)
    assert line.message_count == 1
    assert metrics._calls == {}
    assert metrics._finished_calls == []


async def test_changed_gauge_is_sent_without_a_finished_call(totals: MetricTotals) -> None:
    line = Line(totals)
    capacity = Capacity()
    metrics = WorkerMetrics(line)
    metrics.watch(capacity)
    load = capacity.enter()
    await eventually(lambda: line.message_count == 1)
    assert value(totals, "tollgate_inflight_requests") == 1
    load.leave()
    await eventually(lambda: line.message_count == 2)
    assert value(totals, "tollgate_inflight_requests") == 0
    await asyncio.sleep(0.25)
    assert line.message_count == 2


def has_timer(metrics: WorkerMetrics) -> bool:
    return metrics._timer is not None


async def test_idle_worker_has_no_timer(totals: MetricTotals) -> None:
    line = Line(totals)
    capacity = Capacity()
    metrics = WorkerMetrics(line)
    metrics.watch(capacity)
    assert not has_timer(metrics)
    load = capacity.enter()
    assert has_timer(metrics)
    await eventually(lambda: line.message_count == 1)
    assert has_timer(metrics), "a call is in flight"
    metrics.finished(call())
    load.leave()
    await eventually(lambda: line.message_count == 2)
    assert not has_timer(metrics)
    metrics.async_requests.delivery("delivered")
    await eventually(lambda: line.message_count == 3)
    assert not has_timer(metrics)
    metrics.close()


async def test_listed_call_is_sent_when_its_second_is_over(totals: MetricTotals) -> None:
    """The timer goes on until then, though nothing else is to be sent."""
    now_s = 7.5
    line = Line(totals)
    listed = ListedCalls(100, lambda: int(now_s * 1e9))
    metrics = WorkerMetrics(line, listed=listed)
    metrics.finished(replace(call(), ended_at_ms=7_500))
    await eventually(lambda: line.message_count == 1)
    assert listed.has_calls
    now_s = 8.0
    await eventually(lambda: line.message_count == 2 and not listed.has_calls)
    metrics.close()


async def test_timer_goes_on_while_the_channel_is_congested(totals: MetricTotals) -> None:
    line = Line(totals)
    metrics = WorkerMetrics(line)
    line.congested = True
    metrics.finished(call())
    await eventually(lambda: not metrics._finished_calls)
    line.congested = False
    await eventually(lambda: line.message_count)
    assert value(totals, "tollgate_request_duration_seconds_count") == 1
    metrics.close()


async def test_close_sends_the_last_counts(totals: MetricTotals) -> None:
    line = Line(totals)
    metrics = WorkerMetrics(line)
    metrics.finished(call())
    metrics.redis_round_trip(0.001)
    metrics.close()
    assert value(totals, "tollgate_request_duration_seconds_count") == 1
    assert value(totals, "tollgate_redis_round_trip_seconds_count") == 1
    metrics.finished(call())
    await asyncio.sleep(0.25)
    assert line.message_count == 1


async def test_congested_channel_loses_no_counts(totals: MetricTotals) -> None:
    line = Line(totals)
    metrics = WorkerMetrics(line)
    line.congested = True
    metrics.finished(call())
    metrics.flush()
    assert line.message_count == 0
    line.congested = False
    metrics.finished(call())
    metrics.flush()
    assert value(totals, "tollgate_request_duration_seconds_count") == 2
