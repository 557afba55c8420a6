"""Calls of a stock client at an OpenTelemetry collector: Prometheus' sums and the bill's, whatever dies meanwhile."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import NotFoundError
from prometheus_client.parser import text_string_to_metric_families

from tests.collector import Collector, ReceivedPoint, collector
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product, kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream

TOKENS = "gen_ai.client.token.usage"
DURATION = "gen_ai.client.operation.duration"
SUMS = ("platform_model_api_tokens_total", "platform_model_api_inference_requests_total")


@pytest.fixture
def port() -> int:
    return own_port()


@pytest.fixture
def exporting(port: int, tmp_path: Path) -> Iterator[Workspace]:
    settings = {
        "TOLLGATE_METRICS": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20sesame",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }
    with started(Product(tmp_path / "data", workers=2, settings=settings)) as workspace:
        yield workspace


@pytest.fixture
async def stage(
    exporting: Workspace, session: aiohttp.ClientSession, upstream: ScriptedUpstream, numbers: Iterator[int]
) -> Stage:
    return stage_of(exporting, session, upstream, f"otlp-{next(numbers)}")


def latest_points(collecting: Collector, name: str) -> list[ReceivedPoint]:
    """The newest point of each series of a metric."""
    newest = {point.stream: point for point in collecting.points if point.name == name}
    return list(newest.values())


def total(collecting: Collector, name: str, **attributes: str) -> float:
    pairs = {(key.replace("__", "."), value) for key, value in attributes.items()}
    return sum(point.value for point in latest_points(collecting, name) if pairs <= set(point.attributes.items()))


async def scraped(stage: Stage, name: str) -> Counter[tuple[tuple[str, str], ...]]:
    """The sums of a counter as Prometheus sees them, by labels."""
    async with stage.session.get(stage.product.admin + "/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return Counter({tuple(sorted(sample.labels.items())): int(sample.value) for sample in samples})


async def stand_at_the_collector(stage: Stage, collecting: Collector) -> None:
    """Wait until the collector has the sums that Prometheus sees."""

    async def equal() -> bool:
        for name in SUMS:
            at_collector = {tuple(sorted(p.attributes.items())): p.value for p in latest_points(collecting, name)}
            if at_collector != await scraped(stage, name):
                return False
        return bool(collecting.points)

    await stage.until(equal, "the sums of Prometheus at the collector")


def check_streams(collecting: Collector) -> None:
    """No stream goes back: a smaller value has a later start."""
    latest: dict[tuple[object, ...], ReceivedPoint] = {}
    for point in collecting.points:
        before = latest.get(point.stream)
        if before is not None and point.kind != "gauge":
            assert point.time_ns > before.time_ns
            assert point.start_ns >= before.start_ns
            if point.start_ns == before.start_ns:
                assert point.value >= before.value
                assert point.count >= before.count
        latest[point.stream] = point


def tokens_of(events: list[Any]) -> tuple[int, int]:
    figures = [event["tokens"] for event in events]
    return sum(one["inputTokens"] for one in figures), sum(one["outputTokens"] for one in figures)


async def test_sums_at_the_collector_are_those_of_prometheus_and_of_the_bill(stage: Stage, port: int) -> None:
    key = await stage.key_without_limits()
    with collector(port) as collecting:
        for _ in range(3):
            await stage.ask(key)
        with pytest.raises(NotFoundError):
            await stage.ask(key, model="acme/unknown")
        await stand_at_the_collector(stage, collecting)
        events = await stage.events_of(stage.name, 3)
        at_collector = [total(collecting, TOKENS, gen_ai__token__type=type) for type in ("input", "output")]
        assert tuple(at_collector) == tokens_of(events) == (60, 30)
        _check_gen_ai(stage, collecting)

        async def two_services() -> bool:
            return len(services_of(collecting)) == 2

        await stage.until(two_services, "metrics of proxy and control")
        _check_resources(collecting)

        kill(stage.product.processes("-m proxy.worker ")[0])
        await stage.until(stage.all_parts_ready, "another worker serves")
        await stage.ask(key)
        await stand_at_the_collector(stage, collecting)
        check_streams(collecting)
        starts = {point.start_ns for point in collecting.points if point.name == TOKENS}
        assert len(starts) == 1, "the death of a worker begins no stream"

    for _ in range(2):  # nobody listens at the collector's port
        await stage.ask(key)

    async def failures() -> int:
        return (await scraped(stage, "tollgate_metric_exports_total"))[("outcome", "failed"),]

    await stage.until(failures, "exports fail, and Prometheus sees it")

    with collector(port) as collecting:
        await stand_at_the_collector(stage, collecting)
        assert total(collecting, TOKENS, gen_ai__token__type="output") == 60
        assert {point.start_ns for point in collecting.points if point.name == TOKENS} == starts
        check_streams(collecting)
        await stage.ask(key)
        assert stage.product.stop() == 0
        assert total(collecting, TOKENS, gen_ai__token__type="output") == 70, "the last export has all"
        before = collecting.points

    stage.product.start()
    with collector(port) as collecting:
        await stage.ask(key)
        await stand_at_the_collector(stage, collecting)
        assert total(collecting, TOKENS, gen_ai__token__type="output") == 10
        collecting.points[:0] = before
        check_streams(collecting)
        collecting.going_on.clear()  # the collector hangs: calls and the end do not
        await stage.ask(key)
        assert stage.product.stop() == 0
    log = stage.product.log.read_text(errors="replace")
    assert "sesame" not in log
    assert "The OTLP collector does not take metrics (no connection)" in log
    assert "takes metrics again" in log


def _check_gen_ai(stage: Stage, collecting: Collector) -> None:
    points = latest_points(collecting, TOKENS)
    assert {point.unit for point in points} == {"{token}"}
    [durations] = latest_points(collecting, DURATION)
    assert (durations.unit, durations.kind, durations.count) == ("s", "histogram", 3)
    assert durations.value > 0
    attributes = {
        "tollgate.workspace": durations.attributes["tollgate.workspace"],
        "tollgate.slug": stage.slug,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "platform",
        "gen_ai.request.model": "upstream-name",
    }
    assert durations.attributes == attributes
    assert [point.attributes for point in points] == [
        attributes | {"gen_ai.token.type": type} for type in ("input", "output")
    ]


def services_of(collecting: Collector) -> dict[str, dict[str, Any]]:
    """The resource of each service."""
    return {point.resource["service.name"]: point.resource for point in collecting.points}


def _check_resources(collecting: Collector) -> None:
    services = services_of(collecting)
    assert len({tuple(sorted(point.resource.items())) for point in collecting.points}) == len(services)
    assert services.keys() == {"tollgate-proxy", "tollgate-control"}
    ids = {resource["service.instance.id"] for resource in services.values()}
    assert len(ids) == 2
    assert all(resource["host.name"] and resource["service.version"] for resource in services.values())
    assert any(point.name == "tollgate_control_requests_total" for point in collecting.points)
