"""A real training run on one node and on two: what its owner reads while it runs, checkpoints, stop, recreate."""

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.journeys.product import COMMAND
from tests.journeys.training.scene import TRAIN, Job, Training
from tests.ports import own_port
from tests.waiting import eventually

SLOW = {"STEPS": "100000", "PAUSE_S": "0.005", "CHECKPOINT_EVERY": "50"}


def running(environment: dict[str, str]) -> dict[str, Any]:
    return {"environment_variables": environment, "checkpointing_config": {"enabled": True}}


async def learned(job: Job, steps: int) -> list[Any]:
    """The points of the loss, once there are as many."""

    async def look() -> list[Any] | None:
        points = list(await job.points())
        return points if len(points) >= steps else None

    return list(await eventually(look, job.training.product.log_tail, 30, 0.05))


async def downloaded(session: aiohttp.ClientSession, job: Job, checkpoint: Any) -> dict[str, bytes]:
    """The files of a checkpoint by their path, by the URLs that need no credentials. Checks sizes and digests."""
    path = f"{job.path}/checkpoints/{checkpoint['checkpoint_id']}/files"
    files = (await job.training.operator.call("GET", path))["files"]
    content_of: dict[str, bytes] = {}
    for file in files:
        assert sorted(file) == ["expires_at", "path", "sha256", "size_bytes", "url"]
        async with session.get(file["url"]) as answer:
            assert answer.status == 200, await answer.text()
            content_of[file["path"]] = content = await answer.read()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size_bytes"], file["sha256"])
    return content_of


async def test_stopped_run_resumes_from_its_last_checkpoint_when_recreated(
    training: Training, session: aiohttp.ClientSession
) -> None:
    job = await training.create(TRAIN, name="first", runtime=running(SLOW))
    await job.until("RUNNING")

    losses = [point["value"] for point in await learned(job, 150)]
    assert np.mean(losses[100:150]) < np.mean(losses[:10])
    assert await job.status() == "RUNNING"
    assert "starts from nothing" in await job.log()
    synced = await job.synced(lambda checkpoints: len(checkpoints) >= 2)
    assert (await job.read())["checkpoint_sync_status"] in ("SYNCING", "COMPLETED")
    files = await downloaded(session, job, synced[0])
    assert sorted(files) == [".complete", "weights.npz"]
    assert {one["checkpoint_type"] for one in synced} == {"FULL"}

    await job.stop()
    ended = await job.until("STOPPED")
    assert ended["error_message"] is None
    again = await job.recreate()
    log = await again.logged("resumes from step")
    assert "starts from nothing" not in log
    resumed = int(log.partition("resumes from step ")[2].split()[0])
    assert resumed >= 100
    steps = [point["step"] for point in await learned(again, 10)]
    assert steps[0] == resumed + 1
    await again.stop()
    stopped = await again.until("STOPPED")
    members = ("instance_type", "node_count", "name", "priority", "availability_model", "training_project")
    assert {name: stopped[name] for name in members} == {name: ended[name] for name in members}


async def test_two_nodes_train_together(training: Training) -> None:
    environment = {"STEPS": "60", "CHECKPOINT_EVERY": "60", "GRADIENT_PORT": str(own_port())}
    job = await training.create(TRAIN, compute={"node_count": 2}, runtime=running(environment))

    ended = await job.until("COMPLETED", within_s=60)

    assert ended["node_count"] == 2
    log = await job.log()
    assert "1 other nodes are connected" in log
    assert "connected to the leader" in log
    assert [point["step"] for point in await job.points()] == list(range(1, 61))
    (checkpoint,) = await job.synced(lambda checkpoints: len(checkpoints) == 1)
    assert checkpoint["training_job_id"] == job.id
    logs = (await training.operator.call("POST", f"{job.path}/logs", {"replica": "g00r1"}))["logs"]
    assert {line["replica"] for line in logs} == {"g00r1"}


async def test_every_line_that_a_job_prints_at_once_is_read(training: Training) -> None:
    printing = "import sys; sys.stdout.write(''.join(f'line {n}\\n' for n in range(20_000)))"
    job = await training.create(f'{sys.executable} -c "{printing}"')

    await job.until("COMPLETED")

    expected = [f"line {n}" for n in range(20_000)]
    assert await job.all_lines(step_ms=1) == expected
    assert await job.all_lines(step_ms=0) == expected


async def test_search_finds_jobs_as_a_truss_client_does(training: Training) -> None:
    first = await training.create("exit 0", name="one")
    await first.until("COMPLETED")
    second = await training.create("exit 3", name="two")
    failed = await second.until("FAILED")

    assert "3" in failed["error_message"]
    assert [job["id"] for job in await training.search(project_id=training.project)] == [second.id, first.id]
    oldest_first = [{"field": "created_at", "order": "asc"}]
    jobs = await training.search(project_id=training.project, order_by=oldest_first)
    assert [job["name"] for job in jobs] == ["one", "two"]
    (found_one,) = await training.search(project_id=training.project, statuses=["TRAINING_JOB_COMPLETED"])
    assert found_one["id"] == first.id
    assert await training.search(job_id=second.id) == [failed]
    projects = (await training.operator.call("GET", "/v1/training_projects"))["training_projects"]
    (project,) = [one for one in projects if one["id"] == training.project]
    assert project["latest_job"] == failed


@pytest.mark.parametrize("queued", [12, pytest.param(50, marks=pytest.mark.soak)])
async def test_queued_jobs_all_run_the_important_one_first(training: Training, tmp_path: Path, queued: int) -> None:
    ran = tmp_path / "ran"
    blocker = await training.create("sleep 300", compute={"cpu_count": 4})
    await blocker.until("RUNNING")
    jobs = [await training.create(f"echo {number} >> {ran}") for number in range(queued - 1)]
    jobs.append(await training.create(f"echo important >> {ran}", priority=10))
    await jobs[-1].until("PENDING")

    await blocker.stop()
    await asyncio.gather(*(job.until("COMPLETED", within_s=90) for job in jobs))

    order = ran.read_text().split()
    assert sorted(order) == sorted([*map(str, range(queued - 1)), "important"])
    assert "important" in order[:4]  # four start at a time


async def test_waiting_dedicated_job_preempts_a_spot_job_which_resumes_later(training: Training) -> None:
    four_cpus = {"cpu_count": 4}
    spot = await training.create(TRAIN, compute=four_cpus, availability_model="spot", runtime=running(SLOW))
    await spot.synced(lambda checkpoints: len(checkpoints) >= 1)
    dedicated = await training.create("sleep 1", compute=four_cpus)

    await dedicated.until("COMPLETED")
    await spot.logged("resumes from step")
    assert len(await spot.lines("starts from nothing")) == 1
    await spot.stop()
    await spot.until("STOPPED")


async def test_job_that_never_fits_is_refused_by_its_field(training: Training) -> None:
    body = {"training_job": {"image": {}, "compute": {"cpu_count": 4096}, "runtime": {"start_commands": ["true"]}}}
    status, answer = await training.operator.ask("POST", training.jobs, body)
    assert status == 400, answer
    assert answer["details"][0]["field"] == "training_job.compute.cpu_count"


async def test_watch_follows_a_job_to_its_end(training: Training) -> None:
    point = '{\\"metric\\": \\"loss\\", \\"step\\": 7, \\"value\\": 0.5}'
    good = await training.create(f'echo "{point}"; sleep 2')
    bad = await training.create("exit 3")
    product = training.product
    surroundings = {"TOLLGATE_URL": product.control, "TOLLGATE_API_KEY": training.operator.api_key}

    results = []
    for job in (good, bad):
        words = (*COMMAND, "training", "watch", job.id)
        watching = await asyncio.create_subprocess_exec(
            *words, env=product.environment | surroundings, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await watching.communicate()
        results.append((watching.returncode, out.decode()))

    assert [status for status, _ in results] == [0, 1]
    assert "loss 0.5 (step 7)" in results[0][1]
    assert "COMPLETED" in results[0][1].splitlines()[-1]
    assert "node 0 exited with status 3" in results[1][1].splitlines()[-1]
