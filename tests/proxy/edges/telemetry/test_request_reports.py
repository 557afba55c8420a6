"""Ended calls reach the list of requests, each once, or a sample that stands for all. Control's client is a fake."""

import logging
from typing import Any

import orjson
import pytest

from policy.billing import Tokens
from policy.traffic import ListedRequest
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.answers import EndCause, RefusingLimit
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError, ReportRejectedError
from proxy.edges.telemetry import listed_calls
from proxy.edges.telemetry.listed_calls import ListedCalls
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor import request_reports
from proxy.edges.telemetry.supervisor.request_reports import RequestReports
from tests.proxy.edges.telemetry.test_metrics import route_of

SECOND = 1_700_000_000
MOST = 10


class Control(ControlReports):
    """Takes rows once, as control does. `loses`: how many answers are lost after a batch was taken."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", "token")
        self.away = self.rejects = False
        self.loses = 0
        self.sizes: list[int] = []
        self.rows: dict[tuple[str, int, int], ListedRequest] = {}

    async def post(self, what: str, report: dict[str, Any]) -> None:
        assert what == "requests"
        if self.rejects:
            raise ReportRejectedError("rows.0 is malformed")
        if self.away:
            raise ReportNotTakenError
        self.sizes.append(len(report["rows"]))
        for wire in orjson.loads(orjson.dumps(report["rows"])):
            row = ListedRequest.from_wire(wire)
            self.rows.setdefault((row.workspace_id, row.timestamp_ms, row.id), row)
        if self.loses:
            self.loses -= 1
            raise ReportNotTakenError


class Machine:
    """A supervisor, its workers, control, and the time."""

    def __init__(self, workers: int = 1, most: int = MOST) -> None:
        self.control = Control()
        self.now_s = float(SECOND)
        self.reports = RequestReports(self.control, most, lambda: self.now_s)
        self.workers = [ListedCalls(most, lambda: int(self.now_s * 1e9)) for _ in range(workers)]

    def flush(self) -> None:
        for worker in self.workers:
            self.reports.add(orjson.loads(orjson.dumps(worker.drain())))

    async def pass_time(self, seconds: float = 3.0) -> list[ListedRequest]:
        """Send what is over then; return all rows that control has."""
        self.now_s += seconds
        self.flush()
        await self.reports.send()
        return list(self.control.rows.values())


def call(status: int = 200, *, after_ms: int = 0, workspace: str = "ws", **more: Any) -> RequestReport:
    labels = CallLabels(
        method="POST",
        path=more.pop("path", "/v1/chat/completions"),
        workspace_id=workspace,
        external_entity_id="customer",
        group_id="grp_1",
        key_prefix="tg_abc",
        slug=more.pop("slug", "acme/chat"),
        model_id=more.pop("model_id", ""),
    )
    members: dict[str, Any] = {
        "labels": labels,
        "ended_at_ms": SECOND * 1000 + after_ms,
        "request_id": "r-1",
        "status": status,
        "end_cause": None,
        "request_bytes": 1,
        "response_bytes": 1,
        "bill": Bill(Tokens(input=1, output=1)),
        "event_key": "key",
        "duration_s": 0.25,
        "ours_s": 0.001,
        "upstream_s": 0.2,
        "first_byte_s": 0.125,
        "route": route_of(None),
    }
    return RequestReport(**(members | more))


@pytest.fixture
async def machine() -> Machine:
    return Machine()


async def test_row_says_what_the_report_says(machine: Machine) -> None:
    machine.workers[0].add([call()])
    (row,) = await machine.pass_time()
    assert row._replace(id=0) == ListedRequest(
        *(0, "ws", SECOND * 1000, "r-1", "customer", "tg_abc", "acme/chat", "/v1/chat/completions", 200, ""),
        *("", "", "", "", 125_000, 250_000, "key", 1),
    )


async def test_row_of_a_refusal_names_code_and_limit(machine: Machine) -> None:
    cause = EndCause("limit", RefusingLimit("grp_0", "REQUEST", "MINUTE", "5"))
    machine.workers[0].add([call(429, end_cause=cause, bill=None, event_key=None, first_byte_s=None)])
    (row,) = await machine.pass_time()
    assert (row.status, row.error_code, row.event_key, row.first_byte_us) == (429, "RATE_LIMITED", "", None)
    limit = (row.limit_group_id, row.limit_type, row.limit_unit, row.limit_threshold)
    assert limit == ("grp_0", "REQUEST", "MINUTE", "5")


@pytest.mark.parametrize(
    ("cause", "code"),
    [("caller_gone", "CLIENT_CLOSED_REQUEST"), ("bad_credential", ""), ("error_in_answer", ""), ("bug", None)],
)
async def test_row_of_a_failure_has_the_code_of_its_cause(machine: Machine, cause: str, code: str | None) -> None:
    machine.workers[0].add([call(502, end_cause=EndCause(cause))])
    (row,) = await machine.pass_time()
    assert row.error_code == ("INTERNAL_GATEWAY_ERROR" if code is None else code)


async def test_rubbish_of_callers_is_bounded_and_escaped(machine: Machine) -> None:
    machine.workers[0].add([call(404, slug="", path="/\udcff\0é" + "x" * 9000), call(200, slug="", model_id="mdl_1")])
    direct, rubbish = sorted(await machine.pass_time(), key=lambda row: row.status)
    assert rubbish.path.isascii()
    assert len(rubbish.path) <= 256
    assert direct.slug == "mdl_1"


async def test_calls_with_an_unknown_key_are_not_listed(machine: Machine) -> None:
    machine.workers[0].add([call(403, workspace=""), call(), call(403, workspace="")])
    assert [row.status for row in await machine.pass_time()] == [200]
    machine.workers[0].add([call(403, workspace="", after_ms=5000)] * 50 + [call(after_ms=5000)] * 2)
    assert [row.status for row in await machine.pass_time(6)] == [200] * 3


async def test_all_calls_up_to_the_bound_are_listed_whichever_worker_had_them() -> None:
    machine = Machine(workers=3)
    for number in range(MOST):
        machine.workers[number % 3].add([call(after_ms=99 * number, request_id=f"r-{number}")])
    rows = await machine.pass_time()
    assert sorted(row.request_id for row in rows) == sorted(f"r-{number}" for number in range(MOST))
    assert {row.weight for row in rows} == {1}


async def test_above_the_bound_a_sample_of_successes_stands_for_all_of_the_machine() -> None:
    machine = Machine(workers=4)
    for number in range(1000):
        status = 429 if number % 250 == 7 else 200
        machine.workers[number % 4].add([call(status, after_ms=number * 999 // 1000)])
    rows = await machine.pass_time()
    assert len(rows) <= MOST
    assert [row.weight for row in rows if row.status == 429] == [1] * 4
    assert sum(row.weight for row in rows if row.status == 200) == 996


async def test_more_refusals_than_the_bound_leave_one_success() -> None:
    machine = Machine(workers=2)
    for number in range(600):
        machine.workers[number % 2].add([call(200 if number % 3 == 0 else 429)])
    rows = await machine.pass_time()
    assert len(rows) <= MOST
    assert [row.weight for row in rows if row.status == 200] == [200]
    assert sum(row.weight for row in rows if row.status == 429) == 400


async def test_a_busy_workspace_thins_out_no_other(machine: Machine) -> None:
    calls = [call(workspace="busy", after_ms=number) for number in range(900)]
    calls[100:100] = [call(workspace="calm", after_ms=100) for _ in range(3)]
    machine.workers[0].add(calls)
    rows = await machine.pass_time()
    assert [row.weight for row in rows if row.workspace_id == "calm"] == [1] * 3
    assert sum(row.weight for row in rows if row.workspace_id == "busy") == 900


async def test_bound_is_per_second(machine: Machine) -> None:
    """Seconds of the calls' ends: batches may have calls of several."""
    machine.workers[0].add([call(after_ms=100 * number) for number in range(40)])
    rows = await machine.pass_time(8)
    assert [row.weight for row in rows] == [1] * 40


async def test_calls_of_a_second_that_lasts_are_held_back(machine: Machine) -> None:
    machine.workers[0].add([call()])
    assert not machine.workers[0].is_due
    assert await machine.pass_time(0.5) == []
    assert await machine.pass_time(0.6) == [], "another worker may still send some of that second"
    assert len(await machine.pass_time(1)) == 1


async def test_memory_of_a_second_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_calls, "MAX_GATHERED", 50)
    for _ in range(40):
        machine.workers[0].add([call()] * 20)
        assert len(machine.workers[0]._calls) < 70
    rows = await machine.pass_time()
    assert len(rows) <= MOST
    assert sum(row.weight for row in rows) == 800


async def test_a_lost_answer_doubles_nothing(machine: Machine) -> None:
    machine.control.loses = 1
    machine.workers[0].add([call()] * 3)
    with pytest.raises(ReportNotTakenError):
        await machine.pass_time()
    assert len(await machine.pass_time()) == 3
    assert machine.control.sizes == [3, 3]


async def test_rows_leave_in_batches(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reports, "MAX_ROWS", 4)
    machine.workers[0].add([call()] * 10)
    await machine.pass_time()
    assert machine.control.sizes == [4, 4, 2]


def unlisted(machine: Machine) -> float:
    (family,) = machine.reports.collect()
    assert family.name == "tollgate_unlisted_calls"
    return float(family.samples[0].value)


@pytest.mark.parametrize("is_read", [False, True])
async def test_rows_beyond_the_bound_are_dropped_and_logged_while_control_is_away(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_read: bool
) -> None:
    monkeypatch.setattr(request_reports, "MAX_KEPT", 20)
    machine.control.away = True
    for second in range(6):
        machine.workers[0].add([call(after_ms=1000 * second)] * 100)
        if is_read:
            with pytest.raises(ReportNotTakenError):
                await machine.pass_time()
    with pytest.raises(ReportNotTakenError):
        await machine.pass_time(10)
    machine.control.away = False
    rows = await machine.pass_time()
    assert len(rows) <= 20 + 20
    lacks = [record.args[0] for record in caplog.records if "lacks" in record.message]  # type: ignore[index]
    assert sum(lacks) + sum(row.weight for row in rows) == 600  # type: ignore[arg-type]
    assert unlisted(machine) == sum(lacks)  # type: ignore[arg-type]


async def test_rejected_rows_are_logged_and_not_sent_again(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.control.rejects = True
    machine.workers[0].add([call()])
    await machine.pass_time()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert unlisted(machine) == 1
    machine.control.rejects = False
    assert await machine.pass_time() == []


async def test_last_rows_are_sent_when_worker_and_supervisor_end(machine: Machine) -> None:
    class Channel:
        congested = False

        def counted(self, counts: dict[str, Any]) -> None:
            machine.reports.add(orjson.loads(orjson.dumps(counts["requests"])))

    metrics = WorkerMetrics(Channel(), listed=machine.workers[0])
    metrics.finished(call())
    metrics.close()
    await machine.reports.finish(1)
    assert len(machine.control.rows) == 1


async def test_rows_wait_while_the_channel_is_congested(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_calls, "MAX_PICKED", 15)
    for second in range(4):
        machine.workers[0].add([call(after_ms=1000 * second)] * 10)
    machine.now_s += 9
    message = machine.workers[0].drain()
    assert (len(message["calls"]), message["weights"], message["dropped"]) == (15, [1] * 15, 25)
