"""The start of a training job's attempt, for its place in the queue. Null in rows from before, and while it waits."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("training_jobs", sa.Column("claimed_at_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    op.drop_column("training_jobs", "claimed_at_ms")
