"""Answers to requests with an `Idempotency-Key`. The version before ignores the header, and does not use the table."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "idempotent_answers",
        sa.Column("id", Id, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_idempotent_answers"),
    )
    op.create_index("ix_idempotent_answers_expires_at_ms", "idempotent_answers", ["expires_at_ms"])


def downgrade() -> None:
    op.drop_table("idempotent_answers")
