"""Sums of billing events by hour, and how far they are made. Control makes those of earlier events while it runs."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_FIGURES = (
    *("calls", "errors", "charged_calls"),
    *("input_tokens", "cached_input_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
    *("audio_input_tokens", "image_input_tokens"),
    *("output_tokens", "reasoning_tokens", "audio_output_tokens", "image_output_tokens"),
    "server_tool_calls",
)


def upgrade() -> None:
    op.create_table(
        "hourly_sums",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("day_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("external_entity_id", Id, primary_key=True),
        sa.Column("api_key_prefix", Id, primary_key=True),
        sa.Column("model_slug", Id, primary_key=True),
        sa.Column("hour_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("group_path", Id, primary_key=True),
        sa.Column("service_tier", Id, primary_key=True),
        sa.Column("above_input_tokens", sa.BigInteger, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")) for name in _FIGURES),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "hourly_sum_progress",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("hourly_sum_progress")
    op.drop_table("hourly_sums")
