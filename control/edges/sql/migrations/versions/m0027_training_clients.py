"""The start of a training job's attempt, for its place in the queue, and what the nodes of jobs use.

`claimed_at_ms` is null in rows from before, and while a job waits.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("training_jobs", sa.Column("claimed_at_ms", sa.BigInteger, nullable=True))
    op.create_table(
        "training_node_samples",
        sa.Column("id", Counter, primary_key=True, autoincrement=True),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("cpu_millicores", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("storage_bytes", sa.BigInteger, nullable=True),
        sa.Column("storage_total_bytes", sa.BigInteger, nullable=True),
    )
    name = "uq_training_node_samples_job_id_timestamp_ms_rank"
    op.create_index(name, "training_node_samples", ["job_id", "timestamp_ms", "rank"], unique=True)


def downgrade() -> None:
    op.drop_table("training_node_samples")
    op.drop_column("training_jobs", "claimed_at_ms")
