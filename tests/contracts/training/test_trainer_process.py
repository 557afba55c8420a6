"""`python -m trainer` with real jobs on this machine, at a twin of control."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from policy.training.statuses import ENDED
from runtime.child_process import tie_to_parent
from tests.fakes.training_control import TOKEN, FakeControl, served
from tests.ports import own_port
from tests.waiting import eventually


@dataclass
class Trainers:
    """The trainers that a test starts, one after the other, in one directory."""

    directory: Path
    control: FakeControl
    url: str
    lock: int
    processes: list[Process] = field(default_factory=list)

    async def start(self) -> Process:
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        settings = {
            "TOLLGATE_TRAINING_DIR": str(self.directory / "training"),
            "TOLLGATE_CONTROL_URL": self.url,
            "TOLLGATE_INTERNAL_TOKEN": TOKEN,
            "TOLLGATE_TRAINING_CAPACITY": "cpu=2,memory=1Gi,nodes=2",
        }
        with (self.directory / "log").open("a") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainer", "--ready-file", str(ready)),
                env={name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")} | settings,
                stderr=log,
                pass_fds=(self.lock,),
                preexec_fn=tie_to_parent(),
            )
        self.processes.append(process)
        await eventually(lambda: ready.exists() or process.returncode is not None, self.log)
        assert process.returncode is None, self.log()
        return process

    def log(self) -> str:
        return (self.directory / "log").read_text()

    async def until(self, job_id: str, *statuses: str) -> None:
        await eventually(lambda: self.control.jobs[job_id].status in statuses, self.log)

    async def until_logged(self, job_id: str, line: str) -> None:
        await eventually(lambda: line in self.control.log_of(job_id), self.log)


@pytest.fixture
async def trainers(tmp_path: Path) -> AsyncIterator[Trainers]:
    control = FakeControl()
    lock = os.open(tmp_path / "lock of the product", os.O_CREAT | os.O_RDWR)
    async with served(control, own_port()) as url:
        trainers = Trainers(tmp_path, control, url, lock)
        yield trainers
        for process in trainers.processes:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    os.close(lock)


async def test_jobs_outlive_a_killed_trainer_and_end_with_an_orderly_one(trainers: Trainers) -> None:
    control = trainers.control
    first = await trainers.start()
    control.create("short", "echo hello; ls -l /proc/self/fd; echo oops >&2")
    control.create("long", "trap 'echo bye; exit 0' TERM; echo begun; while :; do sleep 0.1; echo tick; done")
    await trainers.until("short", *ENDED)
    assert control.statuses["short"][-2:] == ["TRAINING_JOB_RUNNING", "TRAINING_JOB_COMPLETED"]
    log = control.log_of("short")
    assert control.lines_at_end["short"] == len(log)
    assert {"hello", "oops"} <= set(log)
    assert not any("lock of the product" in line for line in log), "a job holds a file of the product"

    await trainers.until_logged("long", "begun")
    first.kill()
    await first.wait()
    had = len(control.log_of("long"))
    second = await trainers.start()
    await eventually(lambda: len(control.log_of("long")) > had + 2, trainers.log)
    assert len({report.trainer for report in control.reports}) == 1, "control would make another trainer wait"

    second.send_signal(signal.SIGTERM)
    assert await second.wait() == 0, trainers.log()
    assert control.jobs["long"].status == "TRAINING_JOB_STOPPED"
    assert control.log_of("long").count("begun") == 1
    assert "bye" in control.log_of("long")
    assert control.jobs["long"].attempt == 1
    assert "Traceback" not in trainers.log()
