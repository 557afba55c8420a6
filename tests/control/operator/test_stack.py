"""`tollgate up` with tiny programs as parts, which die, ignore SIGTERM or never become ready."""

import asyncio
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from control.operator import stack, stack_parts
from control.operator.stack import Options, Ports, PortTakenError
from control.operator.stack_parts import PartRunner, StackError, StackPart
from runtime import child_process
from runtime.child_process import Child, Launch, can_bind, free_ports, tie_to_parent
from tests.processes import is_running
from tests.waiting import PATIENCE_S, eventually

SLEEPS = "import time; time.sleep(60)"
IGNORES_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); open('deaf', 'w').close(); time.sleep(60)"


class Lines(list[str]):
    """Printed progress lines, and a way to wait for one."""

    async def until(self, words: str) -> None:
        await eventually(lambda: any(words in line for line in self))


def part(script: str, ready: bool = True, grace_s: float = 5.0) -> StackPart:
    async def is_ready() -> bool:
        return ready

    async def stop(child: Child) -> None:
        child.terminate()

    return StackPart("thing", Launch([sys.executable, "-c", script], dict(os.environ)), is_ready, stop, grace_s)


async def started(runner: PartRunner) -> None:
    await runner.begin()
    await runner.until_ready()


async def test_a_part_that_dies_before_it_is_ready_is_reported() -> None:
    runner = PartRunner(part("raise SystemExit(3)", ready=False), Lines().append)
    with pytest.raises(StackError, match="thing ended with status 3 before it was ready"):
        await started(runner)
    await runner.stop()


async def test_parts_start_together_once_what_they_need_first_is_ready() -> None:
    """None of the last two is ready before the other has begun, and the first needs a second look."""
    lines = Lines()
    looks = iter((False, True))

    async def second_look() -> bool:
        return next(looks)

    async def both_begun() -> bool:
        return {"starting control", "starting proxy"} <= set(lines)

    all_parts = [replace(part(SLEEPS), name="redis", is_ready=second_look, is_needed_first=True)]
    all_parts += [replace(part(SLEEPS), name=name, is_ready=both_begun) for name in ("control", "proxy")]
    runners: list[PartRunner] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            await stack._start(all_parts, runners, lines.append)
    finally:
        await asyncio.gather(*(runner.stop() for runner in runners))
    steps = [" ".join(line.split()[:3]) for line in lines if "stopping" not in line]
    assert steps == [
        *("starting redis", "redis is ready", "starting control", "starting proxy"),
        *("control is ready", "proxy is ready"),
    ]


async def test_a_part_has_its_whole_time_after_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a proxy beside a control that migrates a large database."""
    monkeypatch.setattr(stack_parts, "START_TIMEOUT_S", 5.0)
    looks = iter((False, True))

    async def second_look() -> bool:
        return next(looks)

    runner = PartRunner(replace(part(SLEEPS), is_ready=second_look), Lines().append)
    await runner.begin()
    runner._began -= 60.0
    await runner.until_ready()
    await runner.stop()


async def test_a_part_that_is_never_ready_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_parts, "START_TIMEOUT_S", 0.2)
    runner = PartRunner(part(SLEEPS, ready=False), Lines().append)
    with pytest.raises(StackError, match="not ready after"):
        await started(runner)
    await runner.stop()


async def test_a_dead_part_is_restarted_until_stopped() -> None:
    progress = Lines()
    runner = PartRunner(part(SLEEPS), progress.append)
    await started(runner)
    first = runner.child
    assert first is not None
    first.kill()
    await progress.until("was killed by SIGKILL; restarting it in")
    await eventually(lambda: runner.child is not first)
    second = runner.child
    assert second is not None
    await runner.stop()
    assert await second.wait() == -signal.SIGTERM


async def test_a_part_that_dies_after_stop_restarting_is_not_restarted() -> None:
    progress = Lines()
    runner = PartRunner(part(SLEEPS), progress.append)
    await started(runner)
    runner.stop_restarting()
    assert runner.child is not None
    runner.child.kill()
    await runner.stop()
    assert not any("restarting" in line for line in progress)


async def test_a_part_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    progress = Lines()
    runner = PartRunner(part(IGNORES_SIGTERM, grace_s=0.3), progress.append)
    await started(runner)
    await eventually((tmp_path / "deaf").exists)
    await runner.stop()
    assert "thing did not stop within 0 s: killed" in progress


async def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        options = options_for(tmp_path, Ports(port, 0, 0))
        with pytest.raises(
            PortTakenError, match=f"port {port} on 127.0.0.1 is in use; choose another with --proxy-port"
        ):
            await stack.up(options, Lines().append, Lines().append)
    assert can_bind("127.0.0.1", port)


async def test_one_port_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="is given twice"):
        await stack.up(options_for(tmp_path, Ports(21_111, 21_111, 0)), Lines().append, Lines().append)


def test_free_ports_are_distinct_and_avoid_excluded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range is so small that random choices would nearly always collide."""
    monkeypatch.setattr(child_process, "_PORTS_TO_TRY", range(21_200, 21_204))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 21_203))
        holder.listen()
        assert set(free_ports("127.0.0.1", 2, excluded=[21_200])) == {21_201, 21_202}
        with pytest.raises(OSError, match="no 3 free ports between 21200 and 21203"):
            free_ports("127.0.0.1", 3, excluded=[21_200])


def options_for(data: Path, ports: Ports) -> Options:
    return Options(data, "127.0.0.1", "127.0.0.1", ports, 1, None, None, dict(os.environ), 1.0)


async def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """Holds even if the parent is killed: the kernel signals the child."""
    script = (
        "import subprocess, sys; from runtime.child_process import tie_to_parent;"
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=tie_to_parent());"
        "print(child.pid, flush=True); child.wait()"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, preexec_fn=tie_to_parent()
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(PATIENCE_S):
        while is_running(child):
            await asyncio.sleep(0.01)
