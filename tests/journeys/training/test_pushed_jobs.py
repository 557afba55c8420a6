"""Jobs as `truss train push` sends them: what they see, checkpoints that they load, caches that they share."""

import json
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Workspace
from tests.journeys.product import OperatorClient
from tests.journeys.training.scene import Job, Training
from tests.waiting import eventually

PUSH = """{
 "image": {"base_image": "python:3.11", "docker_auth": null},
 "compute": {"node_count": 1, "cpu_count": 1, "memory": "2Gi", "accelerator": null, "availability_model": "dedicated"},
 "runtime": {
  "start_commands": [], "environment_variables": {}, "enable_cache": null,
  "checkpointing_config": {"enabled": false, "checkpoint_path": null, "volume_size_gib": null},
  "load_checkpoint_config": null, "cache_config": null, "artifacts": []},
 "interactive_session": null, "name": null, "priority": null, "workspace": null, "weights": [],
 "enable_baseten_workdir": true,
 "truss_user_env": {"truss_client_version": "0.18.36", "python_version": "3.11.7", "pydantic_version": "2.14.4",
  "mypy_version": null, "git_info": null}}"""
"""The job of a push with defaults, as `PreparedTrainingJob.model_dump` of truss 0.18 writes it."""
CACHE = {
    "enabled": True,
    "enable_legacy_hf_mount": False,
    "require_cache_affinity": True,
    "mount_base_path": "/root/.cache",
}


async def push(training: Training, *commands: str, name: str | None = None, **runtime: Any) -> Job:
    body = json.loads(PUSH)
    body["name"] = name
    body["runtime"] |= {"start_commands": list(commands), **runtime}
    answer = await training.operator.call("POST", training.jobs, {"training_job": body})
    return Job(training, answer["training_job"]["id"])


async def printed(job: Job) -> list[str]:
    """The lines of the job's own."""
    return [line for line in await job.lines() if not line.startswith("Tollgate: ")]


async def test_log_says_that_the_image_is_not_used(training: Training) -> None:
    job = await push(training, "echo hello")

    await job.until("COMPLETED")

    notice, line = await job.lines()
    assert notice.startswith("Tollgate: the image python:3.11 is not used: ")
    assert line == "hello"


async def test_pushed_job_sees_the_originals_variables(training: Training) -> None:
    job = await push(training, "env | grep ^BT_ | sort", name="tune")

    ended = await job.until("COMPLETED")

    variables = dict(line.split("=", 1) for line in await printed(job))
    directories = {"BT_CHECKPOINT_DIR", "BT_SCRATCH_DIR", "BT_WORKING_DIR"}
    assert {name: value for name, value in variables.items() if name not in directories} == {
        "BT_TRAINING_JOB_ID": job.id,
        "BT_TRAINING_JOB_NAME": "tune",
        "BT_TRAINING_PROJECT_ID": training.project,
        "BT_TRAINING_PROJECT_NAME": ended["training_project"]["name"],
        "BT_NODE_RANK": "0",
        "BT_GROUP_SIZE": "1",
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_NUM_GPUS": "0",
        "BT_RETRY_COUNT": "0",
    }
    assert directories <= variables.keys()


async def test_job_loads_a_checkpoint_of_another(training: Training) -> None:
    saved = "d=$BT_CHECKPOINT_DIR/step-1; mkdir $d; echo weights > $d/w; touch $d/.complete"
    config = {"enabled": True, "checkpoint_path": None, "volume_size_gib": 1}
    first = await push(training, saved, checkpointing_config=config)
    await first.until("COMPLETED")
    entry = {"typ": "baseten_named_checkpoint", "checkpoint_name": "step-1", "job_id": first.id}
    load = {"enabled": True, "checkpoints": [entry], "download_folder": "/tmp/loaded_checkpoints"}

    second = await push(training, "cat $BT_LOAD_CHECKPOINT_DIR/rank-0/step-1/w", load_checkpoint_config=load)

    await second.until("COMPLETED")
    assert await printed(second) == ["weights"]


async def test_jobs_of_a_project_share_a_cache_that_no_other_sees(
    training: Training, trained: Workspace, session: aiohttp.ClientSession, request: pytest.FixtureRequest
) -> None:
    created = trained.product.command("workspace", "create", "umbrella", "--prefix", "umbrella")
    trained.product.command("workspace", "set", "umbrella", "--training")
    stranger = OperatorClient(session, trained.product, created["api_key"])
    theirs = await Training.begin(stranger, trained.product, request.node.name)
    first = await push(training, "echo kept > $BT_PROJECT_CACHE_DIR/data", cache_config=CACHE)
    await first.until("COMPLETED")

    second = await push(training, "cat $BT_PROJECT_CACHE_DIR/data", cache_config=CACHE)
    other = await push(theirs, "ls $BT_PROJECT_CACHE_DIR | wc -l", cache_config=CACHE)

    for job, lines in ((second, ["kept"]), (other, ["0"])):
        await job.until("COMPLETED")
        assert await printed(job) == lines
    path = f"/v1/training_projects/{training.project}/cache/summary"

    async def files() -> list[Any]:
        status, answer = await training.operator.ask("GET", path)
        return list(answer["file_summaries"]) if status == 200 else []

    (file,) = await eventually(files, trained.product.log_tail)
    assert (file["path"], file["size_bytes"], file["file_type"]) == ("data", 5, "file")
    assert (await stranger.ask("GET", path))[0] == 404
    directory = trained.product.data / "training" / "caches" / training.project
    assert directory.is_dir()
    await training.operator.call("DELETE", f"/v1/training_projects/{training.project}")
    await eventually(lambda: not directory.exists(), trained.product.log_tail)
