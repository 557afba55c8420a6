"""The caches of training projects, with what a trainer reported of them last."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "training_caches",
        sa.Column("project_id", Id, nullable=False),
        sa.Column("is_deleted", sa.Boolean, nullable=False),
        sa.Column("summarized_at_ms", sa.BigInteger, nullable=True),
        sa.Column("entries", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("project_id", name="pk_training_caches"),
    )
    deleted = sa.text("is_deleted")
    op.create_index(
        "ix_training_caches_is_deleted",
        "training_caches",
        ["project_id"],
        sqlite_where=deleted,
        postgresql_where=deleted,
    )


def downgrade() -> None:
    op.drop_table("training_caches")
