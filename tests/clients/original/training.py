"""Training projects and jobs, by the original's SDK."""

import io
import tarfile
import urllib.request
from typing import Any

import baseten.client.managementapi as api

from tests.clients.original.place import Place, until
from tests.clients.original.recording import Recorder
from tests.s3_signing import Keys, sha256, signed_headers

ENDED = ("TRAINING_JOB_STOPPED", "TRAINING_JOB_COMPLETED", "TRAINING_JOB_FAILED", "TRAINING_JOB_DEPLOY_FAILED")


def archive() -> bytes:
    """A file that the job prints."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:") as tar:
        info = tarfile.TarInfo("begun.txt")
        info.size = 6
        tar.addfile(info, io.BytesIO(b"begun\n"))
    return file.getvalue()


ARCHIVE = archive()


def run(sdk: Recorder, place: Place) -> None:
    """A project, and a job in it that is started, read, stopped, created again and deleted."""
    name = f"project-{sdk.kind}"
    request = api.UpsertTrainingProjectRequest(training_project=api.UpsertTrainingProject(name=name))
    project = sdk.call(
        "post_training_projects", lambda answer: answer.training_project.name == name, request=request
    ).training_project.id
    team = place.control("GET", "/v1/teams")["teams"][0]["id"]
    sdk.call(
        "post_teams_training_projects",
        lambda answer: answer.training_project.id == project,
        team_id=team,
        request=request,
    )
    sdk.call("get_training_projects", lambda answer: project in [one.id for one in answer.training_projects])
    sdk.call(
        "get_training_projects_training_project_id",
        lambda answer: answer.training_project.name == name,
        training_project_id=project,
    )
    path = f"/v1/training_projects/{project}"
    artifact = run_upload(sdk, place)
    answer = sdk.call(
        "post_training_projects_jobs",
        lambda answer: place.control.status(f"{path}/jobs/{answer.training_job.id}") == 200,
        training_project_id=project,
        request=api.CreateTrainingJobRequest(training_job=job_request(artifact)),
    )
    job = answer.training_job.id
    where = {"training_project_id": project, "training_job_id": job}
    run_readings(sdk, where)
    until(lambda: place.control.status(f"{path}/cache/summary") == 200, "the summary of the cache")
    run_surroundings(sdk, place, where)
    run_queue(sdk, place, where)
    again = run_life(sdk, place, where)
    run_deletions(sdk, place, where, again)


def run_upload(sdk: Recorder, place: Place) -> Any:
    """Upload an archive with the keys that the SDK shows, as an S3 client would. Return the artifact of a job."""

    def is_taken(answer: Any) -> bool:
        creds = Keys(**answer.creds.model_dump(), endpoint_url=place.control_url)
        target = f"/{answer.s3_bucket}/{answer.s3_key}"
        headers = signed_headers(creds, "PUT", target, sha256(ARCHIVE), {})
        request = urllib.request.Request(f"{creds.endpoint_url}{target}", ARCHIVE, headers, method="PUT")
        with urllib.request.urlopen(request) as answered:
            return bool(answered.status == 200)

    sdk.call("get_blobs_credentials_model", lambda answer: answer is None)
    answer = sdk.call("get_blobs_credentials_train", is_taken)
    return api.CreateTrainingJobS3Artifact(s3_bucket=answer.s3_bucket, s3_key=answer.s3_key)


def is_archive(url: str) -> bool:
    with urllib.request.urlopen(url) as answer:
        return bool(answer.read() == ARCHIVE)


def job_request(artifact: Any) -> Any:
    """A job that prints a line and waits to be stopped. The SDK requires an image."""
    return api.CreateTrainingJob(
        name="job",
        image=api.CreateTrainingJobImage(base_image="python:3.11"),
        compute=api.CreateTrainingJobCompute(node_count=1, cpu_count=1, memory="256Mi"),
        runtime=api.CreateTrainingJobRuntime(
            start_commands=["cat begun.txt", "sleep 600"],
            environment_variables={},
            cache_config=api.CreateTrainingJobCacheConfig(enabled=True),
            artifacts=[artifact],
        ),
    )


def run_readings(sdk: Recorder, where: dict[str, str]) -> None:
    job = where["training_job_id"]
    project = {"training_project_id": where["training_project_id"]}
    search = api.SearchTrainingJobsRequest(project_id=where["training_project_id"])
    sdk.call(
        "post_training_jobs_search", lambda answer: [one.id for one in answer.training_jobs] == [job], request=search
    )
    sdk.call("get_training_projects_jobs", lambda answer: [one.id for one in answer.training_jobs] == [job], **project)
    sdk.call("get_training_projects_jobs_training_job_id", lambda answer: answer.training_job.id == job, **where)
    sdk.call("get_training_projects_jobs_auth_codes", lambda answer: answer.auth_codes == [], **where)
    sdk.call("get_training_projects_jobs_checkpoints", lambda answer: answer.checkpoints == [], **where)
    sdk.call("get_training_projects_jobs_checkpoint_files", lambda answer: answer.total_count == 0, **where)


def run_queue(sdk: Recorder, place: Place, where: dict[str, str]) -> None:
    """Move a job that waits behind the one that runs, and a session of the latter."""
    jobs = f"/v1/training_projects/{where['training_project_id']}/jobs"
    path = f"{jobs}/{where['training_job_id']}"
    until(lambda: place.control("GET", path)["training_job"]["current_status"].endswith("RUNNING"), "the job runs")
    sdk.call(
        "patch_training_projects_jobs, running",
        lambda answer: answer is not None,
        **where,
        request=api.UpdateTrainingJobRequest(priority=1),
    )
    job = {"compute": {"cpu_count": 2, "memory": "256Mi"}, "runtime": {"start_commands": ["true"]}}
    id = place.control("POST", jobs, {"training_job": job})["training_job"]["id"]
    sdk.call(
        "patch_training_projects_jobs",
        lambda answer: (answer.training_job.priority, answer.training_job.availability_model) == (1, "spot"),
        **where | {"training_job_id": id},
        request=api.UpdateTrainingJobRequest(priority=1, availability_model="spot"),
    )
    sdk.call(
        "get_training_jobs_queue_context",
        lambda context: (
            (context.target_job_id, context.released_at, context.gpu_type) == (id, None, "")
            and [one.training_job_id for one in context.active_at_submit] == [where["training_job_id"]]
        ),
        training_job_id=id,
    )
    place.control("POST", f"{jobs}/{id}/stop", {})
    place.control("DELETE", f"{jobs}/{id}")
    place.control("POST", f"{path}/interactive_session")
    run_node_metrics(sdk, place, where)
    session = place.control("GET", f"{path}/auth_codes")["auth_codes"][0]["session_id"]
    sdk.call(
        "patch_training_projects_jobs_interactive_sessions",
        lambda answer: (answer.interactive_session.id, answer.interactive_session.timeout_minutes) == (session, 10),
        **where,
        session_id=session,
        request=api.PatchInteractiveSessionRequest(timeout_minutes=10),
    )
    sdk.call(
        "post_training_projects_jobs_ssh_sign",
        lambda answer: answer is not None,
        **where,
        request=api.SignSSHCertificateRequest(public_key="ssh-ed25519 AAAA", replica_id="0"),
    )


def run_node_metrics(sdk: Recorder, place: Place, where: dict[str, str]) -> None:
    """Read what the node of the job uses, once there is a sample."""
    path = f"/v1/training_projects/{where['training_project_id']}/jobs/{where['training_job_id']}/metrics"
    until(lambda: place.control("POST", path, {})["per_node_metrics"], "a sample of the node")
    sdk.call(
        "post_training_projects_jobs_metrics",
        lambda answer: (
            [node.node_id for node in answer.per_node_metrics] == ["g00r0"]
            and answer.cpu_memory_usage_bytes[0].value > 0
            and answer.cpu_usage == answer.per_node_metrics[0].metrics.cpu_usage
        ),
        **where,
        request=api.GetTrainingJobMetricsRequest(),
    )
    sdk.call(
        "get_training_projects_jobs_metrics",
        lambda answer: answer.ephemeral_storage.usage_bytes[0].value >= 0 and answer.gpu_utilization == {},
        **where,
    )


def run_surroundings(sdk: Recorder, place: Place, where: dict[str, str]) -> None:
    """The queue, the caches and the files of a job, and the key's owner."""
    prefix = place.api_key.partition(".")[0]
    sdk.call("get_users_me", lambda user: (user.user_id, user.email) == (prefix, None))
    sdk.call("get_training_capacity", lambda capacity: capacity.gpu_capacities == capacity.team_gpu_capacities == [])
    sdk.call(
        "patch_training_capacity",
        lambda capacity: capacity is not None,
        request=api.PatchTeamTrainingGpuCapacityRequest.model_construct(),
    )
    sdk.call(
        "get_training_projects_cache_summary",
        lambda summary: summary.project_id == where["training_project_id"],
        training_project_id=where["training_project_id"],
    )
    sdk.call(
        "get_training_projects_jobs_download",
        lambda download: [is_archive(url) for url in download.artifact_presigned_urls] == [True],
        **where,
    )


def run_life(sdk: Recorder, place: Place, where: dict[str, str]) -> dict[str, str]:
    """Read the log once there is one, stop the job, and create it again. Return where the second one is."""
    jobs = f"/v1/training_projects/{where['training_project_id']}/jobs"
    path = f"{jobs}/{where['training_job_id']}"
    until(lambda: place.control("POST", f"{path}/logs", {})["logs"], "the job's log")
    sdk.call(
        "post_training_projects_jobs_logs",
        lambda answer: "begun" in [line.message for line in answer.logs],
        **where,
        request=api.GetTrainingJobLogsRequest(),
    )
    sdk.call(
        "get_training_projects_jobs_logs",
        lambda answer: "begun" in [line.message for line in answer.logs],
        **where,
    )
    job = where["training_job_id"]
    sdk.call(
        "post_training_projects_jobs_stop",
        lambda answer: answer.training_job.id == job,
        **where,
        request=api.StopTrainingJobRequest(),
    )
    until(lambda: place.control("GET", path)["training_job"]["current_status"] in ENDED, "the job has ended")
    again = sdk.call("post_training_projects_jobs_recreate", lambda answer: answer.training_job.id != job, **where)
    second = where | {"training_job_id": again.training_job.id}
    place.control("POST", f"{jobs}/{again.training_job.id}/stop", {})
    end = f"{jobs}/{again.training_job.id}"
    until(lambda: place.control("GET", end)["training_job"]["current_status"] in ENDED, "the second job has ended")
    return second


def run_deletions(sdk: Recorder, place: Place, where: dict[str, str], second: dict[str, str]) -> None:
    project = f"/v1/training_projects/{where['training_project_id']}"
    sdk.call(
        "delete_training_projects_jobs",
        lambda one: one.deleted and place.control.status(f"{project}/jobs/{where['training_job_id']}") == 404,
        **where,
    )
    place.control("DELETE", f"{project}/jobs/{second['training_job_id']}")
    sdk.call(
        "delete_training_projects",
        lambda one: one.deleted and place.control.status(project) == 404,
        training_project_id=where["training_project_id"],
    )
