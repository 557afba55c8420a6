"""Settings of keys, the first key of a rotation, and roles. The version before does not use them."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("expires_at_ms", sa.BigInteger, nullable=True))
    op.add_column("api_keys", sa.Column("disabled", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("api_keys", sa.Column("settings", sa.Text, nullable=True))
    op.add_column("api_keys", sa.Column("bucket", Id, nullable=True))
    op.add_column("api_keys", sa.Column("role", Id, nullable=True))


def downgrade() -> None:
    for name in ("role", "bucket", "settings", "disabled", "expires_at_ms"):
        op.drop_column("api_keys", name)
