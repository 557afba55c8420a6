"""The last times at which proxies that know fewer kinds of limits asked for policy."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "older_proxies",
        sa.Column("limit_kinds", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("asked_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("older_proxies")
