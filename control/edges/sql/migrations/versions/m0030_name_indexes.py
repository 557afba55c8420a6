"""Indexes with the names of groups and keys, in which they are looked through. The version before does not use them."""

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_index("ix_api_keys_all", "api_keys", ["workspace_id", "created_at_ms", "prefix", "name"])
    op.create_index("ix_groups_names", "groups", ["workspace_id", "external_entity_id", "id", "name"])


def downgrade() -> None:
    op.drop_index("ix_groups_names", "groups")
    op.drop_index("ix_api_keys_all", "api_keys")
