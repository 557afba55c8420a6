"""Reports on deployments to a real HTTP server that plays control: loads, wakes, logs, and outages of all three."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from policy.deployment_load import DeploymentLoad
from proxy.edges.replicas.supervisor import call_log, load_reports
from proxy.edges.replicas.supervisor.call_log import CallLog
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError
from proxy.edges.replicas.supervisor.load_reports import BUSY_INTERVAL_S, LoadReports
from proxy.replicas.replica_calls import CallEnded
from tests.fakes.control_plane import TOKEN
from tests.ports import own_port
from tests.waiting import eventually

MACHINE = "0123456789abcdef"
IDLE = DeploymentLoad("m", "d", 0, 0, 0, None, ("http://a",), ("http://b",))
PARKED = replace(IDLE, parked=3, last_request_at_ms=1_700_000_000_000)
CALL = CallEnded(1_700_000_000_123, "req-1", "POST", "/v1/chat/completions", 200, 0.01234)


class Control:
    """Answers every report with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.refused = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        what = request.match_info["what"]
        report = await request.json()
        if self.status == 200:
            self.reports.append((what, report))
        else:
            self.refused += 1
        return web.json_response({} if self.status == 200 else {"error": "not now"}, status=self.status)

    async def refuses(self) -> None:
        """Return when it has refused one more report."""
        refusals_before = self.refused
        await eventually(lambda: self.refused > refusals_before)

    @property
    def loads(self) -> list[list[dict[str, Any]]]:
        return [report["loads"] for what, report in self.reports if what == "loads"]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [line for what, report in self.reports if what == "logs" for line in report["lines"]]


class Board:
    """The loads of the deployments that the machine carries."""

    def __init__(self) -> None:
        self.carried: dict[str, DeploymentLoad] = {}

    def deployment_ids(self) -> Iterable[str]:
        return self.carried

    def load_of(self, deployment_id: str) -> DeploymentLoad | None:
        return self.carried.get(deployment_id)


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    control = Control()
    app = web.Application(client_max_size=10_000_000)
    app.add_routes([web.post("/internal/v1/deployments/{what}", control.handle)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    control.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield control
    await runner.cleanup()


@pytest.fixture
async def reports(control: Control) -> AsyncIterator[ControlReports]:
    reports = ControlReports(control.url, TOKEN, silent_s=0)
    yield reports
    await reports.close()


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def loads(reports: ControlReports, board: Board) -> LoadReports:
    return LoadReports(reports, board, MACHINE)


@pytest.fixture
def lines(reports: ControlReports) -> CallLog:
    return CallLog(reports)


@asynccontextmanager
async def running(service: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(service())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- loads ------------------------------------------------------------------------------------------------------------


async def test_change_is_reported_with_all_figures(control: Control, loads: LoadReports, board: Board) -> None:
    board.carried["d"] = PARKED
    async with running(loads.run):
        loads.changed("d")
        await eventually(lambda: control.reports)
    assert control.reports[0] == (
        "loads",
        {
            "machine": MACHINE,
            "loads": [
                {
                    "model_id": "m",
                    "deployment_id": "d",
                    "in_flight": 0,
                    "queued": 0,
                    "parked": 3,
                    "last_request_at_ms": 1_700_000_000_000,
                    "healthy": ["http://a"],
                    "unhealthy": ["http://b"],
                }
            ],
        },
    )


async def test_busy_deployment_is_reported_until_it_is_idle_and_then_once_more(
    control: Control, loads: LoadReports, board: Board
) -> None:
    board.carried = {"d": PARKED, "idle": replace(IDLE, deployment_id="idle")}
    async with running(loads.run):
        await eventually(lambda: control.reports)
        loads.changed("d")
        await eventually(lambda: len(control.reports) >= 3)
        board.carried["d"] = IDLE
        await eventually(lambda: control.loads[-1][0]["parked"] == 0)
        reported = len(control.reports)
        await asyncio.sleep(2 * BUSY_INTERVAL_S)
        assert len(control.reports) == reported
    assert [[load["deployment_id"] for load in one] for one in control.loads[1:]] == [["d"]] * (reported - 1)


async def test_calls_that_come_and_go_between_two_posts_wait_for_the_round(
    control: Control, loads: LoadReports, board: Board
) -> None:
    board.carried["d"] = IDLE
    async with running(loads.run):
        await eventually(lambda: control.reports)
        began_s = time.monotonic()
        for number in range(20):
            board.carried["d"] = replace(IDLE, last_request_at_ms=number)
            loads.changed("d")
            await asyncio.sleep(0.01)
        await eventually(lambda: control.loads[-1][0]["last_request_at_ms"] == 19)
        rounds = (time.monotonic() - began_s) / BUSY_INTERVAL_S
    assert len(control.reports) <= 3 + rounds


async def test_changes_that_come_together_are_sent_together(control: Control, loads: LoadReports, board: Board) -> None:
    for number in range(2500):
        board.carried[f"d{number}"] = replace(PARKED, deployment_id=f"d{number}")
        loads.changed(f"d{number}")
    async with running(loads.run):
        await eventually(lambda: sum(map(len, control.loads)) >= 2500)
    assert [len(one) for one in control.loads[:3]] == [1000, 1000, 500]


async def test_long_lists_of_replicas_are_spread_over_posts(control: Control, loads: LoadReports, board: Board) -> None:
    urls = tuple(f"http://{'a' * 1900}/{number}" for number in range(256))
    for number in range(20):
        board.carried[f"d{number}"] = replace(PARKED, deployment_id=f"d{number}", healthy=urls, unhealthy=())
        loads.changed(f"d{number}")
    await loads.finish()
    assert [len(one) for one in control.loads] == [9, 9, 2], "nine of them have more than 4 000 000 characters"


async def test_deployment_that_is_gone_is_not_reported(control: Control, loads: LoadReports, board: Board) -> None:
    board.carried["d"] = PARKED
    async with running(loads.run):
        loads.changed("gone")
        loads.changed("d")
        await eventually(lambda: control.reports)
    assert [load["deployment_id"] for load in control.loads[0]] == ["d"]


async def test_newest_figures_are_sent_when_control_is_back(
    control: Control, loads: LoadReports, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name.startswith("proxy.edges.replicas")]

    control.status = 503
    async with running(loads.run):
        for parked in (1, 2, 3):
            board.carried["d"] = replace(PARKED, parked=parked)
            loads.changed("d")
            await control.refuses()
        board.carried["d"] = replace(PARKED, parked=4)
        control.status = 200
        await eventually(lambda: control.reports)
        await eventually(lambda: len(logged()) >= 2, "what control has taken is logged once its answer is here")
    assert control.loads[0][0]["parked"] == 4
    texts = logged()
    assert len(texts) == 2, "one outage, two lines"
    assert "control answered 503" in texts[0]
    assert "TOLLGATE_CONTROL_URL" in texts[0]
    assert "again" in texts[1]


async def test_change_of_health_that_control_missed_is_sent_again(
    control: Control, loads: LoadReports, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_reports, "REFRESH_INTERVAL_S", 3600)
    board.carried["d"] = IDLE
    async with running(loads.run):
        await eventually(lambda: control.reports)
        control.status = 503
        board.carried["d"] = replace(IDLE, healthy=(), unhealthy=("http://a", "http://b"))
        loads.changed("d")
        await control.refuses()
        control.status = 200
        await eventually(lambda: len(control.reports) == 2)
    assert control.loads[1][0]["unhealthy"] == ["http://a", "http://b"]


async def test_idle_deployments_are_told_of_again_now_and_then(
    control: Control, loads: LoadReports, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_reports, "REFRESH_INTERVAL_S", 0.05)
    board.carried = {f"d{number}": replace(IDLE, deployment_id=f"d{number}") for number in range(1500)}
    async with running(loads.run):
        await eventually(lambda: len(control.reports) >= 4)
    assert [len(one) for one in control.loads[:4]] == [1000, 500, 1000, 500], "in turn, one post at a time"


async def test_rejected_report_is_not_repeated(
    control: Control, loads: LoadReports, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    control.status = 422
    board.carried["d"] = IDLE
    async with running(loads.run):
        await eventually(lambda: control.refused)
        await asyncio.sleep(2 * BUSY_INTERVAL_S)
    assert control.refused == 1
    assert "report this bug" in caplog.text


async def test_last_report_says_that_nothing_is_carried_any_more(
    control: Control, loads: LoadReports, board: Board
) -> None:
    board.carried["d"] = PARKED
    async with running(loads.run):
        loads.changed("d")
        await eventually(lambda: control.reports)
    board.carried["d"] = IDLE
    await loads.finish()
    assert [one[0]["parked"] for one in control.loads] == [3] * (len(control.loads) - 1) + [0]


# --- outages, wakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 404, 500, 302])
async def test_any_answer_but_200_means_that_it_was_not_taken(
    control: Control, reports: ControlReports, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    control.status = status
    for _ in range(3):
        with pytest.raises(ReportNotTakenError, match=str(status)):
            await reports.post("loads", {})
    assert len(caplog.records) == 1
    assert TOKEN not in caplog.text


async def test_control_that_cannot_be_reached_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    port = own_port()
    reports = ControlReports(f"http://127.0.0.1:{port}", TOKEN, silent_s=0)
    for _ in range(3):
        with pytest.raises(ReportNotTakenError):
            await reports.post("loads", {})
        assert not await reports.wake("m", "d")
    await reports.close()
    assert len(caplog.records) == 1


async def test_control_that_starts_later_is_not_logged(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    reports = ControlReports(control.url, TOKEN)
    control.status = 503
    with pytest.raises(ReportNotTakenError):
        await reports.post("loads", {})
    control.status = 200
    await reports.post("loads", {})
    assert caplog.records == []
    control.status = 503
    with pytest.raises(ReportNotTakenError):
        await reports.post("loads", {})
    await reports.close()
    assert len(caplog.records) == 1, "it has been there, so it is away"


async def test_wake_is_taken_on_when_control_says_so(
    control: Control, reports: ControlReports, caplog: pytest.LogCaptureFixture
) -> None:
    assert await reports.wake("m", "d")
    assert control.reports == [("wake", {"model_id": "m", "deployment_id": "d"})]
    for control.status in (404, 503):
        assert not await reports.wake("m", "d")
    assert caplog.records == [], "a deployment that is gone, or too many wake hooks, is no outage"


# --- logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "level"), [(200, "INFO"), (399, "INFO"), (400, "WARNING"), (499, "WARNING"), (500, "ERROR")]
)
async def test_call_leaves_one_line(control: Control, lines: CallLog, status: int, level: str) -> None:
    lines.ended("d", "http://a", replace(CALL, status=status))
    async with running(lines.run):
        await eventually(lambda: control.reports)
    assert control.lines == [
        {
            "deployment_id": "d",
            "timestamp": "1700000000123000000",
            "level": level,
            "message": f"POST /v1/chat/completions {status} in 12.3 ms",
            "replica": "http://a",
            "request_id": "req-1",
        }
    ]


async def test_call_without_a_replica_leaves_a_line_too(control: Control, lines: CallLog) -> None:
    lines.ended("d", None, replace(CALL, status=503, path="/models/" + "x" * 5000))
    await lines.send()
    assert control.lines[0]["replica"] is None
    assert len(control.lines[0]["message"]) < 1100


async def test_lines_are_sent_a_thousand_at_a_time_and_in_order(control: Control, lines: CallLog) -> None:
    for number in range(2500):
        lines.ended("d", None, replace(CALL, request_id=str(number)))
    await lines.send()
    assert [len(report["lines"]) for _, report in control.reports] == [1000, 1000, 500]
    assert [line["request_id"] for line in control.lines] == [str(number) for number in range(2500)]


async def test_oldest_lines_are_dropped_and_counted_while_control_is_away(
    control: Control, lines: CallLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "MAX_KEPT", 5)
    monkeypatch.setattr(call_log, "MAX_LINES", 3)
    control.status = 503
    for number in range(8):
        lines.ended("d", None, replace(CALL, request_id=str(number)))
        with pytest.raises(ReportNotTakenError):
            await lines.send()
    control.status = 200
    await lines.send()
    assert [line["request_id"] for line in control.lines] == ["3", "4", "5", "6", "7"]
    assert "lack 3 lines" in caplog.text
    await lines.send()
    assert caplog.text.count("lack") == 1


async def test_lines_are_bounded_between_two_posts(
    control: Control, lines: CallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "MAX_KEPT", 5)
    for number in range(8):
        lines.ended("d", None, replace(CALL, request_id=str(number)))
    await lines.send()
    assert [line["request_id"] for line in control.lines] == ["3", "4", "5", "6", "7"]


async def test_lines_that_come_while_others_are_refused_do_not_exceed_the_bound(
    control: Control, lines: CallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "MAX_KEPT", 5)
    control.status = 503
    for number in range(5):
        lines.ended("d", None, replace(CALL, request_id=str(number)))
    sending = asyncio.create_task(lines.send())
    await asyncio.sleep(0)
    for number in range(5, 8):
        lines.ended("d", None, replace(CALL, request_id=str(number)))
    with pytest.raises(ReportNotTakenError):
        await sending
    control.status = 200
    await lines.send()
    assert [line["request_id"] for line in control.lines] == ["3", "4", "5", "6", "7"]


async def test_rejected_lines_do_not_block_those_after_them(
    control: Control, lines: CallLog, caplog: pytest.LogCaptureFixture
) -> None:
    control.status = 400
    lines.ended("d", None, CALL)
    await lines.send()
    control.status = 200
    lines.ended("d", None, replace(CALL, request_id="2"))
    await lines.send()
    assert [line["request_id"] for line in control.lines] == ["2"]
    assert "report this bug" in caplog.text


# --- many machines ----------------------------------------------------------------------------------------------------


class Away(ControlReports):
    """Takes no reports, and notes when each was sent."""

    def __init__(self) -> None:
        super().__init__("http://away", TOKEN)
        self.sent_s: list[float] = []

    async def post(self, what: str, report: dict[str, Any]) -> None:
        self.sent_s.append(asyncio.get_running_loop().time())
        raise ReportNotTakenError


@pytest.mark.parametrize("what", ["loads", "logs"])
async def test_machines_that_lost_control_together_retry_apart(what: str, board: Board) -> None:
    board.carried["d"] = PARKED
    machines = [Away() for _ in range(40)]
    async with AsyncExitStack() as stack:
        for away in machines:
            if what == "loads":
                reports = LoadReports(away, board, MACHINE)
                reports.changed("d")
                await stack.enter_async_context(running(reports.run))
            else:
                lines = CallLog(away)
                lines.ended("d", "http://a", CALL)
                await stack.enter_async_context(running(lines.run))
        await eventually(lambda: all(len(away.sent_s) > 1 for away in machines))
    pauses = [away.sent_s[1] - away.sent_s[0] for away in machines]
    assert max(pauses) - min(pauses) > 0.1
