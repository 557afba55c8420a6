"""Prepaid balances: what was paid in, what calls draw, and from which balance each event draws.

The new columns have no default but null. So no row is rewritten, and the version before writes rows without them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "balance_credits",
        sa.Column("key", Id, primary_key=True),
        sa.Column("group_id", Id, nullable=False),
        sa.Column("reference", sa.Text, nullable=False),
        sa.Column("amount", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=True),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("uq_balance_credits_group_id_reference", "balance_credits", ["group_id", "reference"], unique=True)
    is_withdrawal = sa.text("substr(amount, 1, 1) = '-'")
    op.create_index(
        "ix_balance_credits_withdrawals",
        "balance_credits",
        ["timestamp_ms"],
        sqlite_where=is_withdrawal,
        postgresql_where=is_withdrawal,
    )
    op.create_table(
        "balance_draws",
        sa.Column("group_id", Id, primary_key=True),
        sa.Column("hour_ms", sa.BigInteger, primary_key=True),
        sa.Column("slug", Id, primary_key=True),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("whole", sa.BigInteger, nullable=False),
        sa.Column("picos", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.add_column("groups", sa.Column("balance", sa.Text, nullable=True))
    has_balance = sa.text("balance IS NOT NULL")
    op.create_index(
        "ix_groups_balance", "groups", ["root_id", "path"], sqlite_where=has_balance, postgresql_where=has_balance
    )
    op.add_column("events", sa.Column("balance_group", Id, nullable=True))
    op.add_column("events", sa.Column("draw", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("events", "draw")
    op.drop_column("events", "balance_group")
    op.drop_index("ix_groups_balance", "groups")
    op.drop_column("groups", "balance")
    op.drop_table("balance_draws")
    op.drop_table("balance_credits")
