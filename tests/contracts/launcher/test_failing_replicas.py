"""`tollgate launcher` with replicas that crash, hang, run out of memory or never start, and an absent control."""

import asyncio

import pytest

from launcher.start_attempts import MAX_FAILED_STARTS
from tests.contracts.launcher.conftest import PROBES, SERVER, Launcher
from tests.contracts.launcher.scripted_control import ScriptedControl, call
from tests.processes import is_running


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("crash", "ended with status 3"),
        ("killed", "was killed (signal 9); possibly out of memory"),
        ("memory", "ended with status 1"),
    ],
)
async def test_crashed_replica_leaves_the_list_and_is_replaced(
    launcher: Launcher, control: ScriptedControl, content: str, reason: str
) -> None:
    await launcher.started("--health", "/health")
    url = await launcher.woken()
    assert await call(url, content) == (0, None)
    await launcher.until(lambda: url not in control.replicas, "it has left the list")
    (after,) = await launcher.replicas(1)
    assert after != url
    await launcher.until(lambda: control.logged(reason), "the log says why")
    assert control.logged(reason)[0]["level"] == "ERROR"
    assert reason in launcher.output


async def test_hanging_replica_is_killed_and_replaced(launcher: Launcher, control: ScriptedControl) -> None:
    control.deployment["health"] = {"path": "/health"} | PROBES
    await launcher.started()
    url = await launcher.woken()
    pid = await launcher.pid_of(url)
    calling = asyncio.create_task(call(url, "hang"))
    await launcher.until(lambda: not is_running(pid), "it is killed")
    assert await calling == (0, None)
    await launcher.until(lambda: control.replicas and control.replicas != [url], "another one serves")
    await launcher.until(lambda: control.logged("failed 3 health checks in a row"), "the log says why")


async def test_replica_that_never_starts_makes_the_deployment_failed_until_it_is_woken(
    launcher: Launcher, control: ScriptedControl
) -> None:
    await launcher.started(server=(*SERVER, "--exit-at-once"))
    await control.wake()
    await launcher.until(lambda: control.deployment["status"] == "FAILED", "it is given up")
    assert control.statuses[-2:] == ["LOADING_MODEL", "FAILED"]
    message = str(control.deployment["error_message"])
    assert message.startswith("5 starts in a row failed; the last replica ended with status 7 before it was healthy")
    assert "model file not found: /models/none.gguf" in message
    await launcher.until(lambda: control.logged("model file not found"), "its output is in the log")
    assert launcher.output.count("): started") == MAX_FAILED_STARTS
    await asyncio.sleep(1.5)
    assert launcher.output.count("): started") == MAX_FAILED_STARTS
    assert await control.wake() == 202
    await launcher.until(lambda: launcher.output.count("): started") > MAX_FAILED_STARTS, "it tries again")


async def test_retry_of_a_failed_deployment_is_another_attempt(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started(server=(*SERVER, "--exit-at-once"))
    await control.wake()
    await launcher.until(lambda: control.deployment["status"] == "FAILED", "it is given up")
    await asyncio.sleep(1.5)
    control.deployment["status"] = "SCALED_TO_ZERO"
    await launcher.until(lambda: launcher.output.count("): started") > MAX_FAILED_STARTS, "it tries again")
    await launcher.until(lambda: control.deployment["status"] == "LOADING_MODEL", "the status follows")


async def test_command_that_cannot_be_run_is_reported(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started(server=("/no/such/server",))
    await control.wake()
    await launcher.until(lambda: control.deployment["status"] == "FAILED", "it is given up")
    assert "could not be started: No such file or directory. Check COMMAND" in control.deployment["error_message"]


async def test_start_that_takes_too_long_is_killed(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started("--start-timeout-s", "1", server=(*SERVER, "--slow-start-s", "60"))
    await control.wake()
    await launcher.until(lambda: "did not become healthy within 1 s" in launcher.output, "it is killed")
    await launcher.until(lambda: launcher.output.count("): started") == 2, "the next one is tried")


async def test_replicas_serve_on_while_control_is_away(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started("--idle-timeout-s", "3")
    url = await launcher.woken()
    await control.go_away()
    await launcher.until(lambda: "Control is unreachable" in launcher.output, "the outage is told")
    await asyncio.sleep(5)
    assert (await call(url))[0] == 200, "nothing becomes idle while the load is unknown"
    assert launcher.output.count("Control is unreachable") == 1
    await control.come_back()
    await launcher.until(lambda: "Control answers again" in launcher.output, "its end is told")
    await launcher.until(lambda: control.logged("answered by pid"), "lines of the outage arrive")


async def test_crash_while_control_is_away_is_told_when_it_is_back(
    launcher: Launcher, control: ScriptedControl
) -> None:
    await launcher.started()
    url = await launcher.woken()
    await control.go_away()
    await call(url, "crash")
    await launcher.until(lambda: launcher.output.count("): healthy after") == 2, "it is replaced meanwhile")
    await control.come_back()
    await launcher.until(lambda: control.replicas and control.replicas != [url], "the new one is listed")


async def test_conflicting_status_is_no_error(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started()
    control.refusals["PUT /status"] = (409, "illegal move")
    await launcher.woken()
    assert "illegal move" not in launcher.output
