"""Platform models, their deployments and environments. Values only; times are epoch milliseconds."""

from dataclasses import dataclass, field

from policy.deployments import DEFAULT_MAX_QUEUED, HealthCheck


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A platform model."""

    id: str
    workspace_id: str
    name: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class DeploymentRecord:
    """One deployment of a model, and its replicas' base URLs."""

    id: str
    model_id: str
    name: str
    status: str
    replicas: tuple[str, ...]
    created_at_ms: int
    updated_at_ms: int
    wake_url: str | None = field(default=None, repr=False)
    """The URL of the wake hook. Its path may hold a secret."""
    health: HealthCheck | None = None
    max_concurrency: int | None = None
    max_queued: int = DEFAULT_MAX_QUEUED
    error_message: str | None = None
    wake_next_ms: int = 0
    """The earliest time at which the wake hook may be asked again."""
    wake_pause_ms: int = 0
    """The pause before `wake_next_ms`, which doubles. Negative after a failure."""
    last_request_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReportedDeployment:
    """A deployment that proxies report, with its workspace."""

    workspace_id: str
    record: DeploymentRecord


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """An environment of a model, and the deployment that it points to. An empty one points to none."""

    model_id: str
    name: str
    deployment_id: str | None
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class PageOfNames:
    """The place of a page in a list of models or deployments: behind the id `after`, and only those called `name`."""

    after: str | None
    limit: int
    name: str | None = None
