"""The time up to which request metadata that no webhook is sent is deleted. Control deletes it while it runs."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "event_metadata_progress",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("event_metadata_progress")
