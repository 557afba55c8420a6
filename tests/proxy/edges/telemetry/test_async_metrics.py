"""Asynchronous requests in a machine's metrics: sums over its workers, and figures of the shared queue.

See docs/reference/metrics.md.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import DeploymentFigures, DeploymentRef
from proxy.async_requests.states import Status
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor.async_metrics import QUIET_S
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from tests.waiting import PATIENCE_S

D = DeploymentRef("ws", "mdl", "dep")
WHERE = {"workspace": "ws", "model_id": "mdl", "deployment_id": "dep"}
GAUGES = {"tollgate_async_queued", "tollgate_async_in_progress", "tollgate_async_oldest_queued_seconds"}


def figures(
    queued: Mapping[int, int], in_progress: int = 0, oldest_queued_s: float | None = None, deployment: DeploymentRef = D
) -> DeploymentFigures:
    return DeploymentFigures(deployment, queued, in_progress, oldest_queued_s)


class Queue:
    """A queue with these figures, or one that is away."""

    def __init__(self) -> None:
        self.figures: list[DeploymentFigures] = []
        self.away = self.hangs = False

    async def overview(self) -> Sequence[DeploymentFigures]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise QueueUnavailableError
        return self.figures


class Machine:
    """The totals of a machine, its queue, and a clock."""

    def __init__(self, most: int = 100) -> None:
        self.now_s = 0.0
        self.totals = MetricTotals(100, lambda: (), max_slugs=most, clock=lambda: self.now_s)
        self.queue = Queue()
        self.totals.async_requests.queue = self.queue

    def counted(self, counts: dict[str, Any]) -> None:
        self.totals.add(0, orjson.loads(orjson.dumps(counts)))

    congested = False

    async def scrape(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        await self.totals.async_requests.read()
        families = text_string_to_metric_families(self.totals.text()[0].decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith("tollgate_async")
        }

    async def value(self, name: str, **labels: str) -> float | None:
        return (await self.scrape()).get((f"tollgate_async_{name}", tuple(sorted(labels.items()))))

    async def deployments(self, name: str) -> set[str]:
        return {dict(labels)["deployment_id"] for series, labels in await self.scrape() if series == name}


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def test_counts_of_several_workers_are_added_up(machine: Machine) -> None:
    for _ in range(2):
        metrics = WorkerMetrics(machine)
        counts = metrics.async_requests
        counts.attempt_started(D, queued_ms=700)
        counts.attempt_ended(D, "again", 0.2)
        counts.attempt_started(D, queued_ms=None)
        counts.attempt_ended(D, "succeeded", 2.0)
        counts.delivery("failed")
        counts.delivery("delivered")
        counts.request_ended(D, Status.SUCCEEDED)
        metrics.close()
    assert await machine.value("requests_total", **WHERE, status="SUCCEEDED") == 2
    assert await machine.value("attempts_total", outcome="again") == 2
    assert await machine.value("attempts_total", outcome="succeeded") == 2
    assert await machine.value("webhook_deliveries_total", outcome="failed") == 2
    assert await machine.value("time_in_queue_seconds_count") == 2, "a second attempt adds no time in the queue"
    assert await machine.value("time_in_queue_seconds_sum") == pytest.approx(1.4)
    assert await machine.value("time_in_queue_seconds_bucket", le="0.5") == 0
    assert await machine.value("time_in_queue_seconds_bucket", le="1.0") == 2
    assert await machine.value("attempt_seconds_sum") == pytest.approx(4.4)


async def test_nothing_is_counted_twice_after_a_flush(machine: Machine) -> None:
    metrics = WorkerMetrics(machine)
    metrics.async_requests.request_ended(D, Status.EXPIRED)
    metrics.async_requests.left_queue(10_000)
    metrics.flush()
    metrics.flush()
    metrics.close()
    assert await machine.value("requests_total", **WHERE, status="EXPIRED") == 1
    assert await machine.value("time_in_queue_seconds_count") == 1


async def test_counts_leave_by_the_timer_without_any_call(machine: Machine) -> None:
    metrics = WorkerMetrics(machine)
    metrics.async_requests.delivery("delivered")
    async with asyncio.timeout(PATIENCE_S):
        while not await machine.value("webhook_deliveries_total", outcome="delivered"):
            await asyncio.sleep(0.01)
    metrics.close()


async def test_gauges_show_the_queue_as_it_is_at_the_scrape(machine: Machine) -> None:
    machine.queue.figures = [figures({0: 3, 1: 0, 2: 1}, in_progress=2, oldest_queued_s=1.5)]
    by_priority = [await machine.value("queued", **WHERE, priority=priority) for priority in "012"]
    assert by_priority == [3, 0, 1]
    assert await machine.value("in_progress", **WHERE) == 2
    assert await machine.value("oldest_queued_seconds", **WHERE) == 1.5


async def test_gauges_are_absent_while_the_queue_is_away(machine: Machine) -> None:
    machine.queue.figures = [figures({0: 3})]
    assert {name for name, _ in await machine.scrape()} >= GAUGES
    machine.queue.away = True
    machine.totals.async_requests.add({})
    assert not {name for name, _ in await machine.scrape()} & GAUGES
    machine.queue.away = False
    assert await machine.value("queued", **WHERE, priority="0") == 3


async def test_scrape_does_not_wait_for_a_queue_that_hangs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.edges.telemetry.supervisor.async_metrics.READ_TIMEOUT_S", 0.01)
    machine.queue.hangs = True
    async with asyncio.timeout(60):
        assert not {name for name, _ in await machine.scrape()} & GAUGES


async def test_gauges_fall_to_zero_and_end_some_minutes_after_the_last_request(machine: Machine) -> None:
    machine.queue.figures = [figures({0: 3}, in_progress=1, oldest_queued_s=1.0)]
    await machine.scrape()
    machine.queue.figures = []
    machine.now_s = QUIET_S
    assert await machine.value("queued", **WHERE, priority="0") == 0
    assert await machine.value("in_progress", **WHERE) == 0
    assert await machine.value("oldest_queued_seconds", **WHERE) == 0
    machine.now_s += 1
    assert await machine.value("queued", **WHERE, priority="0") is None


async def test_deployments_beyond_the_bound_are_shown_together() -> None:
    machine = Machine(most=2)
    machine.queue.figures = [figures({1: 1}, 1, number, DeploymentRef("ws", "m", f"d{number}")) for number in range(4)]
    assert await machine.deployments("tollgate_async_queued") == {"d0", "d1", "_other"}
    other = {"workspace": "ws", "model_id": "_other", "deployment_id": "_other"}
    assert await machine.value("queued", **other, priority="1") == 2
    assert await machine.value("oldest_queued_seconds", **other) == 3
    metrics = WorkerMetrics(machine)
    metrics.async_requests.request_ended(DeploymentRef("ws", "m", "d7"), Status.FAILED)
    metrics.close()
    assert await machine.value("requests_total", **other, status="FAILED") == 1


async def test_counts_of_a_deleted_deployment_end_some_minutes_after_its_last_request(machine: Machine) -> None:
    metrics = WorkerMetrics(machine)
    for id in ("kept", "deleted"):
        metrics.async_requests.request_ended(DeploymentRef("ws", "m", id), Status.SUCCEEDED)
    metrics.close()
    machine.totals.async_requests.exists = lambda id: id == "kept"
    assert await machine.deployments("tollgate_async_requests_total") == {"kept", "deleted"}
    machine.now_s = QUIET_S + 1
    await machine.scrape()
    assert await machine.deployments("tollgate_async_requests_total") == {"kept"}
