"""Figures of traffic by step and slug, and the last batch of each proxy that sent any."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_SUMS = ("calls", "errors", "refusals", "uncached_input_tokens", "cached_input_tokens", "output_tokens")
_BUCKETS = 14


def upgrade() -> None:
    figures = (*_SUMS, *(f"first_bytes_{number}" for number in range(_BUCKETS)))
    op.create_table(
        "traffic",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("step_s", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("start_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("slug", Id, primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in figures),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "traffic_senders",
        sa.Column("sender", Id, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("added_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("traffic_senders")
    op.drop_table("traffic")
