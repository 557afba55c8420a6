"""Hourly sums of details, which only a version that knows them may add up, and the groups that were deleted.

An older version that runs beside this one would leave out the details of events. It cannot add to the sums any more,
because it does not know the new name of a column; its reports read events meanwhile.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.execute("ALTER TABLE hourly_sums RENAME COLUMN charged_calls TO per_call_charges")
    op.create_table(
        "deleted_groups",
        sa.Column("workspace_id", Id, primary_key=True),
        sa.Column("path", Id, primary_key=True),
        sa.Column("external_entity_id", Id, nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("deleted_groups")
    op.execute("ALTER TABLE hourly_sums RENAME COLUMN per_call_charges TO charged_calls")
