"""Tables for serving events: the latest clock that a reader has seen, and an index of a key's events by entity."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ORDER = ["timestamp_ms", "idempotency_key"]


def upgrade() -> None:
    table = op.create_table(
        "event_clock",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("latest_ms", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(table, [{"id": 1, "latest_ms": 0}])
    op.drop_index("ix_events_key_time", "events")
    columns = ["workspace_id", "api_key_prefix", "external_entity_id", *_ORDER]
    op.create_index("ix_events_key_entity_time", "events", columns)


def downgrade() -> None:
    op.drop_index("ix_events_key_entity_time", "events")
    op.create_index("ix_events_key_time", "events", ["workspace_id", "api_key_prefix", *_ORDER])
    op.drop_table("event_clock")
