"""The reports by which a supervisor tells control of the incarnations that may still give events."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.edges.journal.supervisor import machine_reports
from proxy.edges.journal.supervisor.machine_reports import MachineReports, machine_name
from proxy.edges.replicas.supervisor.control_reports import MACHINES, ControlReports, ReportNotTakenError
from tests.waiting import eventually


class Control:
    """Takes reports, or answers with another status."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.Response(status=self.status)


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
    await runner.cleanup()


@pytest.fixture
async def reports(control: Control, tmp_path: Path) -> AsyncIterator[MachineReports]:
    client = ControlReports(control.url, "token", MACHINES)
    yield MachineReports(client, tmp_path, lambda: ["running"])
    await client.close()


async def test_it_tells_of_what_runs_and_of_journals_on_disk(
    control: Control, reports: MachineReports, tmp_path: Path
) -> None:
    for name in ("left", "running", ".shipped", ".done-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "ballast").write_bytes(b"")
    await reports.send()
    assert control.bodies == [{"machine": machine_name(tmp_path), "incarnations": ["left", "running"]}]


async def test_without_a_directory_it_tells_of_what_runs(control: Control, tmp_path: Path) -> None:
    client = ControlReports(control.url, "token", MACHINES)
    await MachineReports(client, tmp_path / "missing", lambda: ["running", ""]).send()
    await client.close()
    assert control.bodies[0]["incarnations"] == ["running"]


async def test_it_tells_at_the_start_and_soon_after_a_change(
    control: Control, reports: MachineReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_reports, "GATHER_S", 0.01)
    task = asyncio.ensure_future(reports.run())
    await eventually(lambda: len(control.bodies) == 1)
    reports.changed()
    await eventually(lambda: len(control.bodies) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_tells_again_soon_while_a_worker_starts(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_reports, "GATHER_S", 0.01)
    live = ["", "running"]
    client = ControlReports(control.url, "token", MACHINES)
    task = asyncio.ensure_future(MachineReports(client, tmp_path, lambda: live).run())
    await eventually(lambda: control.bodies)
    live[0] = "started"
    await eventually(lambda: control.bodies[-1]["incarnations"] == ["running", "started"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()


async def test_an_older_control_is_no_outage(
    control: Control, reports: MachineReports, caplog: pytest.LogCaptureFixture
) -> None:
    control.status = 404
    await reports.send()
    assert caplog.records == []
    control.status = 503
    with pytest.raises(ReportNotTakenError):
        await reports.send()


async def test_a_report_that_control_calls_malformed_is_logged(
    control: Control, reports: MachineReports, caplog: pytest.LogCaptureFixture
) -> None:
    control.status = 400
    await reports.send()
    assert "rejected a report of workers" in caplog.text
