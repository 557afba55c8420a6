"""The tables of training: projects, jobs and what jobs leave. Part of the metadata of `control/edges/sql/tables.py`."""

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, Table, Text, false

from control.edges.sql.tables import Counter, Id, metadata
from policy.training.statuses import SYNCING

training_projects = Table(
    "training_projects",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("name", Id, nullable=False),
    Column("is_deleted", Boolean, nullable=False),  # invisible; its row goes with the last of its jobs' rows
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Index("ix_training_projects_workspace_id_id", "workspace_id", "id"),
)
Index(
    "uq_training_projects_workspace_id_name",
    training_projects.c.workspace_id,
    training_projects.c.name,
    unique=True,
    sqlite_where=~training_projects.c.is_deleted,
    postgresql_where=~training_projects.c.is_deleted,
)

training_jobs = Table(
    "training_jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("project_id", Id, ForeignKey("training_projects.id"), nullable=False),
    Column("name", Text, nullable=True),
    Column("status", Id, nullable=False),
    Column("error_message", Text, nullable=True),
    Column("priority", Integer, nullable=False),
    Column("availability_model", Id, nullable=False),
    Column("node_count", Integer, nullable=False),
    Column("resources", Text, nullable=False),  # policy.training.resources.NodeResources
    Column("gpu_memory_mib", BigInteger, nullable=True),  # of one GPU, if the backend knew it when the job was created
    Column("attempt", Integer, nullable=False),  # how often a trainer started it
    Column("stop_requested", Boolean, nullable=False),
    Column("is_deleted", Boolean, nullable=False),  # invisible; its row goes when the trainer has removed its files
    Column("recreated_from", Id, nullable=True),  # no foreign key: the other job may be deleted
    Column("checkpoint_sync_status", Id, nullable=True),
    Column("environment_digest", Id, nullable=True),  # SHA-256 of the unspent environment token
    Column("nodes", Text, nullable=False),  # policy.training.reports.NodeState of the present attempt
    Column("output_offsets", Text, nullable=False),  # by rank, of the present attempt
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger, nullable=True),
    Column("claimed_at_ms", BigInteger, nullable=True),  # of the present attempt; NULL: it waits
    # policy.training.job_spec.JobSpec. The last column, because it may be long and SQLite reads a row from its start.
    Column("spec", Text, nullable=False),
    Index("ix_training_jobs_workspace_id_created_at_ms_id", "workspace_id", "created_at_ms", "id"),
    Index("ix_training_jobs_project_id_created_at_ms_id", "project_id", "created_at_ms", "id"),
    Index("ix_training_jobs_status", "status"),
    Index("ix_training_jobs_workspace_id_status", "workspace_id", "status"),
)
Index(
    "ix_training_jobs_is_deleted",
    training_jobs.c.id,
    sqlite_where=training_jobs.c.is_deleted,
    postgresql_where=training_jobs.c.is_deleted,
)
Index(
    "ix_training_jobs_syncing",
    training_jobs.c.id,
    sqlite_where=training_jobs.c.checkpoint_sync_status == SYNCING,
    postgresql_where=training_jobs.c.checkpoint_sync_status == SYNCING,
)

training_checkpoints = Table(
    "training_checkpoints",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, ForeignKey("training_jobs.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("location", Text, nullable=False),  # in the store
    Column("checkpoint_type", Id, nullable=False),
    Column("base_model", Text, nullable=True),
    Column("lora_adapter_config", Text, nullable=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sync_status", Id, nullable=False),
    Column("files", Text, nullable=True),  # NULL: not verified in the store yet
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Index("uq_training_checkpoints_job_id_name", "job_id", "name", unique=True),
)

training_caches = Table(
    "training_caches",
    metadata,
    Column("project_id", Id, primary_key=True),  # no foreign key: the cache outlives a deleted project's row
    Column("is_deleted", Boolean, nullable=False),  # its row goes when the trainer has removed the directory
    Column("summarized_at_ms", BigInteger, nullable=True),
    Column("entries", Text, nullable=True),  # policy.training.caches.CacheEntry; NULL before the first summary
)
Index(
    "ix_training_caches_is_deleted",
    training_caches.c.project_id,
    sqlite_where=training_caches.c.is_deleted,
    postgresql_where=training_caches.c.is_deleted,
)

training_logs = Table(
    "training_logs",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("job_id", Id, nullable=False),
    Column("timestamp_ns", BigInteger, nullable=False),
    Column("level", Id, nullable=False),
    Column("message", Text, nullable=False),
    Column("replica", Text, nullable=True),  # the node, as `g00r0`
    Column("request_id", Id, nullable=True),  # always NULL: the same columns as `deployment_logs`
    Index("ix_training_logs_job_id_timestamp_ns", "job_id", "timestamp_ns"),
)

training_metrics = Table(
    "training_metrics",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("job_id", Id, nullable=False),
    Column("name", Text, nullable=False),
    Column("timestamp_ms", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=True),
    Column("value", Float(53), nullable=False),
    Index("ix_training_metrics_job_id_name_timestamp_ms", "job_id", "name", "timestamp_ms"),
    Index("ix_training_metrics_job_id_timestamp_ms", "job_id", "timestamp_ms"),
)

training_node_samples = Table(
    "training_node_samples",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("job_id", Id, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("timestamp_ms", BigInteger, nullable=False),
    Column("cpu_millicores", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("storage_bytes", BigInteger, nullable=True),
    Column("storage_total_bytes", BigInteger, nullable=True),
    Index("uq_training_node_samples_job_id_timestamp_ms_rank", "job_id", "timestamp_ms", "rank", unique=True),
)

training_sessions = Table(
    "training_sessions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, ForeignKey("training_jobs.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("code", Text, nullable=True),  # sealed; NULL: spent or never asked for
    Column("code_generated_at_ms", BigInteger, nullable=True),
    Column("code_expires_at_ms", BigInteger, nullable=True),
    Column("wrong_codes", Integer, nullable=False),
    Column("cookie_digest", Id, nullable=True),  # of whoever spent a code last
    Column("created_at_ms", BigInteger, nullable=False),
    Column("ends_at_ms", BigInteger, nullable=False),
    Index("uq_training_sessions_job_id_attempt_rank", "job_id", "attempt", "rank", unique=True),
)

training_uploads = Table(
    "training_uploads",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("key", Id, nullable=False),  # the caller's name for it
    Column("status", Id, nullable=False),  # control.records.training
    Column("created_at_ms", BigInteger, nullable=False),
    Index("ix_training_uploads_workspace_id_key", "workspace_id", "key"),
    Index("ix_training_uploads_created_at_ms", "created_at_ms"),
)

training_upload_parts = Table(
    "training_upload_parts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("upload_id", Id, ForeignKey("training_uploads.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", Id, nullable=True),  # NULL: on its way into the store, or lost there
    Column("etag", Id, nullable=True),
    Index("ix_training_upload_parts_upload_id", "upload_id"),
)

training_job_artifacts = Table(
    "training_job_artifacts",
    metadata,
    Column("job_id", Id, ForeignKey("training_jobs.id"), primary_key=True),
    Column("upload_id", Id, ForeignKey("training_uploads.id"), primary_key=True),
    Index("ix_training_job_artifacts_upload_id", "upload_id"),
)

training_backend = Table(  # one row: what the trainer reported last
    "training_backend",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("trainer", Id, nullable=False),
    Column("backend", Id, nullable=False),
    Column("reason", Text, nullable=True),
    Column("has_sessions", Boolean, nullable=False, server_default=false()),
    Column("hosts", Text, nullable=False),
    Column("reported_at_ms", BigInteger, nullable=False),
)
