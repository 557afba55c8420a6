"""The key that took a key's place, and keys with spend limits of their own. The version before does not use them."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("replaced_by", Id, nullable=True))
    op.add_column("api_keys", sa.Column("spend_root_id", Id, nullable=True))
    has_own_spend = sa.column("spend_root_id").is_not(None)
    op.create_index(
        *("ix_api_keys_spend_root_id", "api_keys", ["spend_root_id", "prefix"]),
        sqlite_where=has_own_spend,
        postgresql_where=has_own_spend,
    )


def downgrade() -> None:
    op.drop_index("ix_api_keys_spend_root_id", "api_keys")
    for name in ("spend_root_id", "replaced_by"):
        op.drop_column("api_keys", name)
