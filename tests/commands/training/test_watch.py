"""The progress line of `tollgate training watch`, and when it is printed."""

from typing import Any

import pytest

from commands.progress import ProgressPrinter
from commands.training.watch import Progress, describe, look
from policy.training.statuses import COMPLETED, FAILED, PENDING, RUNNING, SYNCED, SYNCING

CREATED_S = 1_767_225_600.0


def job(status: str, **changes: Any) -> dict[str, Any]:
    times = {"created_at": "2026-01-01T00:00:00.000Z", "updated_at": "2026-01-01T00:02:05.000Z"}
    return {"current_status": status, "error_message": None, "checkpoint_sync_status": None} | times | changes


def test_line_tells_status_time_metrics_and_checkpoints() -> None:
    points: dict[str, dict[str, Any]] = {
        "loss": {"step": 40, "value": 0.12345678},
        "speed": {"step": None, "value": 12},
    }
    progress = Progress(job(RUNNING), points, (SYNCED, SYNCING))
    line = describe(progress, CREATED_S + 3725)
    assert line == "RUNNING 1:02:05 · loss 0.123457 (step 40) · speed 12 · checkpoints 1 of 2 synced"


def test_ended_job_shows_its_own_time_and_error() -> None:
    progress = Progress(job(FAILED, error_message="node 0 exited with status 3"), {}, ())
    assert describe(progress, CREATED_S + 9999) == "FAILED 2:05 · node 0 exited with status 3"


def test_waiting_job_is_a_short_line() -> None:
    assert describe(Progress(job(PENDING), {}, ()), CREATED_S + 7) == "PENDING 0:07"


@pytest.mark.parametrize(
    ("changes", "has_ended"),
    [({"checkpoint_sync_status": SYNCING}, False), ({"checkpoint_sync_status": "COMPLETED"}, True), ({}, True)],
)
def test_watching_ends_when_the_checkpoints_are_synced(changes: dict[str, Any], has_ended: bool) -> None:
    assert Progress(job(COMPLETED, **changes), {}, ()).has_ended is has_ended


def test_terminal_rewrites_its_line_and_a_file_gets_each_change_once() -> None:
    terminal = list[str]()
    file = list[str]()
    for printer in (ProgressPrinter(terminal.append, True), ProgressPrinter(file.append, False)):
        for line in ("a", "a", "b"):
            printer.show(line)
        printer.end()
    assert terminal == ["\r\x1b[2Ka", "\r\x1b[2Ka", "\r\x1b[2Kb", "\n"]
    assert file == ["a\n", "b\n"]


class LongJob:
    """The API's answers on a job of 30 points, of which an answer has ten. Remembers the times it was asked from."""

    def __init__(self) -> None:
        self.starts: list[str | None] = []

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        if path.endswith("/checkpoints"):
            return {"training_job": job(RUNNING), "checkpoints": []}
        self.starts.append(query["since"])
        points = [{"timestamp": f"{n:03}", "step": n, "value": n} for n in range(30)]
        later = [point for point in points if query["since"] is None or point["timestamp"] >= query["since"]]
        return {"metrics": [{"name": "loss", "points": later[:10]}]}


async def test_look_shows_the_last_of_many_points_and_goes_on_from_there() -> None:
    client = LongJob()
    latest = dict[str, Any]()
    first = await look(client, "jobs/tj_1", latest)
    assert first.latest["loss"]["value"] == 29
    client.starts.clear()
    assert (await look(client, "jobs/tj_1", latest)).latest["loss"]["value"] == 29
    assert set(client.starts) == {"029"}
