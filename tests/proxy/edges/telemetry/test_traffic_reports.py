"""Counts of workers reach control once, whatever is lost on the way. The client of control is a fake."""

import logging
from typing import Any

import pytest

from policy.billing import Tokens
from policy.traffic import BUCKETS, FIRST_BYTE_BOUNDS_MS, MINUTE_MS, TrafficRow
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError, ReportRejectedError
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor import traffic_reports
from proxy.edges.telemetry.supervisor.traffic_reports import TrafficReports
from tests.proxy.edges.telemetry.test_metrics import route_of

MINUTE_S = 60.0


class Control(ControlReports):
    """Takes each batch once, as control does. `loses`: how many answers are lost after a batch was taken."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", "token")
        self.away = self.rejects = False
        self.loses = 0
        self.sizes: list[int] = []
        self.rows: list[TrafficRow] = []
        self.limits_reached: list[dict[str, str]] = []
        self._number = 0

    async def post(self, what: str, report: dict[str, Any]) -> None:
        assert what == "traffic"
        if self.rejects:
            raise ReportRejectedError("rows.0 is malformed")
        if self.away:
            raise ReportNotTakenError
        if report["number"] > self._number:
            self._number = report["number"]
            self.sizes.append(len(report["rows"]))
            self.limits_reached += report.get("limits_reached", ())
            self.rows += [TrafficRow.from_wire({**row, **_lists(row)}) for row in report["rows"]]
        if self.loses:
            self.loses -= 1
            raise ReportNotTakenError


def _lists(row: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {name: list(row[name]) for name in ("sums", "first_bytes")}


class World:
    """A supervisor's figures, control, and a clock."""

    def __init__(self) -> None:
        self.control = Control()
        self.now_s = 10 * MINUTE_S
        self.reports = TrafficReports(self.control, lambda: self.now_s)

    def count(self, *calls: tuple[str, str, int], workspace: str = "ws") -> None:
        """A worker's counts of one call for each (entity, slug, status)."""
        call_counts = [[workspace, *where, 1, 5, 1, 2] for where in calls]
        self.reports.add({"calls": call_counts, "first_bytes": []})

    def calls(self) -> int:
        return sum(row.sums[0] for row in self.control.rows)


@pytest.fixture
async def world() -> World:
    return World()


async def test_statuses_tokens_and_first_bytes_are_added_by_minute_and_slug(world: World) -> None:
    """The sums are over all entities, from a worker's own counts."""

    class Channel:
        congested = False

        def counted(self, counts: dict[str, Any]) -> None:
            world.reports.add(counts)

    metrics = WorkerMetrics(Channel())
    statuses = (200, 201, 400, 404, 429, 499, 500, 503, 504, 529)
    for status in statuses:
        metrics.finished(report(f"entity-{status}", status))
    metrics.finished(report("e", 200, workspace=""))
    metrics.finished(report("e", 404, slug=""))
    metrics.finished(report("", 200, slug="", model_id="mdl_1"))
    metrics.close()
    await world.reports.send()
    by_slug = {row.slug: row for row in world.control.rows}
    assert sorted(by_slug) == ["", "acme/chat", "mdl_1"]
    minute_report = by_slug["acme/chat"]
    calls = len(statuses)
    errors = 3
    refusals = 4
    assert minute_report.sums == (calls, errors, refusals, 60 * calls, 40 * calls, 7 * calls)
    place = FIRST_BYTE_BOUNDS_MS.index(25)
    assert minute_report.first_bytes == tuple(2 * (number == place) for number in range(BUCKETS)), "of successes alone"
    assert minute_report.minute_ms == 10 * MINUTE_MS
    assert by_slug[""].sums[:3] == (1, 0, 1)


def report(entity: str, status: int, **more: Any) -> RequestReport:
    labels = CallLabels(
        method="", path="", workspace_id=more.get("workspace", "ws"), external_entity_id=entity,
        slug=more.get("slug", "acme/chat"), model_id=more.get("model_id", ""),
    )  # fmt: skip
    return RequestReport(
        labels=labels, ended_at_ms=0, request_id="", status=status, end_cause=None, request_bytes=0, response_bytes=0,
        bill=Bill(Tokens(input=100, output=7, cached_input=40)), event_key=None, duration_s=0.3, ours_s=0.0004,
        upstream_s=0.2996, first_byte_s=0.02, route=route_of(None),
    )  # fmt: skip


async def test_batch_whose_answer_is_lost_is_repeated_as_it_was(world: World) -> None:
    """Calls that are counted meanwhile go into the next batch."""
    world.control.loses = 2
    world.count(("a", "s", 200))
    for _ in range(2):
        with pytest.raises(ReportNotTakenError):
            await world.reports.send()
        world.count(("a", "s", 200), ("b", "s", 200))
    await world.reports.send()
    assert [row.sums[0] for row in world.control.rows] == [1, 4]


async def test_reached_limits_go_with_the_next_batch_until_it_is_taken(world: World) -> None:
    limit = ["ws", "grp_1", "acme/chat", "REQUEST", "DAY", ""]
    for _ in range(2):
        world.reports.add({"calls": [], "first_bytes": [], "limits_reached": [limit]})
    world.control.loses = 1
    with pytest.raises(ReportNotTakenError):
        await world.reports.send()
    world.count(("a", "s", 429))
    await world.reports.send()
    assert [[*one.values()] for one in world.control.limits_reached] == [limit], "and not with the second batch"
    world.reports.add({"calls": [], "first_bytes": [], "limits_reached": [limit]})
    await world.reports.send()
    assert len(world.control.limits_reached) == 2, "it refuses again"


async def test_figures_of_an_outage_are_merged_by_minute_and_sent_in_bounded_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_reports, "MAX_ROWS", 4)
    world.control.away = True
    for _ in range(6):
        for slug in ("s", "t"):
            world.count(("a", slug, 200), ("b", slug, 200))
            world.count(("a", slug, 200))
        world.now_s += MINUTE_S / 2
    with pytest.raises(ReportNotTakenError):
        await world.reports.send()
    world.control.away = False
    await world.reports.send()
    assert world.control.sizes == [4, 2]
    minutes = {(row.minute_ms // MINUTE_MS, row.slug): row.sums[0] for row in world.control.rows}
    assert minutes == {(minute, slug): 6 for minute in (10, 11, 12) for slug in ("s", "t")}


async def test_oldest_figures_are_dropped_when_there_is_no_more_room(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traffic_reports, "MAX_KEPT", 3)
    for minute in range(5):
        world.count(*[("a", "s", 200)] * (minute + 1))
        world.now_s += MINUTE_S
    await world.reports.send()
    assert [row.sums[0] for row in world.control.rows] == [3, 4, 5]
    assert "Traffic figures lack 3 calls" in caplog.text
    caplog.clear()
    await world.reports.send()
    assert not caplog.text


async def test_rejected_batch_does_not_hold_up_the_next(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.control.rejects = True
    world.count(("a", "s", 200))
    await world.reports.send()
    assert "rows.0 is malformed" in caplog.text
    world.control.rejects = False
    world.count(("a", "s", 200))
    await world.reports.send()
    assert world.calls() == 1


async def test_last_figures_are_sent_at_shutdown_or_reported_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world.count(("a", "s", 200))
    await world.reports.finish(1)
    assert world.calls() == 1
    assert not caplog.text
    world.control.away = True
    world.count(("a", "s", 200), ("a", "s", 429))
    await world.reports.finish(1)
    assert "Traffic figures lack up to 2 calls" in caplog.text
