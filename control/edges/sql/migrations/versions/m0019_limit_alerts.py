"""Alerts on limits: at which percents groups want them, what was told, and which webhooks are told what.

Each new column has a constant default. So no row is rewritten, and the version before writes rows without it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0017"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_BILLING_ALONE = '["API_BILLING_USAGE"]'


def upgrade() -> None:
    op.add_column("groups", sa.Column("alert_percents", sa.Text, nullable=False, server_default="[]"))
    has_percents = sa.text("alert_percents <> '[]'")
    op.create_index(
        "ix_groups_alert_percents", "groups", ["path"], sqlite_where=has_percents, postgresql_where=has_percents
    )
    op.add_column("webhooks", sa.Column("event_types", sa.Text, nullable=False, server_default=_BILLING_ALONE))
    op.add_column("webhooks", sa.Column("group_id", Id, nullable=True))
    op.add_column("webhook_deliveries", sa.Column("body", sa.Text, nullable=True))
    _create_tables()


def _create_tables() -> None:
    key = [sa.Column(name, Id, primary_key=True) for name in ("group_id", "kind", "slug", "type", "unit")]
    op.create_table(
        "limit_alerts",
        *key,
        sa.Column("window_start_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("message_type", Id, primary_key=True),
        sa.Column("percent", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("message_id", Id, nullable=False),
        sa.Column("threshold", sa.Text, nullable=False),
        sa.Column("used", sa.Text, nullable=False),
        sa.Column("told_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_limit_alerts_window_start_ms", "limit_alerts", ["window_start_ms"])
    op.create_table(
        "limit_refusals",
        *(sa.Column(name, Id, primary_key=True) for name in ("group_id", "slug", "type", "unit")),
        sa.Column("refused_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_limit_refusals_refused_at_ms", "limit_refusals", ["refused_at_ms"])


def downgrade() -> None:
    op.drop_table("limit_refusals")
    op.drop_table("limit_alerts")
    op.drop_column("webhook_deliveries", "body")
    op.drop_column("webhooks", "group_id")
    op.drop_column("webhooks", "event_types")
    op.drop_index("ix_groups_alert_percents", "groups")
    op.drop_column("groups", "alert_percents")
