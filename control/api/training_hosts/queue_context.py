"""`/v1/training/jobs/{training_job_id}/queue_context`: a job's place in the queue, and why it waits.

See docs/reference/training.md#queue.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1, TimeText
from control.records.times import optional_time_text, time_text
from control.records.training import JobRecord
from control.resources.training.instance_types import instance_type_of
from control.resources.training_hosts import queue
from control.resources.training_hosts.queue import QueueContext
from policy.keys.permissions import Permission
from policy.training.statuses import CREATED, DEPLOYING, ENDED

_NO_CAP = "Always null: Tollgate has no cap of a workspace. `/v1/training/capacity` says what the machines have."


class ActiveTrainingJobV1(ResponseV1):
    """A job of the workspace that had room when the job was created. `status_set_at`: since when it has that room."""

    training_job_id: str
    training_job_name: str | None
    instance_type_name: str
    total_gpus: int
    workload_plane_name: str = Field(description="The training backend.")
    status_at_submit: Literal["TRAINING_JOB_DEPLOYING"] = Field(description="It had begun.")
    status_set_at: TimeText


class TrainingJobAheadV1(ResponseV1):
    """A job of the workspace that waited before the job when that was created, by its present priority."""

    training_job_id: str
    training_job_name: str | None
    instance_type_name: str
    requested_gpus: int
    priority: int
    submitted_at: TimeText


class TrainingQueueEventV1(ResponseV1):
    """A moment in the life of a job: it was created, its present attempt began, or it ended."""

    training_job_id: str
    training_job_name: str | None
    status: str
    created: TimeText
    event_message: str | None
    exit_code: None = Field(description="Always null: the message has it.")


class TrainingQueueContextV1(ResponseV1):
    """A job's place in the queue. Jobs of other workspaces count in `position`, and are not listed."""

    target_job_id: str
    target_job_name: str | None
    position: int | None = Field(description="1 starts first. Null: the job does not wait.")
    reason: Literal["STARTS", "PREEMPTS", "NO_ROOM", "RESERVED", "CHECKPOINTS_SYNCING", "BACKEND_AWAY"] | None = Field(
        description="Why the job waits. Null: it does not."
    )
    message: str | None = Field(description="The reason, for people.")
    gpu_type: str = Field(description="Empty: the job asks for no GPU.")
    requested_gpus: int
    submitted_at: TimeText
    released_at: TimeText | None = Field(description="When its present attempt began. Null: the job waits.")
    pending_seconds: int | None = Field(description="The time until then.")
    org_capacity: None = Field(description=_NO_CAP)
    team_capacity: None = Field(description=_NO_CAP)
    active_at_submit: list[ActiveTrainingJobV1]
    pending_ahead_at_submit: list[TrainingJobAheadV1]
    events: list[TrainingQueueEventV1] = Field(description="Of the job and those listed, the oldest first.")
    events_window_end: TimeText


async def _get(request: ApiRequest) -> TrainingQueueContextV1:
    return _response(await queue.read_context(request.store, request.workspace_id, request.path["training_job_id"]))


def _response(context: QueueContext) -> TrainingQueueContextV1:
    job = context.job
    wait = context.wait
    released_ms = job.claimed_at_ms
    window = (job.created_at_ms, context.at_ms if released_ms is None else released_ms)
    events = [event for one in (job, *context.active, *context.ahead) for event in _moments(one, *window)]
    return TrainingQueueContextV1.model_validate(
        {
            "target_job_id": job.id,
            "target_job_name": job.name,
            "position": wait and wait.position,
            "reason": wait and wait.reason,
            "message": wait and wait.message,
            "gpu_type": job.resources.gpu_type or "",
            "requested_gpus": _gpus(job),
            "submitted_at": time_text(job.created_at_ms),
            "released_at": optional_time_text(released_ms),
            "pending_seconds": None if released_ms is None else max(0, released_ms - job.created_at_ms) // 1000,
            "org_capacity": None,
            "team_capacity": None,
            "active_at_submit": [_active(one, context.backend) for one in context.active],
            "pending_ahead_at_submit": [_ahead(one) for one in context.ahead],
            "events": [_event(*event) for event in sorted(events, key=lambda event: (event[0], event[1].id))],
            "events_window_end": time_text(window[1]),
        }
    )


def _moments(job: JobRecord, first_ms: int, last_ms: int) -> Iterable[tuple[int, JobRecord, str, str | None]]:
    """The moments of a job that are known, within the window."""
    moments: list[tuple[int, JobRecord, str, str | None]] = [(job.created_at_ms, job, CREATED, None)]
    if job.claimed_at_ms is not None:
        moments.append((job.claimed_at_ms, job, DEPLOYING, None))
    if job.ended_at_ms is not None and job.status in ENDED:
        moments.append((job.ended_at_ms, job, job.status, job.error_message))
    return [moment for moment in moments if first_ms <= moment[0] <= last_ms]


def _event(at_ms: int, job: JobRecord, status: str, message: str | None) -> TrainingQueueEventV1:
    return TrainingQueueEventV1(
        training_job_id=job.id,
        training_job_name=job.name,
        status=status,
        created=time_text(at_ms),
        event_message=message,
        exit_code=None,
    )


def _active(job: JobRecord, backend: str) -> ActiveTrainingJobV1:
    return ActiveTrainingJobV1(
        training_job_id=job.id,
        training_job_name=job.name,
        instance_type_name=instance_type_of(job).name,
        total_gpus=_gpus(job),
        workload_plane_name=backend,
        status_at_submit="TRAINING_JOB_DEPLOYING",
        status_set_at=time_text(job.claimed_at_ms or 0),
    )


def _ahead(job: JobRecord) -> TrainingJobAheadV1:
    return TrainingJobAheadV1(
        training_job_id=job.id,
        training_job_name=job.name,
        instance_type_name=instance_type_of(job).name,
        requested_gpus=_gpus(job),
        priority=job.priority,
        submitted_at=time_text(job.created_at_ms),
    )


def _gpus(job: JobRecord) -> int:
    return job.resources.gpu_count * job.node_count


OPERATIONS = (
    Operation(
        *("GET", "/v1/training/jobs/{training_job_id}/queue_context", _get),
        *("Get a training job's place in the queue", TrainingQueueContextV1),
        errors=(404,),
        needs=Permission.READ,
    ),
)
