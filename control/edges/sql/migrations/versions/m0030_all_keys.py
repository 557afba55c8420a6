"""The index of all keys of a workspace, with their names. The version before does not use it."""

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_index("ix_api_keys_all", "api_keys", ["workspace_id", "created_at_ms", "prefix", "name"])


def downgrade() -> None:
    op.drop_index("ix_api_keys_all", "api_keys")
