"""The reports by which a supervisor tells control of the incarnations that may still give events."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.edges.journal.supervisor import machine_reports
from proxy.edges.journal.supervisor.machine_reports import REBUILT_AT_ONCE, MachineReports, journals_in, machine_name
from proxy.edges.replicas.supervisor.control_reports import MACHINES, ControlReports, ReportNotTakenError
from runtime.background import running
from tests.waiting import eventually

KEY = "tg:{grp_a|group}"


class Control:
    """Takes reports, or answers with another status. `waits`: the trees in its answers, as of now."""

    def __init__(self) -> None:
        self.status = 200
        self.waits: dict[str, str] | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        await self.gate.wait()
        return web.json_response({} if self.waits is None else {"waiting": self.waits}, status=self.status)


class Worker:
    """A slot as the reports see it. `messages`: what was sent to the worker."""

    def __init__(self, incarnation: str = "running") -> None:
        self.incarnation = incarnation
        self.health: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []

    async def flush(self) -> bool:
        return bool(self.health)

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


async def committed(places: Mapping[str, tuple[int, int]]) -> None:
    """Journals that are committed at once."""


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    control = Control()
    app = web.Application()
    app.add_routes([web.post("/internal/v1/machines", control.handle)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    control.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield control
    control.gate.set()
    await runner.cleanup()


@pytest.fixture
async def client(control: Control) -> AsyncIterator[ControlReports]:
    client = ControlReports(control.url, "token", MACHINES, silent_s=0)
    yield client
    await client.close()


@pytest.fixture
def workers() -> list[Worker]:
    return [Worker()]


@pytest.fixture
def reports(client: ControlReports, workers: list[Worker], tmp_path: Path) -> MachineReports:
    return MachineReports(client, tmp_path, lambda: workers, committed)


@asynccontextmanager
async def served(reports: MachineReports) -> AsyncIterator[None]:
    async with running(reports.run, reports.rebuilds.run):
        yield


async def test_it_tells_of_what_runs_and_of_journals_on_disk(
    control: Control, reports: MachineReports, tmp_path: Path
) -> None:
    for name in ("left", "running", ".shipped", ".done-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "ballast").write_bytes(b"")
    await reports.send()
    assert control.bodies == [{"machine": machine_name(tmp_path), "incarnations": ["left", "running"], "rebuilt": {}}]


async def test_without_a_directory_it_tells_of_what_runs(
    control: Control, client: ControlReports, tmp_path: Path
) -> None:
    workers = [Worker("running"), Worker("")]
    await MachineReports(client, tmp_path / "missing", lambda: workers, committed).send()
    assert control.bodies[0]["incarnations"] == ["running"]


def test_a_machine_keeps_its_name_and_has_it_alone(tmp_path: Path) -> None:
    """Two machines have the same host name and, each on a disk of its own, the same directory."""
    directory = tmp_path / "data" / "journal"
    name = machine_name(directory)
    assert machine_name(directory) == name
    assert journals_in(directory) == set()
    (tmp_path / "data").rename(tmp_path / "other disk")
    assert machine_name(directory) != name


def test_a_machine_has_a_name_when_the_disk_refuses_its_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert str(tmp_path) in machine_name(tmp_path / "file")
    assert "TOLLGATE_JOURNAL_DIR" in caplog.text


async def test_it_tells_again_and_again_and_at_once_after_a_change(
    control: Control, reports: MachineReports, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_reports, "INTERVAL_S", 3600)
    async with served(reports):
        await eventually(lambda: len(control.bodies) == 1)
        reports.changed()
        await eventually(lambda: len(control.bodies) == 2)
        workers.append(Worker("started"))
        reports.started("started")
        await eventually(lambda: control.bodies[-1]["incarnations"] == ["running", "started"])
        monkeypatch.setattr(machine_reports, "INTERVAL_S", 0.01)
        reports.changed()
        await eventually(lambda: len(control.bodies) > 9)


async def test_an_older_control_is_no_outage(
    control: Control, reports: MachineReports, workers: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    control.status = 404
    await reports.send()
    assert caplog.records == []
    assert workers[0].messages == [], "it does not know the machine"
    control.status = 503
    with pytest.raises(ReportNotTakenError):
        await reports.send()


async def test_a_report_that_control_calls_malformed_is_logged_once(
    control: Control, reports: MachineReports, workers: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    control.status = 400
    for _ in range(3):
        await reports.send()
    assert caplog.text.count("rejected a report of workers") == 1
    assert workers[0].messages == []


async def test_an_outage_is_logged_once_and_ends(
    control: Control, reports: MachineReports, workers: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    control.status = 503
    for _ in range(3):
        with pytest.raises(ReportNotTakenError):
            await reports.send()
    assert [record.levelname for record in caplog.records if "reports of workers" in record.message] == ["WARNING"]
    control.status = 200
    await reports.send()
    assert "Control takes reports of workers again." in caplog.text


# --- what workers are told --------------------------------------------------------------------------------------------


async def test_workers_may_reserve_once_control_has_taken_a_report(
    control: Control, reports: MachineReports, workers: list[Worker]
) -> None:
    control.status = 503
    early = Worker("early")
    workers.append(early)
    reports.started("early")
    with pytest.raises(ReportNotTakenError):
        await reports.send()
    assert early.messages == []
    control.status = 200
    await reports.send()
    assert [one.messages for one in workers] == [[{"is": "spend", "waiting": {}}]] * 2
    await reports.send()
    assert len(early.messages) == 1, "nothing is new"
    control.status = 503
    late = Worker("late")
    workers.append(late)
    reports.started("late")
    with pytest.raises(ReportNotTakenError):
        await reports.send()
    assert late.messages == [], "control does not know it, and may end what it reserves"
    control.status = 200
    await reports.send()
    assert late.messages == [{"is": "spend", "waiting": {}}]


async def test_confirmations_of_thousands_of_trees_come_in_portions(control: Control, reports: MachineReports) -> None:
    """Control takes no report with more than ten thousand."""
    states = {f"tg:{{grp_{number}|group}}": "e1 n1" for number in range(REBUILT_AT_ONCE + 1)}
    reports.rebuilds.confirmed |= states
    await reports.send()
    await reports.send()
    assert [len(body["rebuilt"]) for body in control.bodies] == [REBUILT_AT_ONCE, 1]
    assert reports.rebuilds.confirmed == {}


async def test_an_answer_that_is_not_controls_lets_no_worker_reserve(tmp_path: Path, workers: list[Worker]) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    app = web.Application()
    app.add_routes([web.post("/internal/v1/machines", page)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = ControlReports(f"http://127.0.0.1:{runner.addresses[0][1]}", "token", MACHINES)
    await MachineReports(client, tmp_path, lambda: workers, committed).send()
    assert workers[0].messages == []
    await client.close()
    await runner.cleanup()


async def test_workers_are_told_what_waits_and_control_what_is_rebuilt(
    control: Control, reports: MachineReports, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_reports, "INTERVAL_S", 3600)
    (worker,) = workers
    control.waits = {KEY: "e1 n1"}
    async with served(reports):
        await eventually(lambda: worker.messages == [{"is": "spend", "waiting": {KEY: "e1 n1"}}])
        assert [body["rebuilt"] for body in control.bodies] == [{}]
        control.waits = {}
        worker.health = {"rebuilt": {KEY: "e1 n1"}, "journal_place": [1, 0]}
        await eventually(lambda: [body["rebuilt"] for body in control.bodies] == [{}, {KEY: "e1 n1"}])
        reports.changed()
        await eventually(lambda: len(control.bodies) == 3)
        assert control.bodies[2]["rebuilt"] == {}, "control keeps what it has taken"
        await eventually(lambda: worker.messages[-1] == {"is": "spend", "waiting": {}})


async def test_a_confirmation_that_control_did_not_take_is_sent_again(
    control: Control, reports: MachineReports, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_reports, "INTERVAL_S", 0.01)
    workers[0].health = {"rebuilt": {KEY: "e1 n1"}, "journal_place": [1, 0]}
    control.waits = {KEY: "e1 n1"}
    async with served(reports):
        await eventually(lambda: control.bodies)
        control.status = 503
        await eventually(lambda: sum(body["rebuilt"] == {KEY: "e1 n1"} for body in control.bodies) >= 3)
        control.status = 200
        await eventually(lambda: len(reports.rebuilds.confirmed) == 0)


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_while_nothing_runs_control_does_not_forget_the_machine(
    control: Control, reports: MachineReports, workers: list[Worker]
) -> None:
    workers[0].incarnation = ""
    await reports.send()
    assert control.bodies == []


async def test_the_last_report_names_nothing_and_no_other_follows(
    control: Control, reports: MachineReports, workers: list[Worker]
) -> None:
    control.gate.clear()
    sending = asyncio.ensure_future(reports.send())
    await eventually(lambda: control.bodies)
    workers[0].incarnation = ""
    ending = asyncio.ensure_future(reports.finish(30))
    await asyncio.sleep(0)
    control.gate.set()
    await asyncio.gather(sending, ending)
    workers[0].incarnation = "running"
    await reports.send()
    assert [body["incarnations"] for body in control.bodies] == [["running"], []]


@pytest.mark.parametrize("rest", ["journal", "worker"])
async def test_there_is_no_last_report_while_events_may_still_come(
    control: Control, reports: MachineReports, workers: list[Worker], tmp_path: Path, rest: str
) -> None:
    if rest == "journal":
        workers[0].incarnation = ""
        (tmp_path / "left").mkdir()
    await reports.finish(30)
    assert control.bodies == []


async def test_a_last_report_that_is_not_taken_is_logged_with_the_remedy(
    control: Control, reports: MachineReports, workers: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    workers[0].incarnation = ""
    control.status = 503
    await reports.finish(30)
    assert f"tollgate spend release --machine {reports.name}" in caplog.text
    control.gate.clear()
    await reports.finish(0.05)
    assert caplog.text.count("tollgate spend release") == 2
