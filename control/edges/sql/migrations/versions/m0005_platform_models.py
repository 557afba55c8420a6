"""The wake hook, the probe and the bounds of a deployment, and the lines of its log."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
# SQLite counts up an INTEGER primary key only.
Counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    for column in (
        sa.Column("wake_url", sa.Text, nullable=True),
        sa.Column("health", sa.Text, nullable=True),
        sa.Column("max_concurrency", sa.Integer, nullable=True),
        sa.Column("max_queued", sa.Integer, nullable=False, server_default="100"),
        sa.Column("error_message", sa.Text, nullable=True),
        sa.Column("wake_next_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("wake_pause_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_request_at_ms", sa.BigInteger, nullable=True),
    ):
        op.add_column("deployments", column)
    op.create_table(
        "deployment_logs",
        sa.Column("id", Counter, primary_key=True, autoincrement=True),
        sa.Column("deployment_id", Id, nullable=False),
        sa.Column("timestamp_ns", sa.BigInteger, nullable=False),
        sa.Column("level", Id, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("replica", sa.Text, nullable=True),
        sa.Column("request_id", Id, nullable=True),
    )
    op.create_index(
        "ix_deployment_logs_deployment_id_timestamp_ns", "deployment_logs", ["deployment_id", "timestamp_ns"]
    )


def downgrade() -> None:
    op.drop_table("deployment_logs")
    for name in (
        *("wake_url", "health", "max_concurrency", "max_queued", "error_message"),
        *("wake_next_ms", "wake_pause_ms", "last_request_at_ms"),
    ):
        op.drop_column("deployments", name)
