"""The list of requests, and how many rows it has. The version before does not know it."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_TEXTS = ("request_id", "external_entity_id", "api_key_prefix", "slug", "path")
_TEXTS_BEHIND_STATUS = ("error_code", "limit_group_id", "limit_type", "limit_unit", "limit_threshold")
_INDEXED = ("request_id", "external_entity_id", "api_key_prefix", "slug", "status")


def upgrade() -> None:
    op.create_table(
        "requests",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("timestamp_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        *(sa.Column(name, Id, nullable=False) for name in _TEXTS),
        sa.Column("status", sa.Integer, nullable=False),
        *(sa.Column(name, Id, nullable=False) for name in _TEXTS_BEHIND_STATUS),
        sa.Column("first_byte_us", sa.BigInteger, nullable=True),
        sa.Column("duration_us", sa.BigInteger, nullable=False),
        sa.Column("event_key", Id, nullable=False),
        sa.Column("weight", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    for name in _INDEXED:
        op.create_index(f"ix_requests_{name}", "requests", ["workspace_id", name, "timestamp_ms", "id"])
    op.create_index("ix_requests_timestamp_ms", "requests", ["timestamp_ms"])
    op.create_table(
        "request_count",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO request_count (id, value) VALUES (1, 0)")


def downgrade() -> None:
    op.drop_table("request_count")
    op.drop_table("requests")
