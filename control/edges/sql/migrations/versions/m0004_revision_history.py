"""A random nonce per revision: it distinguishes revisions of the same number after a restore."""

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    table = op.create_table(
        "revision_nonces",
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("nonce", Id, nullable=False),
        sa.Column("published_at_ms", sa.BigInteger, nullable=False),
    )
    current = op.get_bind().execute(sa.text("SELECT value FROM revision")).scalar_one()
    first = {"revision": current, "nonce": secrets.token_hex(8), "published_at_ms": time.time_ns() // 1_000_000}
    op.bulk_insert(table, [first])


def downgrade() -> None:
    op.drop_table("revision_nonces")
