"""The ids of the keys that control seals and opens secrets with. They tell nothing of the keys."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_table(
        "sealing_keys",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("key_ids", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sealing_keys"),
    )


def downgrade() -> None:
    op.drop_table("sealing_keys")
