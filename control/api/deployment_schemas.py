"""Schemas of the operations on platform models, deployments and environments, and how records become responses."""

from typing import Annotated, Literal

from pydantic import Field

from control.api.protocol.schemas import IdText, Name, PaginationResponseV1, RequestV1, ResponseV1, TimeText
from control.resources.records import DeploymentRecord, EnvironmentRecord, ModelRecord
from control.resources.times import time_text

Status = Literal[
    "BUILDING",
    "DEPLOYING",
    "LOADING_MODEL",
    "ACTIVE",
    "SCALED_TO_ZERO",
    "WAKING_UP",
    "UPDATING",
    "UNHEALTHY",
    "FAILED",
    "DEPLOY_FAILED",
    "DEACTIVATING",
    "INACTIVE",
]
ReplicaUrl = Annotated[str, Field(min_length=1, max_length=2048, examples=["http://10.0.0.5:8000"])]


class CreateModelRequestV1(RequestV1):
    """A platform model."""

    name: Name


class CreateDeploymentRequestV1(RequestV1):
    """A deployment of a model."""

    name: Name


class SetReplicasRequestV1(RequestV1):
    """The base URLs of all replicas of a deployment. Replaces the earlier list."""

    replicas: Annotated[list[ReplicaUrl], Field(max_length=256)]


class SetEnvironmentRequestV1(RequestV1):
    """The deployment that the environment points to."""

    deployment_id: IdText


class ModelV1(ResponseV1):
    """A platform model."""

    id: str
    name: str
    created_at: TimeText


class DeploymentV1(ResponseV1):
    """A deployment. `environment`: the first environment, by name, that points to it."""

    id: str
    name: str
    model_id: str
    status: Status
    environment: str | None
    active_replica_count: int
    replicas: list[str]
    created_at: TimeText
    updated_at: TimeText


class EnvironmentV1(ResponseV1):
    """An environment of a model and the deployment it points to."""

    name: str
    model_id: str
    deployment_id: str
    created_at: TimeText
    updated_at: TimeText


class ModelsResponseV1(ResponseV1):
    """One page of models."""

    items: list[ModelV1]
    pagination: PaginationResponseV1


class DeploymentsResponseV1(ResponseV1):
    """One page of deployments."""

    items: list[DeploymentV1]
    pagination: PaginationResponseV1


class EnvironmentsResponseV1(ResponseV1):
    """One page of environments."""

    items: list[EnvironmentV1]
    pagination: PaginationResponseV1


class DeploymentChangedV1(ResponseV1):
    """The change succeeded."""

    success: bool


class DeploymentRetriedV1(ResponseV1):
    """Whether a failed deployment is retried. `reason` says why not."""

    retried: bool
    reason: str | None
    deployment: DeploymentV1


def model_response(record: ModelRecord) -> ModelV1:
    return ModelV1(id=record.id, name=record.name, created_at=time_text(record.created_at_ms))


def deployment_response(record: DeploymentRecord, environment: str | None) -> DeploymentV1:
    return DeploymentV1.model_validate(
        {
            "id": record.id,
            "name": record.name,
            "model_id": record.model_id,
            "status": record.status,
            "environment": environment,
            "active_replica_count": len(record.replicas) if record.status == "ACTIVE" else 0,
            "replicas": list(record.replicas),
            "created_at": time_text(record.created_at_ms),
            "updated_at": time_text(record.updated_at_ms),
        }
    )


def environment_response(record: EnvironmentRecord) -> EnvironmentV1:
    return EnvironmentV1(
        name=record.name,
        model_id=record.model_id,
        deployment_id=record.deployment_id,
        created_at=time_text(record.created_at_ms),
        updated_at=time_text(record.updated_at_ms),
    )
