"""`tollgate launcher` as a process, with real model servers, at a scripted control: its normal life."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.contracts.launcher.conftest import SERVER, Launcher, MakeLauncher
from tests.contracts.launcher.scripted_control import API_KEY, ScriptedControl, call
from tests.processes import is_running


async def test_deployment_is_woken_served_and_stopped_at_sigterm(launcher: Launcher, control: ScriptedControl) -> None:
    control.deployment |= {"status": "ACTIVE", "replicas": ["http://127.0.0.1:1"]}
    await launcher.started("--health", "/health")
    assert control.deployment["status"] == "SCALED_TO_ZERO", "the stale list is replaced"
    assert control.deployment["health"]["path"] == "/health"
    url = await launcher.woken()
    assert control.statuses[-1] == "LOADING_MODEL"
    pid = await launcher.pid_of(url)
    assert await launcher.stop() == 0
    assert control.history[-2:] == [("replicas", []), ("patch", {"wake_url": None})]
    assert not is_running(pid)


async def test_calls_in_flight_end_before_the_replica_is_stopped(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started()
    url = await launcher.woken()
    control.load["in_flight"] = 1
    calling = asyncio.create_task(call(url, "slow"))
    await asyncio.sleep(0.1)
    stop = asyncio.create_task(launcher.stop())
    await launcher.replicas(0)
    assert (await calling)[0] == 200
    assert not stop.done()
    control.load["in_flight"] = 0
    assert await stop == 0


async def test_replica_is_stopped_after_the_idle_timeout_and_woken_again(
    launcher: Launcher, control: ScriptedControl
) -> None:
    await launcher.started("--idle-timeout-s", "2")
    first = await launcher.pid_of(await launcher.woken())
    await launcher.replicas(0)
    assert control.deployment["status"] == "SCALED_TO_ZERO"
    await launcher.until(lambda: not is_running(first), "the replica is stopped")
    assert await launcher.pid_of(await launcher.woken()) != first


async def test_calls_keep_a_replica(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started("--idle-timeout-s", "4")
    await launcher.woken()
    for second in range(6):
        control.load["last_request_at"] = f"2026-11-22T08:00:0{second}.000Z"
        await asyncio.sleep(1)
        assert control.replicas


async def test_load_scales_up_to_the_limit_and_down_again(launcher: Launcher, control: ScriptedControl) -> None:
    control.deployment["max_concurrency"] = 2
    await launcher.started("--max-replicas", "3", "--idle-timeout-s", "2")
    control.load["parked"] = 50
    assert len(set(await launcher.replicas(3))) == 3
    control.load |= {"parked": 0, "in_flight": 2}
    (survivor,) = await launcher.replicas(1)
    assert (await call(survivor))[0] == 200
    control.load["in_flight"] = 0
    await launcher.replicas(0)


async def test_parked_calls_start_a_replica_when_no_hook_arrives(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started()
    control.load["parked"] = 1
    await launcher.replicas(1)


async def test_wake_hook_answers_only_posts_to_its_secret_path(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started()
    url = str(control.deployment["wake_url"])
    base, _, secret = url.rpartition("/")
    assert len(secret) >= 32
    assert await control.wake("GET") == 405
    assert await control.wake("PUT") == 405
    for wrong in (f"{base}/{'x' * len(secret)}", base, f"{url}/x", base.removesuffix("/wake"), f"{base}/%ff"):
        assert await control.wake(url=wrong) == 404
        assert await control.wake("GET", url=wrong) == 404
    await asyncio.sleep(0.5)
    assert control.statuses == []


async def test_slow_start_shows_progress_and_waits_for_health(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started("--health", "/healthy", server=(*SERVER, "--health-path", "/healthy", "--slow-start-s", "6"))
    await control.wake()
    await launcher.until(
        lambda: "/healthy answers 503; its last line: model server" in launcher.output, "progress is shown"
    )
    assert control.deployment["status"] == "LOADING_MODEL"
    assert control.replicas == []
    await launcher.replicas(1)


async def test_server_without_a_health_path_is_ready_when_it_answers(
    launcher: Launcher, control: ScriptedControl
) -> None:
    await launcher.started(server=(*SERVER, "--health-path", "/nothing-asks-here"))
    await launcher.woken()
    assert control.deployment["health"] is None


async def test_output_reaches_the_log_with_the_replica_and_a_level(
    launcher: Launcher, control: ScriptedControl
) -> None:
    await launcher.started()
    url = await launcher.woken()
    await call(url, "crash")
    await launcher.until(lambda: control.logged("about to crash"), "the line is in the log")
    (line,) = control.logged("about to crash")
    assert (line["replica"], line["level"], line["request_id"]) == (url, "ERROR", None)
    assert line["timestamp"].isdigit()
    assert control.logged("secrets seen: []"), "no setting of Tollgate reaches the replica"


async def test_flood_neither_blocks_the_replica_nor_fills_the_launcher(
    launcher: Launcher, control: ScriptedControl
) -> None:
    await launcher.started()
    url = await launcher.woken()
    control.refusals["POST /logs/append"] = (503, "away")
    assert (await call(url, "flood"))[0] == 200
    control.refusals.clear()
    await asyncio.sleep(1)
    assert (await call(url))[0] == 200
    await launcher.until(lambda: control.logged("lines left out"), "what is left out is counted")
    assert len(control.logged("flood ")) < 20_000


async def test_neither_key_nor_hook_secret_is_shown_anywhere(launcher: Launcher, control: ScriptedControl) -> None:
    control.refusals["PUT /status"] = (400, "something")
    await launcher.started(server=("/bin/sh", "-c", 'echo "key $0"; exec "$@"', API_KEY, *SERVER))
    secret = str(control.deployment["wake_url"]).rpartition("/")[2]
    await launcher.woken()
    await launcher.until(lambda: control.logged("key "), "the line is in the log")
    assert await launcher.stop() == 0
    output = launcher.output + launcher.ready + str(control.logs)
    assert API_KEY not in output
    assert secret not in output
    assert control.logged("key ***")


async def test_replica_dies_with_a_killed_launcher_and_the_next_one_replaces_its_list(
    make_launcher: MakeLauncher, control: ScriptedControl, tmp_path: Path
) -> None:
    first = await make_launcher()
    second = await make_launcher()
    await first.started(server=(*SERVER, "--child-file", str(tmp_path / "child")))
    pid = await first.pid_of(await first.woken())
    child = int((tmp_path / "child").read_text())
    assert is_running(child)
    await first.kill()
    await first.until(lambda: not is_running(pid), "the replica died with its launcher")
    await first.until(lambda: not is_running(child), "and what the replica had started")
    assert control.replicas
    await second.started()
    assert control.replicas == []
    await second.woken()


async def test_second_launcher_takes_over_and_the_first_ends(
    make_launcher: MakeLauncher, control: ScriptedControl
) -> None:
    first = await make_launcher()
    second = await make_launcher()
    await first.started()
    pid = await first.pid_of(await first.woken())
    await second.started()
    assert await first.ended() == 1
    assert "another launcher has taken this deployment over" in first.output
    assert not is_running(pid)
    await second.woken()
    assert control.deployment["wake_url"], "the first has not taken the second's hook away"


async def test_lists_that_somebody_else_changed_are_put_right(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started()
    url = await launcher.woken()
    control.deployment["replicas"] = ["http://127.0.0.1:9"]
    await launcher.until(lambda: control.replicas == [url], "the list is ours again")


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        ((401, "Unauthorized"), "Set TOLLGATE_API_KEY"),
        ((403, "Authentication failed"), "Set TOLLGATE_API_KEY"),
        ((404, "no such deployment"), "Check --url, --model and --deployment"),
        ((400, "127.0.0.1 is not a public address"), "TOLLGATE_EGRESS_ALLOW=127.0.0.0/8"),
    ],
)
async def test_refusal_at_the_start_ends_with_the_remedy(
    launcher: Launcher, control: ScriptedControl, refusal: tuple[int, str], remedy: str
) -> None:
    control.refusals["PATCH "] = refusal
    await launcher.start()
    assert await launcher.ended() == 1
    assert remedy in launcher.output
    assert refusal[1] in launcher.output


async def test_taken_port_ends_with_the_remedy(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.start("--port", str(control.port))
    assert await launcher.ended() == 1
    assert "Choose another --port" in launcher.output


async def test_signal_while_control_is_away_ends_it_at_once(launcher: Launcher, control: ScriptedControl) -> None:
    await control.go_away()
    await launcher.start()
    await launcher.until(lambda: "Control is unreachable" in launcher.output, "it says what is wrong")
    assert await launcher.stop() == 0


async def test_second_signal_stops_without_draining(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started()
    url = await launcher.woken()
    control.load["in_flight"] = 1
    calling = asyncio.create_task(call(url, "slow"))
    await asyncio.sleep(0.1)
    launcher.process.terminate()
    await launcher.replicas(0)
    assert await launcher.stop() == 0
    assert await calling == (0, None)
    assert "second signal" in launcher.output


async def test_replica_that_ignores_sigterm_is_killed(launcher: Launcher, control: ScriptedControl) -> None:
    await launcher.started(server=(*SERVER, "--ignore-sigterm"))
    pid = await launcher.pid_of(await launcher.woken())
    assert await launcher.stop() == 0
    assert not is_running(pid)


async def test_processes_that_a_replica_started_are_stopped_with_it(launcher: Launcher, tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f'sleep 3600 & echo $! > {child}; exec "$@"'
    await launcher.started(server=("/bin/sh", "-c", script, "sh", *SERVER))
    await launcher.woken()
    assert await launcher.stop() == 0
    assert not is_running(int(child.read_text()))


async def test_ready_line_names_the_hook_without_its_secret(launcher: Launcher) -> None:
    await launcher.started()
    words = dict(word.split("=", 1) for word in launcher.ready.split()[1:])
    assert list(words) == ["hook", "model", "deployment"]
    async with aiohttp.ClientSession() as session, session.get(words["hook"]) as answer:
        assert answer.status == 404
