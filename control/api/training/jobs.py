"""`/v1/training_projects/{training_project_id}/jobs`: training jobs (docs/reference/training.md#jobs)."""

from collections.abc import Sequence
from functools import partial

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.training.job_requests import CreateTrainingJobRequestV1, UpdateTrainingJobRequestV1
from control.api.training.job_schemas import (
    DeletedTrainingJobV1,
    JobsOfTrainingProjectV1,
    TrainingJobDetailsV1,
    TrainingJobResponseV1,
    TrainingProjectV1,
    job_response,
    project_response,
)
from control.long_work import beside
from control.records.training import JobRef, JobSearch
from control.resources.training import job_admission, jobs, projects
from control.resources.training.jobs import JobSummary
from policy.keys.permissions import Permission
from policy.training.statuses import CREATED, STOPPED


async def _post(request: ApiRequest) -> TrainingJobResponseV1:
    new = request.body_as(CreateTrainingJobRequestV1).training_job.new_job()
    project_id = request.path["training_project_id"]
    await job_admission.check_sources(new.spec, request.dependencies.names)
    return _created(request, await jobs.create_job(request.store, request.workspace_id, project_id, new))


async def _get(request: ApiRequest) -> TrainingJobDetailsV1:
    job = job_response(await jobs.read_job(request.store, job_ref(request)))
    return TrainingJobDetailsV1(training_job=job, training_project=await _project(request))


async def _list(request: ApiRequest) -> Encoded:
    project = await _project(request)
    search = JobSearch(request.workspace_id, project.id, None, (), newest_first=True)
    summaries = await jobs.search_jobs(request.store, search)
    encode = partial(_encoded, project, summaries)
    return Encoded(await beside(request.workspace_id, len(summaries), encode))


async def _project(request: ApiRequest) -> TrainingProjectV1:
    id = request.path["training_project_id"]
    summary = await projects.read_project(request.store, request.workspace_id, id)
    return project_response(request.caller.workspace_name, summary)


def _encoded(project: TrainingProjectV1, summaries: Sequence[JobSummary]) -> Pieces:
    texts = Array([(job_response(job).model_dump_json().encode(),) for job in summaries])
    return encode_object({"training_project": project.model_dump(), "training_jobs": texts})


async def _recreate(request: ApiRequest) -> TrainingJobResponseV1:
    return _created(request, await jobs.recreate_job(request.store, job_ref(request)))


async def _stop(request: ApiRequest) -> TrainingJobResponseV1:
    job = await jobs.stop_job(request.store, job_ref(request))
    if job.record.status == STOPPED:
        request.dependencies.metrics.training_jobs_entered([STOPPED])
    return _response(job)


async def _patch(request: ApiRequest) -> TrainingJobResponseV1:
    body = request.body_as(UpdateTrainingJobRequestV1)
    return _response(await jobs.update_job(request.store, job_ref(request), body.priority, body.availability_model))


async def _delete(request: ApiRequest) -> DeletedTrainingJobV1:
    ref = job_ref(request)
    job = job_response(await jobs.remove_job(request.store, ref))
    return DeletedTrainingJobV1(id=job.id, training_project_id=ref.project_id, training_job=job)


def job_ref(request: ApiRequest) -> JobRef:
    """The job that the path names."""
    return JobRef(request.workspace_id, request.path["training_project_id"], request.path["training_job_id"])


def _created(request: ApiRequest, job: JobSummary) -> TrainingJobResponseV1:
    request.dependencies.metrics.training_jobs_entered([CREATED])
    return _response(job)


def _response(job: JobSummary) -> TrainingJobResponseV1:
    return TrainingJobResponseV1(training_job=job_response(job))


_PATH = "/v1/training_projects/{training_project_id}/jobs"
_ONE = f"{_PATH}/{{training_job_id}}"
_ANSWER = TrainingJobResponseV1
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Create a training job", _ANSWER),
        body=CreateTrainingJobRequestV1,
        errors=(404, 409),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List a project's training jobs", JobsOfTrainingProjectV1),
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation("GET", _ONE, _get, "Get a training job", TrainingJobDetailsV1, errors=(404,), needs=Permission.READ),
    Operation(
        *("PATCH", _ONE, _patch, "Move a waiting training job in the queue", _ANSWER),
        body=UpdateTrainingJobRequestV1,
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete a training job", DeletedTrainingJobV1),
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("POST", f"{_ONE}/stop", _stop, "Stop a training job", _ANSWER),
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("POST", f"{_ONE}/recreate", _recreate, "Recreate a training job", _ANSWER),
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
)
