"""Sessions of people: who logged in at the identity provider, and the workspace and role that were chosen.

The version before finds no such session, because it has no key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("console_sessions", sa.Column("person", sa.Text, nullable=True))
    op.add_column("console_sessions", sa.Column("workspace_id", Id, nullable=True))
    op.add_column("console_sessions", sa.Column("role", Id, nullable=True))


def downgrade() -> None:
    op.execute("DELETE FROM console_sessions WHERE person IS NOT NULL")  # no key opens them
    for name in ("role", "workspace_id", "person"):
        op.drop_column("console_sessions", name)
