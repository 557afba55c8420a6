"""The commands of `truss` that are ours, run as the executable."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tests.clients.original.place import Place, until
from tests.clients.original.truss_client.functions import LINE
from tests.clients.original.truss_client.recording import Recorder
from tests.clients.original.truss_client.scene import ENDED, HUB_TOKEN, MODEL, SAYS, SHOWN, WEIGHTS, Job, Scene

DATA = "the working directory's own"
FILES = "config.txt parts/model.safetensors"
"""The files of the model that the patterns leave."""
CONFIG = f"""
from truss.base import truss_config
from truss_train import definitions

project = definitions.TrainingProject(
    name="pushed",
    job=definitions.TrainingJob(
        name="of-push",
        image=definitions.Image(base_image="python:3.11"),
        compute=definitions.Compute(cpu_count=1, memory="256Mi"),
        runtime=definitions.Runtime(
            start_commands=[
                "cat data.txt",
                'cd "$BT_WEIGHTS_DIR/models/tiny" && cat config.txt && echo $(find * -type f | sort)',
            ]
        ),
        weights=[
            truss_config.WeightsSource(
                source="hf://{MODEL}@main",
                mount_location="/models/tiny",
                auth=truss_config.WeightsAuth(auth_method="CUSTOM_SECRET", auth_secret_name="hub"),
                ignore_patterns=["*.md"],
            )
        ],
    ),
)
"""
"""The project that is pushed: its job shows a file of the working directory, and the weights that it has."""
PRIORITY = "9"


def names(group: click.Group, words: str = "") -> Iterator[str]:
    """Every command, with its group's words before it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from names(command, f"{words}{name} ")
        else:
            yield f"{words}{name}"


def run(truss: Recorder, place: Place, directory: Path) -> None:
    """Run each of them once, but for the two of `run_push`."""
    truss.run("whoami", lambda output: "@" in output)
    scene = Scene.create(place, "commands")
    run_views(truss, scene, directory)
    run_changes(truss, scene)
    run_deployment(truss, place)


def run_push(truss: Recorder, place: Place, directory: Path) -> None:
    """Push a directory, and download what was pushed."""
    source = directory / "project"
    source.mkdir()
    (source / "config.py").write_text(CONFIG)
    (source / "data.txt").write_text(f"{DATA}\n")

    def pushed() -> Any:
        jobs = place.control("POST", "/v1/training_jobs/search", {})["training_jobs"]
        return next((job for job in jobs if job["name"] == "of-push"), None)

    def ran(_output: str) -> bool:
        job_record = until(pushed, "the pushed job")
        job = Job(place, job_record["training_project"]["id"], job_record["id"])
        job.until(*ENDED)
        return {DATA, SHOWN, FILES} <= set(job.lines())

    place.control("POST", "/v1/secrets", {"name": "hub", "value": HUB_TOKEN})
    truss.run("train push", ran, str(source / "config.py"))
    job = pushed()
    where = (job["training_project"]["id"], job["id"]) if job else ("none", "none")
    truss.call("get_training_job_presigned_url", lambda url: url.startswith("http"), *where)
    target = directory / "downloaded"
    options = ("--job-id", job["id"] if job else "none", "--target-directory", str(target))
    truss.run(
        "train download",
        lambda _output: [file.read_text().strip() for file in target.rglob("data.txt")] == [DATA],
        *options,
    )


def run_views(truss: Recorder, scene: Scene, directory: Path) -> None:
    of_job = ("--job-id", scene.ended.id)
    truss.run("train view", lambda output: scene.name in output and scene.running.id in output)
    truss.run("train view, job", lambda output: scene.ended.checkpoints()[0] in output, *of_job)
    truss.run("train view, project", lambda output: scene.queue_job.id in output, "--project", scene.name)
    truss.run("train logs", lambda output: output.count(SAYS) == 1, *of_job)
    truss.run("train logs, --tail", lambda output: output.count(SAYS) == 1 and "completed" in output, *of_job, "--tail")
    truss.run("train metrics", lambda output: "Training Job" in output, *of_job)
    truss.run(
        "train checkpoints list",
        lambda output: [one["checkpoint_id"] for one in json.loads(output)["checkpoints"]] == scene.ended.checkpoints(),
        *of_job,
        *("-o", "json"),
    )
    truss.run("train get_checkpoint_urls", lambda _output: _urls(directory), *of_job)
    truss.run("train cache summarize", lambda output: json.loads(output) is not None, scene.name, "-o", "json")
    truss.run("train capacity view", lambda output: output.strip())
    options = ("--team", "acme", "--gpu-type", "H100", "--capacity", "1")
    truss.run("train capacity update", lambda output: "capacity to 1" in output, *options)


def _urls(directory: Path) -> bool:
    """Return whether `truss` wrote the file with the links to the checkpoint's files into its working directory."""
    return any(f"{WEIGHTS}.bin" in file.read_text() for file in directory.glob("*_checkpoints.json"))


def run_changes(truss: Recorder, scene: Scene) -> None:
    running = scene.running
    truss.run(
        "train isession",
        lambda output: [one["replica_id"] for one in json.loads(output)["auth_codes"]] == ["g00r0"],
        *("--job-id", running.id, "--format", "json"),
    )
    truss.run(
        "train isession, --update-timeout",
        lambda output: json.loads(output)["auth_codes"],
        *("--job-id", running.id, "--update-timeout", "20", "--format", "json"),
    )
    truss.run("train update_session", lambda output: "updated" in output, running.id, "--timeout-minutes", "20")
    job = scene.queue_job
    truss.run(
        "train update",
        lambda _output: str(job.read()["priority"]) == PRIORITY,
        *("--job-id", job.id, "--priority", PRIORITY),
    )
    job.stop()

    def has_stopped(_output: str) -> bool:
        running.until("TRAINING_JOB_STOPPED")
        return True

    truss.run("train stop", has_stopped, "--job-id", running.id)
    jobs = f"/v1/training_projects/{scene.project}/jobs"

    def ids() -> set[str]:
        return {job["id"] for job in scene.place.control("GET", jobs)["training_jobs"]}

    before = ids()
    truss.run("train recreate", lambda _output: len(ids() - before) == 1, "--job-id", scene.ended.id)


def run_deployment(truss: Recorder, place: Place) -> None:
    model = place.model("of-commands")
    path = f"{model.path}/deployments/{model.deployment}"
    place.control("POST", f"{path}/logs/append", {"logs": [{"message": LINE}]})
    options = ("--model-id", model.id, "--deployment-id", model.deployment)
    truss.run("model-logs", lambda output: LINE in output, *options)
    truss.run("model-config", lambda output: output.strip(), *options)
