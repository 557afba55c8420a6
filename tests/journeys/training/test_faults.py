"""Jobs end as documented when processes die, disks fill and programs misbehave."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.product import kill
from tests.journeys.training.scene import Job, Training
from tests.processes import command_line, is_running
from tests.waiting import eventually

COUNT = "i=0; while [ $i -lt {steps} ]; do i=$((i+1)); echo tick $i; sleep 0.1; done"


def pids_of(marker: str) -> list[int]:
    """The running processes whose environment has this marker: those of one job."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                pids.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid in pids if is_running(pid)]


def processes_of(job: Job) -> list[int]:
    return pids_of(f"TOLLGATE_JOB_ID={job.id}\0")


async def all_gone(job: Job) -> None:
    await eventually(lambda: not processes_of(job), lambda: f"{processes_of(job)} of {job.id} still run")


@pytest.mark.parametrize("command_part", ["-m trainer --", "-m control --"])
async def test_job_survives_the_death_of_a_part_of_the_product(killable: Training, command_part: str) -> None:
    job = await killable.create(COUNT.format(steps=30))
    await job.logged("tick 3")
    (victim,) = killable.product.processes(command_part)

    kill(victim)

    await _completed_although_away(job)
    lines = (await job.log()).splitlines()
    assert [line for line in lines if line.startswith("tick")] == [f"tick {number}" for number in range(1, 31)]


async def _completed_although_away(job: Job) -> None:
    """Wait for COMPLETED; control may be away for a while."""

    async def look() -> bool:
        try:
            return await job.status() == "COMPLETED"
        except OSError:
            return False

    await eventually(look, lambda: f"COMPLETED\n{job.training.product.log_tail()}", 60, 0.1)


async def test_job_is_adopted_after_the_whole_product_was_killed(killable: Training) -> None:
    job = await killable.create(COUNT.format(steps=60))
    ends_meanwhile = await killable.create("echo begun; sleep 2; echo ended", "exit 7")
    await job.logged("tick 3")
    await ends_meanwhile.logged("begun")
    lasting = set(processes_of(job))
    await job.logged("tick 6")
    lasting &= set(processes_of(job))
    lasting = {pid for pid in lasting if not command_line(pid).startswith("sleep")}  # both looks may meet one `sleep`

    killable.product.kill()
    assert lasting
    assert lasting <= set(processes_of(job))
    await eventually(lambda: not processes_of(ends_meanwhile), "the short job ended while nobody watched")
    killable.product.start()

    failed = await ends_meanwhile.until("FAILED")
    assert "7" in failed["error_message"]
    assert "ended" in await ends_meanwhile.log()
    await job.until("COMPLETED", within_s=60)
    ticks = [line for line in (await job.log()).splitlines() if line.startswith("tick")]
    assert ticks == [f"tick {number}" for number in range(1, 61)]


async def test_sigterm_of_up_stops_its_jobs(killable: Training) -> None:
    polite = await killable.create("trap 'echo saving; exit 0' TERM; echo begun; while :; do sleep 0.1; done")
    stubborn = await killable.create("trap '' TERM; echo begun; while :; do sleep 0.1; done")
    for job in (polite, stubborn):
        await job.logged("begun")

    assert killable.product.stop() == 0, killable.product.log_tail()
    assert processes_of(polite) == processes_of(stubborn) == []
    killable.product.start()

    for job in (polite, stubborn):
        stopped = await job.until("STOPPED")
        assert stopped["error_message"]
    assert "saving" in await polite.log()


async def test_killed_node_fails_the_job_and_ends_its_other_nodes(training: Training) -> None:
    job = await training.create("echo begun; sleep 300", compute={"node_count": 2})
    await job.logged("begun")
    victim = next(pid for pid in processes_of(job) if b"TOLLGATE_NODE_RANK=1\0" in environ_of(pid))

    os.kill(victim, signal.SIGKILL)

    failed = await job.until("FAILED")
    assert "node 1" in failed["error_message"]
    await all_gone(job)


def environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_nothing_of_a_job_outlives_it(training: Training) -> None:
    """Children that fork twice, leave the session and ignore SIGTERM end with the job."""
    escape = "(setsid sh -c \"trap '' TERM HUP; while :; do sleep 0.2; done\" >/dev/null 2>&1 &) ; echo left"
    job = await training.create(escape, "sleep 300")
    await job.logged("left")
    assert len(processes_of(job)) >= 2

    await job.stop()

    await job.until("STOPPED")
    await all_gone(job)


async def test_job_above_its_memory_limit_is_ended_and_says_so(training: Training) -> None:
    hog = "python3 -c \"x = bytearray(900_000_000); import time; x[::4096] = b'1' * len(x[::4096]); time.sleep(60)\""
    job = await training.create(hog, compute={"memory": "128Mi"})

    failed = await job.until("FAILED")

    assert "memory" in failed["error_message"].lower() or "status" in failed["error_message"]
    await all_gone(job)


async def test_secrets_reach_the_job_that_names_them_and_nothing_else(training: Training) -> None:
    operator = training.operator
    value = "s3cr3t-value-9f1e"
    await operator.call("POST", "/v1/secrets", {"name": "hub-token", "value": value})
    variables: dict[str, Any] = {"HUB_TOKEN": {"type": "SECRET", "name": "hub-token"}, "PLAIN": "p"}
    command = 'echo "length ${#HUB_TOKEN} value $HUB_TOKEN"; env | cut -d= -f1 | sort | tr "\\n" " "'
    job = await training.create(command, runtime={"environment_variables": variables})

    final_state = await job.until("COMPLETED")

    log = await job.log()
    assert f"length {len(value)}" in log
    assert value not in log + str(final_state) + training.product.log.read_text()
    names = {word for word in log.splitlines()[-1].split() if word.isupper() or "_" in word}
    ours = {name for name in names if name.startswith("TOLLGATE_")}
    assert ours == {
        *("TOLLGATE_JOB_ID", "TOLLGATE_NODE_RANK", "TOLLGATE_NODE_COUNT"),
        *("TOLLGATE_LEADER_ADDR", "TOLLGATE_CHECKPOINT_DIR"),
    }
    assert {"HUB_TOKEN", "PLAIN"} <= names


async def test_checkpoints_of_a_job_that_is_killed_are_resumed_and_listed(killable: Training) -> None:
    """A sync that a crash interrupts goes on afterwards."""
    big = (
        "d=$TOLLGATE_CHECKPOINT_DIR/big; mkdir $d; head -c 60000000 /dev/urandom > $d/w; touch $d/.complete; echo saved"
    )
    job = await killable.create(big, "sleep 2", runtime={"checkpointing_config": {"enabled": True}})
    await job.logged("saved")

    for pid in killable.product.processes("-m trainer --"):
        kill(pid)

    (checkpoint,) = await job.synced(lambda checkpoints: len(checkpoints) == 1)
    assert checkpoint["size_bytes"] == 60_000_000
    await job.until("COMPLETED")

    async def all_synced() -> bool:
        return bool((await job.read())["checkpoint_sync_status"] == "COMPLETED")

    await eventually(all_synced, "the job's checkpoints are all in the store", every_s=0.05)
