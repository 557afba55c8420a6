"""What control keeps of training, as the rules and the queries in `edges/sql/training` exchange it. Values only.

Times are epoch milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policy.training.job_spec import JobSpec
from policy.training.reports import CheckpointFile, NodeState
from policy.training.resources import Host


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A training project."""

    id: str
    workspace_id: str
    name: str
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A training job. The fields are the table's columns, in their order."""

    id: str
    workspace_id: str
    project_id: str
    name: str | None
    status: str
    error_message: str | None
    spec: JobSpec
    priority: int
    availability_model: str
    attempt: int
    stop_requested: bool
    is_deleted: bool
    recreated_from: str | None
    checkpoint_sync_status: str | None
    environment_digest: str | None
    nodes: tuple[NodeState, ...]
    output_offsets: Mapping[int, int]
    """What control has of each node's output, by rank."""
    created_at_ms: int
    updated_at_ms: int
    ended_at_ms: int | None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint. `files` None: it is not verified in the store yet."""

    id: str
    job_id: str
    name: str
    location: str
    checkpoint_type: str
    base_model: str | None
    lora_adapter_config: str | None
    """JSON text."""
    size_bytes: int
    sync_status: str
    files: tuple[CheckpointFile, ...] | None
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The interactive session on one node of one attempt. `code` is sealed; None: spent, or nobody asked for it."""

    id: str
    job_id: str
    attempt: int
    rank: int
    code: str | None
    code_generated_at_ms: int | None
    code_expires_at_ms: int | None
    wrong_codes: int
    cookie_digest: str | None
    created_at_ms: int
    ends_at_ms: int


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """What the trainer reported last. `reason`: why its backend is away; None if it is there."""

    trainer: str
    backend: str
    reason: str | None
    has_sessions: bool
    hosts: tuple[Host, ...]
    reported_at_ms: int
