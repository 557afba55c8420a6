"""The demo's steps on training: a job really runs, its metrics and log are readable, its checkpoint is in the store.

Steps like those of `steps.py`.
"""

import hashlib
from typing import Any

import aiohttp

from control.demo.scene import Scene, expect, until
from policy.training.job_variables import CHECKPOINT_DIR, NODE_COUNT, NODE_RANK
from policy.training.statuses import COMPLETED, ENDED

_COMMANDS = (
    f'echo "node ${NODE_RANK} of ${NODE_COUNT} starts"',
    'for n in 1 2 3; do echo "{\\"metric\\": \\"loss\\", \\"step\\": $n, \\"value\\": 0.$((9 - n))}"; done',
    f'c="${CHECKPOINT_DIR}/step-3"; mkdir -p "$c"; echo weights > "$c/weights"; touch "$c/.complete"',
)


async def job_submitted(scene: Scene) -> list[str]:
    """submit a training job: it runs on this machine, beside the next steps"""
    operator = scene.operator
    await scene.product.command("workspace", "set", "acme", "--training")
    project = (await operator.call("POST", "/v1/training_projects", {"training_project": {"name": "demo"}}))[
        "training_project"
    ]
    new_job = {
        "image": {},
        "compute": {"cpu_count": 1, "memory": "128Mi"},
        "runtime": {"start_commands": list(_COMMANDS), "checkpointing_config": {"enabled": True}},
    }
    jobs = f"/v1/training_projects/{project['id']}/jobs"
    job = (await operator.call("POST", jobs, {"training_job": new_job}))["training_job"]
    scene.job = f"{jobs}/{job['id']}"
    return [f"created: {job['id']} on {job['instance_type']['name']}"]


async def job_trained(scene: Scene) -> list[str]:
    """read what the training job did: log, loss and a checkpoint"""
    operator = scene.operator
    path = scene.job
    ended = await until(lambda: _ended(scene, path), "the job did not end")
    expect(ended["current_status"] == COMPLETED, f"the job is {ended}")
    log = (await operator.call("POST", f"{path}/logs", {"direction": "asc"}))["logs"]
    points = (await operator.call("GET", f"{path}/metrics", name="loss"))["metrics"][0]["points"]
    expect([point["value"] for point in points] == [0.8, 0.7, 0.6], f"the loss was {points}")
    line = [f"{ended['current_status']}; log: {log[0]['message']!r}; loss 0.8, 0.7, 0.6"]
    checkpoint = await until(lambda: _synced(scene, path), "the checkpoint was not synced")
    return [*line, await _downloaded(scene, f"{path}/checkpoints/{checkpoint['checkpoint_id']}/files")]


async def _ended(scene: Scene, path: str) -> Any:
    job = (await scene.operator.call("GET", path))["training_job"]
    return job if job["current_status"] in ENDED else None


async def _synced(scene: Scene, path: str) -> Any:
    checkpoints = (await scene.operator.call("GET", f"{path}/checkpoints"))["checkpoints"]
    return checkpoints[0] if checkpoints and checkpoints[0]["sync_status"] == "COMPLETE" else None


async def _downloaded(scene: Scene, path: str) -> str:
    files = (await scene.operator.call("GET", path))["files"]
    (file,) = [file for file in files if file["path"] == "weights"]
    async with aiohttp.ClientSession() as session, session.get(file["url"]) as answer:
        content = await answer.read()
    expect(hashlib.sha256(content).hexdigest() == file["sha256"], f"the file's digest differs: {file}")
    return f"checkpoint step-3 is in the store; its file was read by a link that expires: {content.decode().strip()!r}"
