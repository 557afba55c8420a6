"""Webhooks and their deliveries. No foreign key: an ingest must not fail because a webhook was deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", Id, primary_key=True),
        sa.Column("workspace_id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=True),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("secret", sa.Text, nullable=False),
        sa.Column("previous_secret", sa.Text, nullable=True),
        sa.Column("previous_until_ms", sa.BigInteger, nullable=True),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], "fk_webhooks_workspace_id"),
    )
    op.create_index("ix_webhooks_workspace_id_id", "webhooks", ["workspace_id", "id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", Id, primary_key=True),
        sa.Column("webhook_id", Id, nullable=False),
        sa.Column("type", Id, nullable=False),
        sa.Column("event_keys", sa.Text, nullable=False),
        sa.Column("status", Id, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("attempt_log", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("retry_since_ms", sa.BigInteger, nullable=False),
        sa.Column("next_attempt_at_ms", sa.BigInteger, nullable=False),
        sa.Column("lease", Id, nullable=True),
        sa.Column("leased_until_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger, nullable=True),
    )
    op.create_index("ix_webhook_deliveries_webhook_id_id", "webhook_deliveries", ["webhook_id", "id"])
    pending = sa.text("status = 'PENDING'")
    for name, column in (("due", "next_attempt_at_ms"), ("leased", "leased_until_ms")):
        op.create_index(
            f"ix_webhook_deliveries_{name}",
            "webhook_deliveries",
            ["webhook_id", column],
            sqlite_where=pending,
            postgresql_where=pending,
        )
    op.create_index("ix_webhook_deliveries_ended", "webhook_deliveries", ["status", "ended_at_ms"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
