"""The records of training that the rules and the queries in `edges/sql/training` exchange. Values only.

Times are epoch milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policy.training.reports import NodeState
from policy.training.resources import Host, NodeResources

OPEN = "OPEN"
"""Parts of it may arrive."""
COMPLETE = "COMPLETE"
GONE = "GONE"
"""Aborted, replaced or too old: its parts are to be removed from the store."""


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A training project. `is_deleted`: nobody sees it any more; jobs of it are still to be removed."""

    id: str
    workspace_id: str
    name: str
    is_deleted: bool
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class JobRef:
    """Names a job as a path does."""

    workspace_id: str
    project_id: str
    job_id: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A training job without its `JobSpec`, which may be long and is read on its own (`job_rows.get_spec`)."""

    id: str
    workspace_id: str
    project_id: str
    name: str | None
    status: str
    error_message: str | None
    priority: int
    availability_model: str
    node_count: int
    resources: NodeResources
    gpu_memory_mib: int | None
    """The memory of one GPU, if the backend knew it when the job was created."""
    attempt: int
    stop_requested: bool
    is_deleted: bool
    recreated_from: str | None
    checkpoint_sync_status: str | None
    environment_digest: str | None
    nodes: tuple[NodeState, ...]
    output_offsets: Mapping[int, int]
    """The amount of each node's output that control has, by rank."""
    created_at_ms: int
    updated_at_ms: int
    ended_at_ms: int | None
    claimed_at_ms: int | None = None
    """The time at which a trainer began the present attempt; None: the job waits, or began before this was kept."""


@dataclass(frozen=True, slots=True)
class JobSearch:
    """The selection of a workspace's jobs for a search; None and empty are no filter."""

    workspace_id: str
    project_id: str | None = None
    job_id: str | None = None
    statuses: tuple[str, ...] = ()
    newest_first: bool = True
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint without its files, which may be many and are read on their own (`checkpoint_rows.get_files`)."""

    id: str
    job_id: str
    name: str
    location: str
    checkpoint_type: str
    base_model: str | None
    lora_adapter_config: str | None
    """The configuration of the adapter, as JSON text."""
    size_bytes: int
    sync_status: str
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class StoredSample:
    """The use that one node made of its machine: as `NodeSample`."""

    rank: int
    timestamp_ms: int
    cpu_millicores: int
    memory_bytes: int
    storage_bytes: int | None
    storage_total_bytes: int | None


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
    """The last report of a trainer. `reason`: why its backend is away; None if it is there."""

    trainer: str
    backend: str
    reason: str | None
    has_sessions: bool
    hosts: tuple[Host, ...]
    reported_at_ms: int


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload. `key`: its `s3_key`, which a later upload may take over unless a job holds this one."""

    id: str
    workspace_id: str
    key: str
    status: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A part of an upload, an object of the store. `sha256`, `etag` None: it is on its way, or was lost there."""

    id: str
    upload_id: str
    number: int
    size_bytes: int
    sha256: str | None = None
    etag: str | None = None
