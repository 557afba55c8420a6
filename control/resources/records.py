"""What control keeps of each resource, as the resources' rules and the queries in `edges/sql` exchange it.

Values only; times are epoch milliseconds.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from policy.credentials import KeyKind
from policy.deployments import DEFAULT_MAX_QUEUED, HealthCheck
from policy.endpoints import Target
from policy.groups import Enforcement, Group

PENDING, DELIVERED, DEAD = "PENDING", "DELIVERED", "DEAD"
"""The statuses of a delivery."""
EventPosition = tuple[int, str]
"""(timestamp, idempotency key) of an event: where a page of events ended."""


class ShownEvent(NamedTuple):
    """An event as lists show it. These tuples sort as pages do, because no two events have the same key."""

    timestamp_ms: int
    idempotency_key: str
    request_id: str
    model_slug: str
    external_entity_id: str
    api_key_prefix: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """One tenant. Its signing secrets, for results of asynchronous requests, are sealed."""

    id: str
    name: str
    tier: str
    billing: str
    onboarded: bool
    created_at_ms: int
    async_max_body_bytes: int | None = None
    """None: the proxies' setting."""
    signing_secret: str | None = field(default=None, repr=False)
    previous_signing_secret: str | None = field(default=None, repr=False)
    previous_signing_until_ms: int = 0
    training: bool = False
    """Whether it may create training jobs."""


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """One endpoint."""

    id: str
    workspace_id: str
    slug: str
    target: Target
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    """The policy file that owns it."""
    managed_at_ms: int | None = None
    """Its `updated_at_ms` when that file last wrote it."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group as the rules see it, and what only the API shows. `path`: ids from the root to itself, each with `/`."""

    group: Group
    name: str | None
    path: str
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None

    @property
    def counting_owner(self) -> str:
        """The group that the counters' hashes are named after (docs/reference/limits.md#counter-layout)."""
        return self.path.partition("/")[0] if self.group.enforcement is Enforcement.CASCADING else self.group.id

    @property
    def ancestor_ids(self) -> list[str]:
        """Parent first, root last."""
        return self.path.split("/")[-3::-1]


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key without its digest. `group_id` None: a key of the workspace itself."""

    prefix: str
    kind: str
    workspace_id: str
    group_id: str | None
    name: str | None
    created_at_ms: int
    last_used_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """The key that a request presented, and the workspace it acts for."""

    prefix: str
    kind: KeyKind
    workspace_id: str
    onboarded: bool


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """One stored credential, sealed."""

    id: str
    workspace_id: str
    name: str
    ciphertext: str
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None


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
    """Its path may hold a secret."""
    health: HealthCheck | None = None
    max_concurrency: int | None = None
    max_queued: int = DEFAULT_MAX_QUEUED
    error_message: str | None = None
    wake_next_ms: int = 0
    """When the wake hook may be asked again."""
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
    """Which deployment an environment of a model points to."""

    model_id: str
    name: str
    deployment_id: str
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """One endpoint of a customer. Secrets are sealed."""

    id: str
    workspace_id: str
    url: str
    description: str | None
    enabled: bool
    secret: str
    previous_secret: str | None
    previous_until_ms: int | None
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One message to one webhook, through all its attempts."""

    id: str
    webhook_id: str
    type: str
    event_keys: str
    status: str
    attempts: int
    attempt_log: str
    created_at_ms: int
    retry_since_ms: int
    next_attempt_at_ms: int
    lease: str | None
    leased_until_ms: int
    ended_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """Which events a list is of: `[start_ms, end_ms)`, and filters, empty for no filter."""

    workspace_id: str
    start_ms: int
    end_ms: int
    api_keys: tuple[str, ...] = ()
    external_entity_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Which groups of a workspace are listed. `top_id`: this one and all below it. None is no filter."""

    external_entity_id: str | None = None
    top_id: str | None = None


NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    timestamp_ns: int
    level: str
    message: str
    replica: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines of a log are read: those from the first to the last of these milliseconds that match.

    None is no filter. `includes`: texts that the message contains, all of them. `excludes`: texts of which it contains
    none. `limit`: see `log_rows.read_page`.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    levels: tuple[str, ...] | None = None
    request_id: str | None = None
    replica: str | None = None
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    newest_first: bool = True
    limit: int = 500
