"""Schemas of the operations on deployments, and how a deployment becomes a response."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from control.api.platform.fixed_settings import (
    BACKPRESSURE_SETTINGS,
    MAX_REPLICAS,
    NO_INSTANCE_TYPE,
    BackpressureSettingsV1,
    NoSource,
)
from control.api.protocol.schemas import (
    INTEGRAL,
    NO_NUL,
    DeletedV1,
    Name,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
    WholeListQueryV1,
    not_all_null,
    original_name,
)
from control.records.times import optional_time_text, time_text
from control.resources.platform.deployments import DeploymentSummary, Settings
from control.resources.platform.loads import active_replicas
from policy.deployments import DEFAULT_MAX_QUEUED, FAILED, HealthCheck
from policy.hosts import MAX_URL_CHARS
from policy.snapshot import health_to_wire

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
_DEFAULT = HealthCheck()
_MAX_COUNT = 1_000_000
ReplicaUrl = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARS, examples=["http://10.0.0.5:8000"])]
_WakeUrl = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_URL_CHARS,
        examples=["https://launcher.example.com/wake"],
        description="Asked for replicas when calls wait for them. Under the rules of replicas' URLs; may have a query.",
    ),
]
_Path = Annotated[str, Field(max_length=1024, pattern=r"^/(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*$")]
_IntervalS = Annotated[float, Field(ge=0.1, le=3600)]
_TimeoutS = Annotated[float, Field(ge=0.1, le=60)]
_Probes = Annotated[int, Field(ge=1, le=100), INTEGRAL]
_MaxConcurrency = Annotated[int, Field(ge=1, le=_MAX_COUNT), INTEGRAL]
_MaxQueued = Annotated[int, Field(ge=0, le=_MAX_COUNT), INTEGRAL]
_ErrorMessage = Annotated[str, Field(max_length=4096, json_schema_extra=NO_NUL)]


class HealthCheckRequestV1(RequestV1):
    """Probes each replica: `GET {replica}{path}`; a 2xx within `timeout_s` is good.

    A replica is healthy after `healthy_after` good probes in a row, unhealthy after `unhealthy_after` bad ones.
    """

    path: _Path | None = _DEFAULT.path
    interval_s: _IntervalS | None = _DEFAULT.interval_s
    timeout_s: _TimeoutS | None = _DEFAULT.timeout_s
    healthy_after: _Probes | None = _DEFAULT.healthy_after
    unhealthy_after: _Probes | None = _DEFAULT.unhealthy_after

    def check(self) -> HealthCheck:
        """Null means the default, as for a member that is left out."""
        return HealthCheck(**{name: value for name, value in self.model_dump().items() if value is not None})


class _SettingsV1(RequestV1):
    wake_url: _WakeUrl | None = None
    health: HealthCheckRequestV1 | None = Field(None, description="Null: replicas are healthy when listed.")
    max_concurrency: _MaxConcurrency | None = Field(None, description="Calls in flight per replica. Null: no bound.")
    max_queued: _MaxQueued | None = Field(
        DEFAULT_MAX_QUEUED, description="Calls that may wait for `max_concurrency`, per replica. Null: the default."
    )

    def settings(self) -> Settings:
        """The fields that were sent. Null clears; a name cannot be cleared."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        fields.pop("source", None)
        if fields.get("name", "") is None:
            del fields["name"]
        if fields.get("health") is not None:
            fields["health"] = fields["health"].check()
        if fields.get("max_queued", 0) is None:
            fields["max_queued"] = DEFAULT_MAX_QUEUED
        return fields


class DeploymentsQueryV1(WholeListQueryV1):
    """Parameters of the list of deployments."""

    name: Annotated[Name | None, Field(description="Only deployments of exactly this name.")] = None


class CreateDeploymentRequestV1(_SettingsV1):
    """A deployment of a model."""

    source: NoSource = None
    name: Name


class UpdateDeploymentRequestV1(_SettingsV1):
    """The fields to change, at least one. Null resets a field, except for `name`, where it means unchanged."""

    name: Name | None = None

    model_config = RequestV1.model_config | {
        "json_schema_extra": not_all_null("name", nullable=["wake_url", "health", "max_concurrency", "max_queued"])
    }

    @model_validator(mode="after")
    def _changes_something(self) -> "UpdateDeploymentRequestV1":
        if not self.settings():
            raise ValueError("give name, wake_url, health, max_concurrency or max_queued")
        return self


class SetReplicasRequestV1(RequestV1):
    """The base URLs of all replicas of a deployment. Replaces the earlier list."""

    replicas: Annotated[list[ReplicaUrl], Field(max_length=MAX_REPLICAS)]


class SetStatusRequestV1(RequestV1):
    """The progress of launching a deployment's replicas. Only some moves are legal: a 409 names those."""

    status: Status
    error_message: _ErrorMessage | None = None


class HealthCheckV1(ResponseV1):
    """The probes of replicas."""

    path: str
    interval_s: float
    timeout_s: float
    healthy_after: int
    unhealthy_after: int


class DeploymentLoadV1(ResponseV1):
    """Calls at this moment, over all proxies, and when the last one came."""

    in_flight: int
    queued: int = Field(description="Waiting for `max_concurrency`.")
    parked: int = Field(description="Waiting for a replica.")
    last_request_at: TimeText | None


class DeploymentV1(ResponseV1):
    """A deployment. `environment`: the first environment, by name, that points to it."""

    id: str
    name: str
    model_id: str
    status: Status
    environment: str | None
    is_production: bool
    is_development: bool
    active_replica_count: int = Field(description="How many replicas are healthy.")
    wake_url: str | None
    health: HealthCheckV1 | None
    max_concurrency: int | None
    max_queued: int
    replicas: list[str]
    load: DeploymentLoadV1
    error_message: str | None = Field(description="Why the deployment is FAILED.")
    autoscaling_settings: None = Field(description="Always null: replicas are listed by their owner.")
    instance_type_name: str = Field(description="Always empty: machines are their owner's.")
    request_backpressure_settings: BackpressureSettingsV1
    created_at: TimeText
    updated_at: TimeText


class DeploymentsResponseV1(ResponseV1):
    """One page of deployments."""

    items: list[DeploymentV1]
    deployments: list[DeploymentV1] = original_name("deployments")
    pagination: PaginationResponseV1


class DeletedDeploymentV1(DeletedV1):
    """The deleted deployment."""

    id: str
    model_id: str


class DeploymentChangedV1(ResponseV1):
    """The change succeeded."""

    success: bool


class DeploymentRetriedV1(ResponseV1):
    """The answer to a retry: whether the failed deployment is retried. `reason` says why not."""

    retried: bool
    reason: str | None
    deployment: DeploymentV1


def deployment_response(summary: DeploymentSummary) -> DeploymentV1:
    record = summary.record
    load = summary.load
    last_ms = max(filter(None, (record.last_request_at_ms, load.last_request_at_ms)), default=None)
    return DeploymentV1.model_validate(
        {
            "id": record.id,
            "name": record.name,
            "model_id": record.model_id,
            "status": record.status,
            "environment": summary.environment,
            "is_production": summary.is_production,
            "is_development": summary.is_development,
            "active_replica_count": active_replicas(record, load),
            "wake_url": record.wake_url,
            "health": None if record.health is None else health_to_wire(record.health),
            "max_concurrency": record.max_concurrency,
            "max_queued": record.max_queued,
            "replicas": list(record.replicas),
            "load": {
                "in_flight": load.in_flight,
                "queued": load.queued,
                "parked": load.parked,
                "last_request_at": optional_time_text(last_ms),
            },
            "error_message": record.error_message if record.status == FAILED else None,
            "autoscaling_settings": None,
            "instance_type_name": NO_INSTANCE_TYPE,
            "request_backpressure_settings": BACKPRESSURE_SETTINGS,
            "created_at": time_text(record.created_at_ms),
            "updated_at": time_text(record.updated_at_ms),
        }
    )
