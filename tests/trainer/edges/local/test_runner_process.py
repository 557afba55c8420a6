"""Checks how the trainer starts a runner, with programs in its place that do not do what a runner does."""

import signal
import sys
from pathlib import Path

import pytest

from trainer.edges.local import runner_process
from trainer.edges.local.runner_process import RunnerNotStartedError, RunnerProcess
from trainer.runner.launch import Launch

CLAIMS = "from trainer.runner.state import RunnerState, claim; claim(RunnerState.own(None), sys.argv[1])"


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_process, "_START_S", 2.0)


def launch(control: Path) -> Launch:
    return Launch("node", str(control), str(control), [], {}, [], 64, 1000, 1.0)


def becomes(monkeypatch: pytest.MonkeyPatch, program: str, control: Path) -> None:
    """Start this Python program instead of a runner."""
    text = f"import signal, sys; sys.path.insert(0, {str(Path.cwd())!r}); {program}"
    monkeypatch.setattr(runner_process, "runner_argv", lambda: [sys.executable, "-S", "-c", text, str(control)])


async def test_runner_that_its_job_stopped_before_its_word_is_taken_up_and_can_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, f"{CLAIMS}; signal.pause()", tmp_path)

    runner = await RunnerProcess.start(launch(tmp_path))
    was_alive = runner.is_alive
    runner.send(signal.SIGKILL)
    await runner.ended()

    assert was_alive
    assert not runner.is_alive


async def test_runner_that_never_claims_its_node_is_killed_and_was_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(monkeypatch, "signal.pause()", tmp_path)
    monkeypatch.setattr(runner_process, "_START_S", 0.05)

    with pytest.raises(RunnerNotStartedError):
        await RunnerProcess.start(launch(tmp_path))
