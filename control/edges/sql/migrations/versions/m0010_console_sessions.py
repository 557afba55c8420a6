"""Sessions of the console: who is logged in with a browser."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column("digest", Id, primary_key=True),
        sa.Column("key_digest", Id, nullable=False),
        sa.Column("sealed_key", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_console_sessions_key_digest", "console_sessions", ["key_digest", "created_at_ms", "digest"])
    op.create_index("ix_console_sessions_expires_at_ms", "console_sessions", ["expires_at_ms"])


def downgrade() -> None:
    op.drop_table("console_sessions")
