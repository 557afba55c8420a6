"""The counters that revoked keys of a rotation shared. The version before does not use the table."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "revoked_buckets",
        sa.Column("prefix", Id, primary_key=True),
        sa.Column("bucket", Id, nullable=False),
        sa.Column("revoked_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_revoked_buckets_revoked_at_ms", "revoked_buckets", ["revoked_at_ms"])


def downgrade() -> None:
    op.drop_table("revoked_buckets")
