"""The time that a machine records on disk: no clock that is set back, restart or restored copy takes it back."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.edges.policy.recorded_time import LatestTime, RecordedTime, recorded_time_path
from proxy.edges.policy.supervisor.time_recorder import Clocks, TimeRecorder
from proxy.records.supervisor.findings import OK
from tests.waiting import eventually

START_MS = 1_764_000_000_000
HOUR_MS = 3_600_000


class Machine:
    """One machine's clocks, and the processes of its proxy."""

    def __init__(self, directory: Path) -> None:
        self.path = recorded_time_path(directory / "journal")
        self.time_ms = START_MS
        self.monotonic_ms = 5_000
        self.start()

    def start(self) -> None:
        self.recorder = TimeRecorder(self.path, Clocks(lambda: self.time_ms * 10**6, lambda: self.monotonic_ms * 10**6))
        self.recorder.record()
        self.worker = self.new_worker()

    def new_worker(self) -> Callable[[], int]:
        return LatestTime(RecordedTime(self.path).cell, lambda: self.time_ms * 10**6).now_ms

    def go_on(self, ms: int) -> None:
        self.time_ms += ms
        self.monotonic_ms += ms

    def restart(self) -> None:
        self.recorder.close()
        self.start()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_time_is_the_machine_s_while_its_clock_goes_on(machine: Machine) -> None:
    for _ in range(3):
        machine.go_on(700)
        assert machine.worker() == machine.time_ms
        machine.recorder.record()
        assert machine.worker() == machine.time_ms


def test_clock_that_is_set_back_takes_no_time_back(machine: Machine) -> None:
    machine.go_on(HOUR_MS)
    machine.recorder.record()
    machine.go_on(400)
    latest_ms = machine.worker()
    machine.time_ms -= HOUR_MS
    assert machine.worker() == latest_ms, "the worker has seen a later time than the record"
    machine.recorder.record()
    assert machine.new_worker()() == latest_ms, "the clock had gone on since the record before"


def test_step_back_is_counted_once(machine: Machine) -> None:
    """The time stands still until the clock has caught up, so a clock that was ahead for a while ends no key early."""
    machine.recorder.record()
    machine.time_ms -= HOUR_MS
    machine.recorder.record()
    for _ in range(3):
        machine.go_on(1000)
        machine.recorder.record()
        assert machine.new_worker()() == START_MS
    machine.go_on(HOUR_MS)
    assert machine.new_worker()() == machine.time_ms


def test_restart_with_a_clock_that_was_set_back_takes_no_time_back(machine: Machine) -> None:
    machine.go_on(HOUR_MS)
    machine.recorder.record()
    machine.time_ms = START_MS
    machine.monotonic_ms = 0  # the machine was started again, too
    machine.restart()
    assert machine.worker() == START_MS + HOUR_MS


def test_old_copy_of_the_record_leaves_the_machine_s_clock(machine: Machine, tmp_path: Path) -> None:
    shutil.copy(machine.path, tmp_path / "copy")
    machine.go_on(HOUR_MS)
    machine.recorder.record()
    machine.recorder.close()
    shutil.copy(tmp_path / "copy", machine.path)
    machine.start()
    assert machine.worker() == machine.time_ms


def test_missing_or_short_record_counts_as_none(tmp_path: Path) -> None:
    """A supervisor of an older version starts workers of this one, and writes none."""
    path = tmp_path / "record"
    assert LatestTime(RecordedTime(path).cell, lambda: START_MS * 10**6).now_ms() == START_MS
    path.write_bytes(b"1234")
    assert RecordedTime(path).cell[0] == 0


async def test_record_is_written_while_the_recorder_runs(machine: Machine) -> None:
    machine.recorder.close()
    running = asyncio.create_task(TimeRecorder(machine.path).run())
    await eventually(lambda: RecordedTime(machine.path).cell[0] > START_MS)
    running.cancel()
    await asyncio.wait([running])


async def test_clock_far_behind_the_record_is_reported_with_its_remedy(machine: Machine) -> None:
    machine.go_on(HOUR_MS)
    machine.recorder.record()
    assert await machine.recorder.finding() == OK
    machine.time_ms -= 59_000
    assert await machine.recorder.finding() == OK
    machine.time_ms -= 2_000
    finding = await machine.recorder.finding()
    assert (finding.fault, finding.note) == ("", "by 61 s")
    assert str(machine.path) in finding.degraded


async def test_time_that_cannot_be_recorded_is_reported_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    recorder = TimeRecorder(recorded_time_path(tmp_path / "journal"))
    recorder.record()
    assert "cannot be recorded" in (await recorder.finding()).degraded
    (tmp_path / "journal").unlink()
    recorder.record()
    assert await recorder.finding() == OK
    assert recorded_time_path(tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    recorder.close()
