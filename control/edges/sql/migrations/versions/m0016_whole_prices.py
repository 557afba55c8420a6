"""Prices of all kinds of tokens, of long context, service tiers and server tools; the policy file that owns a price."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("prices", sa.Column("other_members", sa.Text, nullable=True))
    op.add_column("prices", sa.Column("managed_by", sa.Text, nullable=True))
    op.add_column("prices", sa.Column("managed_at_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    for column in ("managed_at_ms", "managed_by", "other_members"):
        op.drop_column("prices", column)
