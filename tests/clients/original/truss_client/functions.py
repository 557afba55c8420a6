"""The functions of the remote client that are ours."""

from functools import partial
from typing import Any

from truss.remote.baseten.core import get_training_job_logs_with_pagination
from truss.remote.baseten.custom_types import APIKeyCategory, BlobType
from truss_train import definitions
from truss_train.deployment import PreparedTrainingJob

from tests.clients.original.place import Place
from tests.clients.original.truss_client.recording import Recorder
from tests.clients.original.truss_client.scene import ENDED, RUNNING, SAYS, WEIGHTS, Job, Scene

PRIORITY = 7
SESSION_MINUTES = 30
LINE = "a line of the deployment"


def run(truss: Recorder, place: Place) -> None:
    """Call each of them once."""
    (team,) = truss.call("get_teams", lambda teams: [one.default for one in teams.values()] == [True]).values()
    run_keys(truss, place, team.id)
    run_projects(truss, place, team.id)
    scene = Scene.create(place, "functions")
    run_readings(truss, scene)
    run_files(truss, scene)
    run_machines(truss, scene, team.id)
    run_changes(truss, scene)
    run_deployment(truss, place)


def run_keys(truss: Recorder, place: Place, team: str) -> None:
    truss.call("upsert_secret", lambda _: "of-truss" in place.control.items("/v1/secrets", "name"), "of-truss", "v")
    truss.call("get_all_secrets", lambda answer: "of-truss" in [one["name"] for one in answer["secrets"]])
    secret_names = partial(place.control.items, "/v1/secrets", "name")
    truss.call("upsert_team_secret", lambda _: "of-the-team" in secret_names(), team, "of-the-team", "v")
    truss.call("get_team_secrets", lambda answer: [one["name"] for one in answer["secrets"]] == secret_names(), team)
    kind = APIKeyCategory.WORKSPACE_INVOKE
    prefixes = partial(place.control.items, "/v1/api_keys", "prefix")
    truss.call("create_api_key", lambda key: key["api_key"].split(".")[0] in prefixes(), kind, "of-truss")


def run_projects(truss: Recorder, place: Place, team: str) -> None:
    """Make projects, and a job of the form that `truss train push` sends."""

    def is_there(name: str, project: Any) -> bool:
        path = f"/v1/training_projects/{project['id']}"
        return bool(place.control("GET", path)["training_project"]["name"] == name)

    job = definitions.TrainingJob(
        image=definitions.Image(base_image="python:3.11"),
        compute=definitions.Compute(cpu_count=1, memory="256Mi"),
        runtime=definitions.Runtime(start_commands=[f"echo {SAYS}"]),
    )
    name = "upserted"
    first = definitions.TrainingProject(name=name, job=job)
    project = truss.call("upsert_training_project", partial(is_there, name), first)["id"]
    second = definitions.TrainingProject(name="of-the-team", job=job)
    truss.call("upsert_training_project, team", partial(is_there, second.name), second, team_id=team)
    truss.call("list_training_projects", lambda answer: project in [one["id"] for one in answer])
    prepared = PreparedTrainingJob(image=job.image, compute=job.compute, runtime=job.runtime)

    def ran(answer: Any) -> bool:
        created = Job(place, project, answer["id"])
        created.until(*ENDED)
        return SAYS in created.lines()

    truss.call("create_training_job", ran, project, prepared)


def run_readings(truss: Recorder, scene: Scene) -> None:
    ids = [scene.queue_job.id, scene.running.id, scene.ended.id]
    job = scene.ended

    def has_said(lines: Any) -> bool:
        return SAYS in [line["message"] for line in lines]

    truss.call(
        "search_training_jobs",
        lambda answer: [one["id"] for one in answer] == ids,
        project_id=scene.project,
    )
    truss.call(
        "list_training_jobs", lambda answer: {one["id"] for one in answer["training_jobs"]} == {*ids}, scene.project
    )
    truss.call("get_training_job", lambda answer: answer["training_job"]["id"] == job.id, **job.where)
    truss.call("get_training_job_logs", has_said, **job.where)
    read_all = partial(get_training_job_logs_with_pagination, truss.api, job.project, job.id)
    truss.judge("get_training_job_logs_with_pagination", read_all, has_said)
    truss.call(
        "list_training_job_checkpoints",
        lambda answer: [one["checkpoint_id"] for one in answer["checkpoints"]] == job.checkpoints(),
        **job.where,
    )
    truss.call("get_training_job_metrics", lambda answer: answer["training_job"]["id"] == job.id, **job.where)
    truss.call("get_cache_summary", lambda answer: answer["project_id"] == scene.project, scene.project)


def run_files(truss: Recorder, scene: Scene) -> None:
    """The files of checkpoints, and of what a job was made of."""
    job = scene.ended

    def has_weights(files: Any) -> bool:
        return [truss.api.get_from_presigned_url(one["url"]) for one in files] == [WEIGHTS.encode()]

    files = truss.call("get_training_job_checkpoint_presigned_url", has_weights, **job.where)
    truss.call("get_from_presigned_url", lambda text: text == WEIGHTS.encode(), files[0]["url"] if files else "")
    truss.call("get_blob_credentials", lambda answer: answer["creds"]["endpoint_url"], BlobType.TRAIN)


def run_machines(truss: Recorder, scene: Scene, team: str) -> None:
    truss.call("get_training_capacity", lambda answer: {"gpu_capacities", "team_gpu_capacities"} <= answer.keys())
    truss.call("update_team_training_gpu_capacity", lambda answer: answer["limit"] == 1, team, "H100", 1)
    job = scene.running
    answer = truss.call(
        "get_training_job_isession",
        lambda answer: [one["replica_id"] for one in answer["auth_codes"]] == ["g00r0"],
        **job.where,
    )
    truss.call("sign_ssh_certificate", lambda answer: answer is not None, **job.where, public_key="k", replica_id="0")
    session = answer["auth_codes"][0].get("session_id") or "none"
    truss.call(
        "patch_interactive_session",
        lambda answer: answer is not None,
        **job.where,
        session_id=session,
        timeout_minutes=SESSION_MINUTES,
    )
    truss.call(
        "update_interactive_session", lambda answer: answer is not None, **job.where, timeout_minutes=SESSION_MINUTES
    )


def run_changes(truss: Recorder, scene: Scene) -> None:
    job = scene.queue_job
    truss.call("update_training_job", lambda _: job.read()["priority"] == PRIORITY, **job.where, priority=PRIORITY)
    job.stop()
    assert scene.running.status() == RUNNING
    truss.call("stop_training_job", lambda answer: answer["id"] == scene.running.id, **scene.running.where)
    scene.running.until("TRAINING_JOB_STOPPED")

    def runs_again(answer: Any) -> bool:
        again = Job(scene.place, scene.project, answer["id"])
        again.until(*ENDED)
        return again.id != scene.ended.id and SAYS in again.lines()

    truss.call("recreate_training_job", runs_again, **scene.ended.where)


def run_deployment(truss: Recorder, place: Place) -> None:
    model = place.model("of-truss")
    path = f"{model.path}/deployments/{model.deployment}"
    place.control("POST", f"{path}/logs/append", {"logs": [{"message": LINE}]})
    where = (model.id, model.deployment)
    truss.call("get_deployment", lambda answer: answer["id"] == model.deployment, *where)
    truss.call("get_deployment_config", lambda answer: answer is not None, *where)
    truss.call("get_model_deployment_logs", lambda lines: [line["message"] for line in lines] == [LINE], *where)
