"""The audit trail, the owners of what policy files wrote, and the operator's prices."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_MANAGED = ("endpoints", "groups", "secrets", "webhooks")


def upgrade() -> None:
    for table in _MANAGED:
        op.add_column(table, sa.Column("managed_by", sa.Text, nullable=True))
        op.add_column(table, sa.Column("managed_at_ms", sa.BigInteger, nullable=True))
    _create_audit_events()
    _create_prices()


def downgrade() -> None:
    op.drop_table("prices")
    op.drop_table("audit_events")
    for table in _MANAGED:
        op.drop_column(table, "managed_at_ms")
        op.drop_column(table, "managed_by")


def _create_audit_events() -> None:
    op.create_table(
        "audit_events",
        sa.Column("id", Id, primary_key=True),
        sa.Column("workspace_id", Id, nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", Id, nullable=False),
        sa.Column("action", Id, nullable=False),
        sa.Column("resource", Id, nullable=False),
        sa.Column("before", sa.Text, nullable=True),
        sa.Column("after", sa.Text, nullable=True),
        sa.Column("request_id", Id, nullable=True),
    )
    op.create_index("ix_audit_events_workspace_id_time", "audit_events", ["workspace_id", "timestamp_ms", "id"])
    op.create_index("ix_audit_events_actor_time", "audit_events", ["workspace_id", "actor", "timestamp_ms", "id"])


def _create_prices() -> None:
    op.create_table(
        "prices",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("slug", Id, primary_key=True),
        sa.Column("valid_from_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("currency", Id, nullable=False),
        sa.Column("input_per_million", Id, nullable=False),
        sa.Column("cached_input_per_million", Id, nullable=False),
        sa.Column("output_per_million", Id, nullable=False),
        sa.Column("per_call", Id, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], "fk_prices_workspace_id"),
    )
