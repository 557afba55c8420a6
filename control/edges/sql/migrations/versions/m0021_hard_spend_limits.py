"""Trees with HARD spend limits, and the trees whose reservations each machine has put again.

The new column has a constant default. So no row is rewritten, and the version before writes rows without it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "spend_rebuilds",
        sa.Column("root_id", Id, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.add_column("spend_machines", sa.Column("rebuilt", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("spend_machines", "rebuilt")
    op.drop_table("spend_rebuilds")
