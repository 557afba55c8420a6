"""Checks that what jobs print is taken once, bounded, and read as a log and as metrics, on both databases.

See docs/reference/training.md#logs-and-metrics.
"""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from control.edges.sql.log_rows import OF_TRAINING_JOBS
from control.edges.sql.training import job_rows
from control.edges.sql.training.tables import training_logs, training_metrics
from control.records.times import time_text
from control.resources.logs import MAX_NS, LogBounds, Logs, now_ns
from control.resources.training import metrics
from control.resources.training.metrics import JobMetrics
from control.resources.training.output import JobOutput
from policy.training.reports import OutputBatch, OutputLine
from policy.training.statuses import COMPLETED, RUNNING, Outcome, Phase
from tests.control.log_lines import log_lines
from tests.control.plane import METRICS_TOKEN, TOKEN, ControlPlane, Json
from tests.control.trainer import PROJECT, Trainer, add_job, batch, change, point, report, stored

JOB = f"/v1/training_projects/{PROJECT}/jobs/tj_1"


@pytest.fixture
def trainer(plane: ControlPlane) -> Trainer:
    return Trainer(plane)


async def running(plane: ControlPlane, **changes: Any) -> None:
    await add_job(plane, **{"status": RUNNING, "attempt": 1, **changes})


async def messages(plane: ControlPlane, path: str = JOB, **filters: Any) -> list[str]:
    return [one["message"] for one in await log_lines(plane, path, **{"direction": "asc", **filters})]


async def points(plane: ControlPlane, query: str = "") -> dict[str, list[Any]]:
    """The values of each metric."""
    series = (await plane.get(f"{JOB}/metrics{query}")).ok()["metrics"]
    return {metric["name"]: [point["value"] for point in metric["points"]] for metric in series}


async def exported(plane: ControlPlane) -> str:
    text: str = (await plane.get("/metrics", key=METRICS_TOKEN)).ok()
    return text


async def count(plane: ControlPlane, table: Any) -> int:
    async with plane.store.read() as conn:
        number: int = (await conn.execute(select(func.count()).select_from(table))).scalar_one()
        return number


# --- exactly once ----------------------------------------------------------------------------------------------------


async def test_batches_that_repeat_come_late_or_too_early_are_taken_once_in_order(
    plane: ControlPlane, trainer: Trainer
) -> None:
    await running(plane)
    first = batch(0, 10, "a", metrics=(point(1),))
    second = batch(10, 20, "b", metrics=(point(2),))
    assert await trainer.output(second) == 0, "the first one is missing"
    assert await trainer.output(first) == 10
    assert await trainer.output(first) == 10
    assert await trainer.output(second) == 20
    assert await trainer.output(first) == 20
    assert await trainer.output(batch(20, 20)) == 20
    assert await messages(plane) == ["a", "b"]
    assert await points(plane) == {"loss": [1, 2]}


async def test_copies_of_a_batch_that_arrive_together_are_taken_once(plane: ControlPlane, trainer: Trainer) -> None:
    await running(plane)
    answers = await asyncio.gather(*(trainer.output(batch(0, 5, "once", metrics=(point(1),))) for _ in range(5)))
    assert answers == [5] * 5
    assert await messages(plane) == ["once"]
    assert await points(plane) == {"loss": [1]}


async def test_lossy_sender_delivers_every_line_of_every_node_once(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await running(plane, node_count=2)
    chance = random.Random(7)
    printed = [[f"{rank}-{n}" for n in range(30)] for rank in range(2)]
    offsets = [0, 0]
    while offsets != [30, 30]:
        rank = chance.choice([rank for rank in range(2) if offsets[rank] < 30])
        start = max(0, offsets[rank] - chance.choice([0, 0, 0, 3]))  # sometimes from before what was answered
        end = min(30, start + chance.randint(1, 8))
        part = batch(start, end, *printed[rank][start:end], rank=rank)
        if chance.random() < 0.2:
            continue  # lost on its way there
        answer = await trainer.output(part)
        if chance.random() > 0.2:  # else the answer is lost on its way back
            offsets[rank] = answer
    for rank in range(2):
        assert await messages(plane, replica=f"g00r{rank}") == printed[rank]


async def test_batch_that_fails_half_way_leaves_nothing(
    plane: ControlPlane, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(plane)
    update_job = job_rows.update_job

    async def failing(*_: Any) -> None:
        raise RuntimeError("at the end of the transaction")

    monkeypatch.setattr(job_rows, "update_job", failing)
    assert (await trainer.try_output(batch(0, 9, "a", metrics=(point(1),)))).status == 500
    monkeypatch.setattr(job_rows, "update_job", update_job)
    assert await count(plane, training_logs) == await count(plane, training_metrics) == 0
    assert await trainer.output(batch(0, 9, "a", metrics=(point(1),))) == 9
    assert await messages(plane) == ["a"]


async def test_next_attempt_begins_anew_and_late_output_of_the_last_one_is_dropped(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await running(plane)
    await trainer.output(batch(0, 10, "first attempt"))
    await trainer.sync(report(Phase.ENDED, Outcome.REQUEUED))
    assert await trainer.output(batch(10, 20, "still of the first")) == 20
    await trainer.claim(attempt=1)
    assert await trainer.output(batch(20, 30, "too late")) == 30
    assert await trainer.output(batch(0, 5, "second attempt", attempt=2)) == 5
    # All in one millisecond, by their own times: each batch of a node gets one behind those that it has lines in.
    assert await messages(plane) == ["first attempt", "still of the first", "second attempt"]


async def test_output_of_jobs_that_are_gone_is_answered_as_taken_and_dropped(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await running(plane, is_deleted=True, status=COMPLETED)
    late_batch = batch(50, 60, "a", "b", metrics=(point(1),))
    assert await trainer.output(late_batch) == 60
    assert await trainer.output(late_batch, "tj_unknown") == 60
    assert await count(plane, training_logs) == await count(plane, training_metrics) == 0
    text = await exported(plane)
    assert 'tollgate_training_output_dropped_total{kind="line"} 4.0' in text
    assert 'tollgate_training_output_dropped_total{kind="metric"} 2.0' in text


async def test_output_of_an_ended_job_is_taken_and_is_no_change_of_it(
    sqlite_plane: ControlPlane,
) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await running(plane)
    await trainer.sync(report(Phase.ENDED, Outcome.COMPLETED))
    before = (await stored(plane.store)).updated_at_ms
    assert await trainer.output(batch(0, 5, "bye")) == 5
    after = await stored(plane.store)
    assert (after.updated_at_ms, after.output_offsets) == (before, {0: 5})


# --- what is malformed, and what a job may print ---------------------------------------------------------------------


async def test_malformed_batch_is_refused_by_name_and_nothing_is_taken(sqlite_plane: ControlPlane) -> None:
    await running(sqlite_plane)
    line = {"timestamp_ns": 1, "level": "INFO", "message": "x"}
    value = point(1).to_wire()
    cases: list[tuple[Json, str]] = [
        ({"attempt": "1"}, "attempt"),
        ({"rank": -1}, "rank"),
        ({"rank": 1}, "rank must be below 1"),
        ({"offset": 1.5}, "offset"),
        ({"next_offset": 2**63}, "next_offset"),
        ({"next_offset": 0}, "next_offset"),
        ({"lines": {}}, "lines"),
        ({"lines": [line, 1]}, "lines.1"),
        ({"lines": [{**line, "level": "LOUD"}]}, "level must be one of"),
        ({"lines": [{**line, "message": None}]}, "lines.0"),
        ({"lines": [line] * 1001}, "at most 1000"),
        ({"metrics": [{**value, "value": "1"}]}, "value must be a number"),
        ({"metrics": [{**value, "step": 1.5}]}, "step must be a whole number"),
        ({"metrics": [{"name": "x"}]}, "metrics.0"),
        ({"metrics": [value] * 1001}, "at most 1000"),
    ]
    trainer = Trainer(sqlite_plane)
    for changes, member in cases:
        body = batch(0, 9, "x").to_wire() | changes
        assert member in (await trainer.post("jobs/tj_1/output", body)).refused(400)["error"]
    assert await messages(sqlite_plane) == []


async def test_no_line_and_no_metric_of_a_job_stops_its_output(plane: ControlPlane, trainer: Trainer) -> None:
    await running(plane)
    odd = [point(1, "\0\x1b[31m"), point(2, ""), point(3, "x" * 255), point(4, "big", step=2**63)]
    odd += [point(5, "late", timestamp_ms=2**62), point(6, "é🙂", step=-(2**63) + 1)]
    lines = [
        OutputLine(2**63 + 5, "INFO", "\0\x1b[2Jhi\r\n"),
        OutputLine(0, "WARNING", ""),
        OutputLine(1, "INFO", "é" * 65_536),
    ]
    assert await trainer.output(OutputBatch(1, 0, 0, 9, lines, odd)) == 9
    assert await points(plane) == {"\\x00\\x1b[31m": [1], "": [2], "x" * 255: [3], "é🙂": [6]}
    stored_lines = (await plane.post(f"{JOB}/logs", {})).ok()["logs"]
    assert stored_lines[0] == {
        **{"timestamp": str(MAX_NS), "message": "\\x00\\x1b[2Jhi", "level": "INFO"},
        **{"replica": "g00r0", "request_id": None},
    }
    assert stored_lines[1]["message"].endswith(" … (cut)")
    assert (stored_lines[2]["level"], stored_lines[2]["message"]) == ("WARNING", "")


async def test_numbers_beyond_a_float_are_refused_or_dropped(sqlite_plane: ControlPlane) -> None:
    await running(sqlite_plane)
    body = '{"attempt":1,"rank":0,"offset":0,"next_offset":9,"lines":[],"metrics":[%s]}'
    value = '{"name":"x","timestamp_ms":1,"step":null,"value":%s}'
    url = "/internal/v1/training/jobs/tj_1/output"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for number in ("1e999", "-1e999", "NaN", "Infinity"):
        async with sqlite_plane.client.post(url, data=body % (value % number), headers=headers) as answer:
            assert answer.status in (200, 400)
    assert await points(sqlite_plane) == {}


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_job_has_a_hundred_metrics_and_further_ones_are_dropped(plane: ControlPlane, trainer: Trainer) -> None:
    await running(plane)
    await trainer.output(batch(0, 1, metrics=[point(n, f"m{n}") for n in range(60)]))
    await trainer.output(batch(1, 2, metrics=[point(n, f"m{n}") for n in range(130)]))
    series = await points(plane)
    assert sorted(series) == sorted(f"m{n}" for n in range(100))
    assert series["m5"] == [5, 5]
    assert await trainer.output(batch(2, 3, metrics=[point(7, "m1"), point(7, "m101")])) == 3
    assert (await points(plane))["m1"] == [1, 1, 7]


async def test_oldest_points_go_while_a_job_prints(plane: ControlPlane) -> None:
    await running(plane)
    await add_job(plane, id="tj_2", status=RUNNING, attempt=1)
    output = output_of(plane, max_points=100)
    await output.accept("tj_2", batch(0, 1, metrics=[point(n) for n in range(90)]))
    for n in range(8):
        new_points = [point(n * 40 + k, timestamp_ms=n) for k in range(40)]
        await output.accept("tj_1", batch(n, n + 1, metrics=new_points))
        assert await count(plane, training_metrics) <= 90 + 100
    values = (await points(plane))["loss"]
    assert values == list(range(220, 320))
    assert len(await output.metrics.read("tj_2", None, 0)) == 90


def output_of(plane: ControlPlane, max_points: int = 100, **bounds: Any) -> JobOutput:
    return JobOutput(
        plane.store, Logs(plane.store, OF_TRAINING_JOBS, LogBounds(**bounds)), JobMetrics(plane.store, max_points)
    )


async def test_oldest_lines_go_while_a_job_prints(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    await running(plane)
    output = output_of(plane, max_lines=50)
    for n in range(5):
        lines = [OutputLine(now_ns(), "INFO", f"{n}-{k}") for k in range(20)]
        await output.accept("tj_1", replace(batch(n, n + 1), lines=lines))
        assert await count(plane, training_logs) <= 50
    assert (await messages(plane))[-1] == "4-19"


async def test_pruning_deletes_what_is_too_old_and_what_is_of_jobs_that_are_gone(plane: ControlPlane) -> None:
    await running(plane)
    output = output_of(plane)
    lines = [OutputLine(1, "INFO", "old"), OutputLine(now_ns(), "INFO", "new")]
    await output.accept("tj_1", OutputBatch(1, 0, 0, 9, lines, [point(1)]))
    async with plane.store.write() as tx:
        rows = [{"job_id": "tj_gone", "name": "x", "timestamp_ms": n, "step": None, "value": 1.0} for n in range(30)]
        await tx.conn.execute(insert(training_metrics), rows)
        line = {"timestamp_ns": now_ns(), "level": "INFO", "message": "x"}
        await tx.conn.execute(insert(training_logs), [{"job_id": "tj_gone", **line} for _ in range(30)])
    assert await output.prune() == 30 + 30 + 1
    assert await output.prune() == 0
    assert await messages(plane) == ["new"]
    assert await points(plane) == {"loss": [1]}


# --- what control exports --------------------------------------------------------------------------------------------


async def test_backend_and_jobs_are_exported(plane: ControlPlane, trainer: Trainer) -> None:
    await add_job(plane)
    await add_job(plane, id="tj_2", status=COMPLETED)
    assert "tollgate_training_backend_up 0.0" in await exported(plane)
    await trainer.sync(report(Phase.WAITING, attempt=0))
    text = await exported(plane)
    assert "tollgate_training_backend_up 1.0" in text
    assert 'tollgate_training_unfinished_jobs{status="TRAINING_JOB_PENDING"} 1.0' in text
    await trainer.claim()
    await trainer.sync(report(Phase.ENDED, Outcome.COMPLETED), reason="away")
    text = await exported(plane)
    assert "tollgate_training_backend_up 0.0" in text
    assert 'tollgate_training_unfinished_jobs{status="TRAINING_JOB_PENDING"} 0.0' in text
    for status in ("PENDING", "DEPLOYING", "COMPLETED"):
        assert f'tollgate_training_jobs_total{{status="TRAINING_JOB_{status}"}} 1.0' in text


# --- reading ---------------------------------------------------------------------------------------------------------


async def test_log_of_a_job_is_selected_as_that_of_a_deployment(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await running(plane, node_count=2)
    lines = [OutputLine(n * 1_000_000, level, f"line {n}") for n, level in enumerate(("INFO", "WARNING", "INFO"))]
    await trainer.output(replace(batch(0, 9), lines=lines))
    await trainer.output(replace(batch(0, 9), lines=lines[:1], rank=1))
    assert await messages(plane, min_level="warning") == ["line 1"]
    assert await messages(plane, replica="g00r1") == ["line 0"]
    assert await messages(plane, search_pattern="2") == ["line 2"]
    assert await messages(plane, start_epoch_millis=1, end_epoch_millis=1) == ["line 1"]
    assert await messages(plane, limit=2) == ["line 0", "line 0", "line 1"]
    assert await messages(plane, request_id="req_1") == []
    (await plane.post(f"{JOB}/logs", {"start_epoch_millis": 2, "end_epoch_millis": 1})).refused(400)
    (await plane.post(f"{JOB}/logs", {"color": "red"})).refused(400)
    (await plane.get(f"{JOB}/logs", params={"color": "red"})).refused(400, field="color")


async def test_metrics_are_read_by_name_and_from_a_time_on(plane: ControlPlane, trainer: Trainer) -> None:
    await running(plane)
    printed = [
        point(0.5, step=1, timestamp_ms=1_000),
        point(3, "lr", timestamp_ms=2_000),
        point(0.25, timestamp_ms=3_000),
    ]
    await trainer.output(batch(0, 9, metrics=printed))
    answer = (await plane.get(f"{JOB}/metrics")).ok()
    assert {"metrics": answer["metrics"]} == {
        "metrics": [
            {
                "name": "loss",
                "points": [
                    {"timestamp": "1970-01-01T00:00:01.000Z", "step": 1, "value": 0.5},
                    {"timestamp": "1970-01-01T00:00:03.000Z", "step": None, "value": 0.25},
                ],
            },
            {"name": "lr", "points": [{"timestamp": "1970-01-01T00:00:02.000Z", "step": None, "value": 3.0}]},
        ]
    }
    assert await points(plane, "?name=lr") == {"lr": [3]}
    assert await points(plane, f"?since={time_text(2_000)}") == {"loss": [0.25], "lr": [3]}
    assert await points(plane, f"?since={time_text(2_001)}&name=lr") == {}
    for query in ("?since=yesterday", "?since=1", "?name=", "?step=1", "?name=a&name=b"):
        (await plane.get(f"{JOB}/metrics{query}")).refused(400)


async def test_long_metrics_are_read_in_parts(sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    monkeypatch.setattr(metrics, "POINTS_AT_ONCE", 10)
    await running(plane)
    await trainer.output(batch(0, 9, metrics=[point(n, f"m{n % 2}", timestamp_ms=n) for n in range(25)]))
    values = set[float]()
    since = "1970-01-01T00:00:00Z"
    while True:
        series = (await plane.get(f"{JOB}/metrics?since={since}")).ok()["metrics"]
        part = {point["value"] for metric in series for point in metric["points"]}
        if part <= values:
            break
        assert len(part) <= 10
        values |= part
        since = max(point["timestamp"] for metric in series for point in metric["points"])
    assert values == set(range(25))


async def test_output_of_another_workspace_and_of_deleted_jobs_is_not_found(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    await running(plane)
    other = await plane.another_workspace()
    theirs = f"/v1/training_projects/{PROJECT}/jobs/tj_2"
    for path, key in ((JOB, other["api_key"]), (theirs, plane.key), (JOB.replace(PROJECT, "tp_9"), plane.key)):
        (await plane.post(f"{path}/logs", {}, key=key)).refused(404)
        (await plane.get(f"{path}/logs", key=key)).refused(404)
        (await plane.get(f"{path}/metrics", key=key)).refused(404)
    await change(plane.store, status=COMPLETED, is_deleted=True)
    (await plane.post(f"{JOB}/logs", {})).refused(404)
    (await plane.get(f"{JOB}/metrics")).refused(404)
