"""Schemas of training projects and jobs as answers show them, with exactly the documented fields.

See docs/reference/training.md#jobs.
"""

from typing import Literal

from pydantic import Field

from control.api.protocol.schemas import DeletedV1, ResponseV1, TimeText
from control.records.times import time_text
from control.resources.training.instance_types import InstanceType, instance_type_of
from control.resources.training.jobs import JobSummary
from control.resources.training.projects import ProjectSummary

Status = Literal[
    "TRAINING_JOB_PENDING",
    "TRAINING_JOB_CREATED",
    "TRAINING_JOB_DEPLOYING",
    "TRAINING_JOB_RUNNING",
    "TRAINING_JOB_COMPLETED",
    "TRAINING_JOB_DEPLOY_FAILED",
    "TRAINING_JOB_FAILED",
    "TRAINING_JOB_STOPPED",
]
AvailabilityModel = Literal["dedicated", "spot"]


class InstanceTypeV1(ResponseV1):
    """The resources of one node. `millicpu_limit`: thousandths of a CPU. The memory of a GPU may be unknown."""

    id: str
    name: str
    memory_limit_mib: int
    millicpu_limit: int
    gpu_count: int
    gpu_type: str | None
    gpu_memory_limit_mib: int | None


class TrainingProjectRefV1(ResponseV1):
    """The project of a job."""

    id: str
    name: str


class TrainingUserV1(ResponseV1):
    """The creator of a job."""

    email: str | None


class TrainingJobV1(ResponseV1):
    """A training job. `user.email` is null: workspace keys belong to no person."""

    id: str
    created_at: TimeText
    updated_at: TimeText
    current_status: Status
    instance_type: InstanceTypeV1
    training_project_id: str
    training_project: TrainingProjectRefV1
    error_message: str | None = Field(description="Why the job failed, or waits again; for people.")
    node_count: int
    name: str | None
    checkpoint_sync_status: Literal["SYNCING", "COMPLETED"] | None = Field(
        description="Whether all of the job's checkpoints are in the store. Null: it has none yet."
    )
    priority: int
    availability_model: AvailabilityModel
    user: TrainingUserV1


class TrainingJobResponseV1(ResponseV1):
    """One training job."""

    training_job: TrainingJobV1


class DeletedTrainingJobV1(DeletedV1):
    """The deleted training job."""

    id: str
    training_project_id: str
    training_job: TrainingJobV1


class TrainingJobsResponseV1(ResponseV1):
    """The training jobs that were found, at most 1000."""

    training_jobs: list[TrainingJobV1]


class TrainingProjectV1(ResponseV1):
    """A training project. `team_name`: the workspace's name."""

    id: str
    name: str
    created_at: TimeText
    updated_at: TimeText
    latest_job: TrainingJobV1 | None = Field(description="The newest job.")
    team_name: str


class TrainingJobDetailsV1(ResponseV1):
    """One training job, and its project."""

    training_job: TrainingJobV1
    training_project: TrainingProjectV1


class JobsOfTrainingProjectV1(ResponseV1):
    """The newest training jobs of a project, at most 1000."""

    training_project: TrainingProjectV1
    training_jobs: list[TrainingJobV1]


def job_response(job: JobSummary) -> TrainingJobV1:
    record = job.record
    return TrainingJobV1.model_validate(
        {
            "id": record.id,
            "created_at": time_text(record.created_at_ms),
            "updated_at": time_text(record.updated_at_ms),
            "current_status": record.status,
            "instance_type": instance_type_response(instance_type_of(record)),
            "training_project_id": record.project_id,
            "training_project": {"id": record.project_id, "name": job.project_name},
            "error_message": record.error_message,
            "node_count": record.node_count,
            "name": record.name,
            "checkpoint_sync_status": record.checkpoint_sync_status,
            "priority": record.priority,
            "availability_model": record.availability_model,
            "user": {"email": None},
        }
    )


def project_response(team_name: str, project: ProjectSummary) -> TrainingProjectV1:
    record = project.record
    latest = project.latest_job
    return TrainingProjectV1(
        id=record.id,
        name=record.name,
        created_at=time_text(record.created_at_ms),
        updated_at=time_text(record.updated_at_ms),
        latest_job=None if latest is None else job_response(JobSummary(latest, record.name)),
        team_name=team_name,
    )


def instance_type_response(type: InstanceType) -> InstanceTypeV1:
    return InstanceTypeV1(**{name: getattr(type, name) for name in InstanceType.__dataclass_fields__})
