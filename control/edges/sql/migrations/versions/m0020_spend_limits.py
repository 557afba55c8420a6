"""Spend limits of groups, how far events are counted for them, which machines may still give events, older proxies.

The new column has a constant default. So no row is rewritten, and the version before writes rows without it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("groups", sa.Column("spend_limits", sa.Text, nullable=False, server_default="[]"))
    has_limits = sa.text("spend_limits <> '[]'")
    op.create_index(
        "ix_groups_spend_limits", "groups", ["root_id", "path"], sqlite_where=has_limits, postgresql_where=has_limits
    )
    progress = op.create_table(
        "spend_progress",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("counted_ms", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(progress, [{"id": 1, "counted_ms": 0}])
    op.create_table(
        "spend_machines",
        sa.Column("machine", Id, primary_key=True),
        sa.Column("incarnations", sa.Text, nullable=False),
        sa.Column("reported_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "older_spend_proxies",
        sa.Column("spend_level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("asked_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("older_spend_proxies")
    op.drop_table("spend_machines")
    op.drop_table("spend_progress")
    op.drop_index("ix_groups_spend_limits", "groups")
    op.drop_column("groups", "spend_limits")
