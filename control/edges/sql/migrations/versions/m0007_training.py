"""Training: projects, jobs and what they leave; which workspaces may create jobs; the backend that runs them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
# SQLite counts up an INTEGER primary key only.
Counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TABLES = ("backend", "sessions", "metrics", "logs", "checkpoints", "jobs", "projects")


def upgrade() -> None:
    op.add_column("workspaces", sa.Column("training", sa.Boolean, nullable=False, server_default=sa.false()))
    _create_projects()
    _create_jobs()
    _create_checkpoints()
    _create_output()
    _create_sessions()
    _create_backend()


def downgrade() -> None:
    for name in _TABLES:
        op.drop_table(f"training_{name}")
    op.drop_column("workspaces", "training")


def _create_projects() -> None:
    op.create_table(
        "training_projects",
        sa.Column("id", Id, primary_key=True),
        sa.Column("workspace_id", Id, nullable=False),
        sa.Column("name", Id, nullable=False),
        sa.Column("is_deleted", sa.Boolean, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], "fk_training_projects_workspace_id"),
    )
    op.create_index(
        *("uq_training_projects_workspace_id_name", "training_projects", ["workspace_id", "name"]),
        unique=True,
        sqlite_where=sa.text("is_deleted = 0"),
        postgresql_where=sa.text("NOT is_deleted"),
    )
    _index("ix_training_projects_workspace_id_id", "training_projects", "workspace_id", "id")


def _create_jobs() -> None:
    op.create_table(
        "training_jobs",
        sa.Column("id", Id, primary_key=True),
        sa.Column("workspace_id", Id, nullable=False),
        sa.Column("project_id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=True),
        sa.Column("status", Id, nullable=False),
        sa.Column("error_message", sa.Text, nullable=True),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("availability_model", Id, nullable=False),
        sa.Column("node_count", sa.Integer, nullable=False),
        sa.Column("resources", sa.Text, nullable=False),
        sa.Column("gpu_memory_mib", sa.BigInteger, nullable=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("stop_requested", sa.Boolean, nullable=False),
        sa.Column("is_deleted", sa.Boolean, nullable=False),
        sa.Column("recreated_from", Id, nullable=True),
        sa.Column("checkpoint_sync_status", Id, nullable=True),
        sa.Column("environment_digest", Id, nullable=True),
        sa.Column("nodes", sa.Text, nullable=False),
        sa.Column("output_offsets", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger, nullable=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], "fk_training_jobs_workspace_id"),
        sa.ForeignKeyConstraint(["project_id"], ["training_projects.id"], "fk_training_jobs_project_id"),
    )
    for owner in ("workspace_id", "project_id"):
        _index(f"ix_training_jobs_{owner}_created_at_ms_id", "training_jobs", owner, "created_at_ms", "id")
    _index("ix_training_jobs_status", "training_jobs", "status")
    _index("ix_training_jobs_workspace_id_status", "training_jobs", "workspace_id", "status")
    op.create_index(
        *("ix_training_jobs_is_deleted", "training_jobs", ["id"]),
        sqlite_where=sa.text("is_deleted = 1"),
        postgresql_where=sa.text("is_deleted"),
    )
    syncing = sa.text("checkpoint_sync_status = 'SYNCING'")
    op.create_index("ix_training_jobs_syncing", "training_jobs", ["id"], sqlite_where=syncing, postgresql_where=syncing)


def _create_checkpoints() -> None:
    op.create_table(
        "training_checkpoints",
        sa.Column("id", Id, primary_key=True),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("location", sa.Text, nullable=False),
        sa.Column("checkpoint_type", Id, nullable=False),
        sa.Column("base_model", sa.Text, nullable=True),
        sa.Column("lora_adapter_config", sa.Text, nullable=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("sync_status", Id, nullable=False),
        sa.Column("files", sa.Text, nullable=True),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["training_jobs.id"], "fk_training_checkpoints_job_id"),
    )
    _index("uq_training_checkpoints_job_id_name", "training_checkpoints", "job_id", "name", unique=True)


def _create_output() -> None:
    op.create_table(
        "training_logs",
        sa.Column("id", Counter, primary_key=True, autoincrement=True),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("timestamp_ns", sa.BigInteger, nullable=False),
        sa.Column("level", Id, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("replica", sa.Text, nullable=True),
        sa.Column("request_id", Id, nullable=True),
    )
    _index("ix_training_logs_job_id_timestamp_ns", "training_logs", "job_id", "timestamp_ns")
    op.create_table(
        "training_metrics",
        sa.Column("id", Counter, primary_key=True, autoincrement=True),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=True),
        sa.Column("value", sa.Float(53), nullable=False),
    )
    _index("ix_training_metrics_job_id_name_timestamp_ms", "training_metrics", "job_id", "name", "timestamp_ms")
    _index("ix_training_metrics_job_id_timestamp_ms", "training_metrics", "job_id", "timestamp_ms")


def _create_sessions() -> None:
    op.create_table(
        "training_sessions",
        sa.Column("id", Id, primary_key=True),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("code", sa.Text, nullable=True),
        sa.Column("code_generated_at_ms", sa.BigInteger, nullable=True),
        sa.Column("code_expires_at_ms", sa.BigInteger, nullable=True),
        sa.Column("wrong_codes", sa.Integer, nullable=False),
        sa.Column("cookie_digest", Id, nullable=True),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ends_at_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["training_jobs.id"], "fk_training_sessions_job_id"),
    )
    _index("uq_training_sessions_job_id_attempt_rank", "training_sessions", "job_id", "attempt", "rank", unique=True)


def _create_backend() -> None:
    op.create_table(
        "training_backend",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("trainer", Id, nullable=False),
        sa.Column("backend", Id, nullable=False),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("has_sessions", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("hosts", sa.Text, nullable=False),
        sa.Column("reported_at_ms", sa.BigInteger, nullable=False),
    )


def _index(name: str, table: str, *columns: str, unique: bool = False) -> None:
    op.create_index(name, table, list(columns), unique=unique)
