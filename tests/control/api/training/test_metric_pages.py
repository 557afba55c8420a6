"""Reading a job's metrics to their end by moving `since`, however many points have the same time, on both databases.

See docs/reference/training.md#logs-and-metrics.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import insert, select

from commands.training.metrics import read_metrics
from control.edges.sql.training.tables import training_metrics
from control.records.times import LAST_MS, time_text
from control.resources.training import metrics
from policy.training.reports import MetricPoint
from policy.training.statuses import RUNNING
from tests.control.plane import ControlPlane, Json
from tests.control.trainer import PROJECT, Trainer, add_job, batch, point

PATH = f"/v1/training_projects/{PROJECT}/jobs/tj_1/metrics"


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "POINTS_AT_ONCE", 100)
    monkeypatch.setattr(metrics, "POINTS_PER_MS", 50)


@pytest.fixture
async def job(plane: ControlPlane) -> ControlPlane:
    await add_job(plane, status=RUNNING, attempt=1)
    return plane


class CommandClient:
    """The client of a command, at one control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        params = {name: value for name, value in query.items() if value is not None}
        return (await self._plane.call(method, path, body, params=params)).ok()


async def printed(plane: ControlPlane, points: Sequence[MetricPoint], size: int = 1000) -> None:
    trainer = Trainer(plane)
    for n, start in enumerate(range(0, len(points), size)):
        assert await trainer.output(batch(n, n + 1, metrics=points[start : start + size])) == n + 1


async def page(plane: ControlPlane, since_ms: int = 0, **query: str) -> list[Json]:
    """Return a page's points in the order of time."""
    series = (await plane.get(PATH, params={"since": time_text(since_ms), **query})).ok()["metrics"]
    return sorted((point for metric in series for point in metric["points"]), key=lambda point: point["timestamp"])


async def all_values(plane: ControlPlane, **query: str) -> dict[str, list[float]]:
    series = await read_metrics(CommandClient(plane), PATH, **query)
    return {metric["name"]: [point["value"] for point in metric["points"]] for metric in series}


async def test_points_of_one_moment_are_all_read_by_moving_since(job: ControlPlane) -> None:
    await printed(job, [point(n, f"m{n % 2}", timestamp_ms=7) for n in range(430)], size=90)
    assert await all_values(job) == {"m0": list(range(0, 430, 2)), "m1": list(range(1, 430, 2))}
    assert await all_values(job, name="m1") == {"m1": list(range(1, 430, 2))}
    async with job.store.read() as conn:
        times = Counter((await conn.execute(select(training_metrics.c.timestamp_ms))).scalars())
    assert times == {7 + n: 50 for n in range(8)} | {15: 30}


async def test_point_keeps_its_time_where_its_millisecond_has_room(job: ControlPlane) -> None:
    await printed(job, [point(n, timestamp_ms=7) for n in range(50)])
    later = [point(50, timestamp_ms=7), point(52, timestamp_ms=9), point(51, timestamp_ms=8)]
    assert await Trainer(job).output(batch(1, 2, metrics=later)) == 2
    times = {point["value"]: point["timestamp"] for point in (await page(job))[50:]}
    assert times == {50: time_text(8), 51: time_text(8), 52: time_text(9)}


async def test_page_holds_whole_milliseconds_and_two_where_more_follow(
    job: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, (ms, points) in enumerate(((1, 3), (2, 2), (3, 4), (4, 1))):
        assert await Trainer(job).output(batch(n, n + 1, metrics=[point(n, timestamp_ms=ms)] * points)) == n + 1
    sizes = {}
    for limit in range(1, 11):
        monkeypatch.setattr(metrics, "POINTS_AT_ONCE", limit)
        sizes[limit] = len(await page(job))
    assert sizes == {1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 9, 7: 9, 8: 9, 9: 9, 10: 10}


async def test_last_moments_of_time_have_room_too(job: ControlPlane) -> None:
    await printed(job, [point(n, timestamp_ms=metrics.MAX_MS) for n in range(330)])
    assert await all_values(job) == {"loss": list(range(330))}


async def test_metrics_from_before_with_more_points_in_a_millisecond_are_read(job: ControlPlane) -> None:
    times = [7] * 330 + [8] + [9] * 330 + [LAST_MS] * 130
    rows = [
        {"job_id": "tj_1", "name": "loss", "timestamp_ms": ms, "value": value, "step": None}
        for value, ms in enumerate(times)
    ]
    async with job.store.write() as tx:
        await tx.conn.execute(insert(training_metrics), rows)
    assert await all_values(job) == {"loss": list(range(len(times)))}
