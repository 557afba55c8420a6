"""A workspace's settings of asynchronous requests: the longest body, and the secrets that sign their results."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for column in (
        sa.Column("async_max_body_bytes", sa.Integer, nullable=True),
        sa.Column("signing_secret", sa.Text, nullable=True),
        sa.Column("previous_signing_secret", sa.Text, nullable=True),
        sa.Column("previous_signing_until_ms", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("workspaces", column)


def downgrade() -> None:
    for name in (
        *("async_max_body_bytes", "signing_secret"),
        *("previous_signing_secret", "previous_signing_until_ms"),
    ):
        op.drop_column("workspaces", name)
