"""Reading a log from one end to the other by moving the window, however many lines have the same time.

See docs/reference/management-api.md#deployment-logs.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pytest
from sqlalchemy import insert

from control.edges.sql.log_rows import OF_DEPLOYMENTS, OF_TRAINING_JOBS, LogTable
from control.records.logs import NS_PER_MS, LogLine
from control.resources.logs import MAX_NS, LogBounds, Logs
from policy.training.reports import OutputLine
from policy.training.statuses import RUNNING
from tests.control.api.test_deployment_logs import append, deployment, id_of
from tests.control.plane import ControlPlane, Json, running_plane
from tests.control.trainer import PROJECT, Trainer, add_job, batch

T = TypeVar("T")
Stamped = tuple[int, str]
"""The time that a line says, in nanoseconds, and its message."""


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class Log(Protocol):
    """The log of a deployment or of a training job."""

    plane: ControlPlane
    path: str
    table: LogTable

    async def add(self, lines: Sequence[Stamped]) -> None:
        """Add at most 1000 lines in one call."""
        ...


class DeploymentLog:
    table = OF_DEPLOYMENTS

    def __init__(self, plane: ControlPlane, path: str) -> None:
        self.plane = plane
        self.path = path

    async def add(self, lines: Sequence[Stamped]) -> None:
        await append(self.plane, self.path, *({"timestamp": str(ns), "message": text} for ns, text in lines))


class JobLog:
    table = OF_TRAINING_JOBS

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.path = f"/v1/training_projects/{PROJECT}/jobs/tj_1"
        self._trainer = Trainer(plane)
        self._offset = 0

    async def add(self, lines: Sequence[Stamped]) -> None:
        part = replace(
            batch(self._offset, self._offset + 1), lines=[OutputLine(ns, "INFO", text) for ns, text in lines]
        )
        self._offset = await self._trainer.output(part)


@pytest.fixture(params=["deployment", "training job"])
async def log(request: pytest.FixtureRequest, plane: ControlPlane) -> Log:
    if request.param == "deployment":
        return DeploymentLog(plane, await deployment(plane))
    await add_job(plane, status=RUNNING, attempt=1)
    return JobLog(plane)


async def page(log: Log, **filters: Any) -> list[Json]:
    return list((await log.plane.post(f"{log.path}/logs", filters)).ok()["logs"])


def ms_of(line: Json) -> int:
    return int(line["timestamp"]) // NS_PER_MS


async def read_forward(log: Log, step_ms: int, limit: int) -> list[str]:
    """Every message, by moving the first millisecond: to the last one shown (0), or behind it (1)."""
    messages = dict[tuple[str, str], str]()
    start_ms = 0
    while True:
        page_lines = await page(log, direction="asc", limit=limit, start_epoch_millis=start_ms)
        messages |= {(line["timestamp"], line["message"]): line["message"] for line in page_lines}
        if len(page_lines) < limit or ms_of(page_lines[-1]) == start_ms:
            return list(messages.values())
        start_ms = ms_of(page_lines[-1]) + step_ms


async def read_backward(log: Log, step_ms: int, limit: int) -> list[str]:
    """Every message, newest first, by moving the last millisecond."""
    messages = dict[tuple[str, str], str]()
    end_ms = 2**53 - 1
    while True:
        page_lines = await page(log, limit=limit, end_epoch_millis=end_ms)
        messages |= {(line["timestamp"], line["message"]): line["message"] for line in page_lines}
        if len(page_lines) < limit or ms_of(page_lines[-1]) == end_ms:
            return list(messages.values())
        end_ms = ms_of(page_lines[-1]) - step_ms


async def assert_read_on(log: Log, texts: list[str], limit: int) -> None:
    for step_ms in (0, 1):
        assert await read_forward(log, step_ms, limit) == texts
        assert await read_backward(log, step_ms, limit) == texts[::-1]


async def per_millisecond(log: Log) -> Counter[int]:
    lines = Counter[int]()
    start_ms = 0
    while page_lines := await page(log, direction="asc", limit=1000, start_epoch_millis=start_ms):
        lines.update(map(ms_of, page_lines))
        start_ms = ms_of(page_lines[-1]) + 1
    return lines


@pytest.mark.parametrize("limit", [500, 1000])
async def test_lines_of_one_moment_are_all_read_by_moving_the_window(log: Log, limit: int) -> None:
    texts = [f"line {n}" for n in range(2_200)]
    for part in parts(texts, 1000):
        await log.add([(5_000_123, text) for text in part])
    await assert_read_on(log, texts, limit)
    assert await per_millisecond(log) == {5: 500, 6: 500, 7: 500, 8: 500, 9: 200}


async def test_line_keeps_its_time_where_its_millisecond_has_room(log: Log) -> None:
    await log.add([(5_000_123, f"early {n}") for n in range(499)])
    await log.add([(5_999_999, "last"), (5_999_999, "moved"), (6_000_001, "later")])
    lines = (await page(log, direction="asc"))[498:]
    times = {line["message"]: int(line["timestamp"]) for line in lines}
    last = 5_999_999 if isinstance(log, DeploymentLog) else 6_000_000  # a node's lines come in order
    assert times == {"early 498": 5_000_123, "last": last, "moved": 6_000_000, "later": 6_000_001}


async def test_who_reads_on_while_a_node_prints_misses_nothing(plane: ControlPlane) -> None:
    """The reader looks after each part of a burst, and goes on behind the last millisecond that it has read."""
    await add_job(plane, status=RUNNING, attempt=1)
    log = JobLog(plane)
    texts = [f"line {n}" for n in range(1_500)]
    messages = list[str]()
    start_ms = 0
    for part in parts(texts, 150):
        await log.add([(5_000_123, text) for text in part])
        page_lines = await page(log, direction="asc", limit=1000, start_epoch_millis=start_ms)
        messages += [line["message"] for line in page_lines]
        start_ms = ms_of(page_lines[-1]) + 1
    assert messages == texts


async def test_lines_of_two_nodes_keep_the_time_that_they_share(plane: ControlPlane) -> None:
    await add_job(plane, status=RUNNING, attempt=1, node_count=2)
    log = JobLog(plane)
    await log.add([(5_000_123, "of the first")])
    second = replace(batch(0, 1), rank=1, lines=[OutputLine(5_000_124, "INFO", "of the second")])
    await Trainer(plane).output(second)
    assert {int(line["timestamp"]) for line in await page(log)} == {5_000_123, 5_000_124}


async def test_page_without_a_limit_holds_everything_that_is_selected(log: Log) -> None:
    texts = [f"line {n}" for n in range(2_200)]
    for part in parts(texts, 1000):
        await log.add([(5_000_123, text) for text in part])
    assert [line["message"] for line in await page(log)] == texts[::-1]
    assert [line["message"] for line in await page(log, direction="asc")] == texts
    by_url = (await log.plane.get(f"{log.path}/logs", params={"direction": "asc"})).ok()["logs"]
    assert [line["message"] for line in by_url] == texts
    assert len(await page(log, start_epoch_millis=6, end_epoch_millis=7)) == 1000
    assert await page(log, start_epoch_millis=10) == []


async def test_page_without_a_limit_ends_at_its_size(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has whole milliseconds, the newest or the oldest ones, and is read on as every page."""
    monkeypatch.setattr("control.api.logs.WHOLE_BYTES", 50_000)
    texts = [f"line {n}" for n in range(2_200)]
    for part in parts(texts, 1000):
        await log.add([(5_000_123, text) for text in part])
    newest = [line["message"] for line in await page(log)]
    oldest = await page(log, direction="asc")
    assert newest == texts[:1000:-1] + texts[1000:1001]
    assert [line["message"] for line in oldest] == texts[:1000]
    rest = await page(log, direction="asc", start_epoch_millis=ms_of(oldest[-1]) + 1, limit=1000)
    assert rest[0]["message"] == texts[1000]


async def test_lines_of_a_full_stretch_stay_in_the_order_of_time(log: Log) -> None:
    """The order also holds for a late line and for one batch over several full milliseconds."""
    await log.add([(5 * NS_PER_MS + n, f"a {n}") for n in range(1000)])
    await log.add([((6 - n // 100) * NS_PER_MS, f"b {n}") for n in range(200)])
    assert await per_millisecond(log) == {5: 500, 6: 500, 7: 200}
    texts = [f"a {n}" for n in range(1000)] + [f"b {n}" for n in (*range(100, 200), *range(100))]
    await assert_read_on(log, texts, 500)


async def test_page_holds_whole_milliseconds_and_two_where_more_follow(log: Log) -> None:
    """A page has at least `limit` lines if there are as many: a shorter page is the last one."""
    for ms, lines in ((1, 3), (2, 2), (3, 4), (4, 1)):
        await log.add([(ms * NS_PER_MS, f"{ms}-{n}") for n in range(lines)])
    sizes = {limit: len(await page(log, direction="asc", limit=limit)) for limit in range(1, 11)}
    assert sizes == {1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 9, 7: 9, 8: 9, 9: 9, 10: 10}
    sizes = {limit: len(await page(log, limit=limit)) for limit in range(1, 11)}
    assert sizes == {1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 7, 7: 7, 8: 10, 9: 10, 10: 10}
    assert len(await page(log, limit=1, start_epoch_millis=3, end_epoch_millis=3)) == 4


async def test_page_counts_only_lines_that_match(log: Log) -> None:
    await log.add([(ms * NS_PER_MS, f"{'odd' if n % 2 else 'even'} {ms}") for ms in range(1, 5) for n in range(10)])
    lines = await page(log, direction="asc", limit=6, search_pattern="odd")
    assert [line["message"] for line in lines] == ["odd 1"] * 5 + ["odd 2"] * 5


async def test_last_moments_of_time_have_room_too(log: Log) -> None:
    texts = [f"line {n}" for n in range(700)]
    await log.add([(MAX_NS, text) for text in texts])
    await assert_read_on(log, texts, 500)


async def test_old_log_with_more_lines_in_a_millisecond_is_read(log: Log) -> None:
    """Logs from before lines were spread, up to the largest time that a column holds."""
    owner = id_of(log.path)
    places = [(7, 1_600), (8, 1), (9, 1_600), (2**63 - 1, 3)]
    times = [ns if ns > MAX_NS else ns * NS_PER_MS for ns, lines in places for _ in range(lines)]
    texts = [f"line {n}" for n in range(len(times))]
    rows = [
        {log.table.owner: owner, "timestamp_ns": ns, "level": "INFO", "message": text}
        for ns, text in zip(times, texts, strict=True)
    ]
    async with log.plane.store.write() as tx:
        await tx.conn.execute(insert(log.table.lines), rows)
    await assert_read_on(log, texts, 500)
    await log.add([(7 * NS_PER_MS, "new")])
    page_lines = await page(log, start_epoch_millis=8, end_epoch_millis=8, direction="asc")
    assert {line["message"] for line in page_lines} == {"new", "line 1600"}


async def test_control_processes_share_the_room_of_a_millisecond(database_url: str) -> None:
    async with running_plane(database_url) as one, running_plane(database_url, prefix="b") as two:
        log = DeploymentLog(one, await deployment(one))
        logs = [Logs(plane.store, OF_DEPLOYMENTS, LogBounds()) for plane in (one, two)]
        lines = [(id_of(log.path), LogLine(NS_PER_MS, "INFO", str(n))) for n in range(2_000)]
        await asyncio.gather(*(logs[n % 2].write(part) for n, part in enumerate(parts(lines, 100))))
        assert await per_millisecond(log) == {1: 500, 2: 500, 3: 500, 4: 500}
