"""The region of endpoints. Null is UNRESTRICTED, so the version before writes rows without it."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("region", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("endpoints", "region")
