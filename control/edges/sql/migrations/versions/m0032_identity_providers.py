"""Identity providers of workspaces. The version before knows none, and its proxies refuse their tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "identity_providers",
        sa.Column("workspace_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("issuer", "audience", "entity_claim")),
        sa.Column("jwks_url", sa.Text, nullable=True),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.Column("key_set", sa.Text, nullable=True),
        sa.Column("keys_fetched_at_ms", sa.BigInteger, nullable=True),
        sa.Column("last_error", sa.Text, nullable=True),
        sa.Column("attempted_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", name="pk_identity_providers"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], "fk_identity_providers_workspace_id"),
    )
    op.create_index("uq_identity_providers_id", "identity_providers", ["id"], unique=True)
    op.create_index("ix_identity_providers_attempted_at_ms", "identity_providers", ["attempted_at_ms"])


def downgrade() -> None:
    op.drop_table("identity_providers")
