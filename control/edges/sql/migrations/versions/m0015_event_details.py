"""Details of events, which say what else a call cost, and the webhooks that are sent them.

Each new column is null or has a constant default. So no row is rewritten, however large the table is; on PostgreSQL
the columns reach all partitions, and later ones are created like the whole table.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_FIGURES = (
    *("cache_write_tokens", "cache_write_1h_tokens", "reasoning_tokens"),
    *("audio_input_tokens", "audio_output_tokens", "image_input_tokens", "image_output_tokens"),
    "server_tool_calls",
)


def upgrade() -> None:
    for column in _event_columns():
        op.add_column("events", column)
    op.add_column("webhooks", sa.Column("include_details", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("webhook_deliveries", sa.Column("costs", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("webhook_deliveries", "costs")
    op.drop_column("webhooks", "include_details")
    for column in reversed(_event_columns()):
        op.drop_column("events", column.name)


def _event_columns() -> list["sa.Column[Any]"]:
    return [
        sa.Column("source", sa.Text, nullable=True),
        sa.Column("group_path", Id, nullable=True),
        sa.Column("service_tier", sa.Text, nullable=True),
        *(sa.Column(name, sa.BigInteger, nullable=True) for name in _FIGURES),
        sa.Column("charged", sa.SmallInteger, nullable=False, server_default="1"),
    ]
