"""The tables of alerts. Part of the metadata of `control/edges/sql/tables.py`.

No foreign keys: a refusal may be reported after its group was deleted, and what was told goes when it is old.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from control.edges.sql.tables import Id, metadata

limit_alerts = Table(  # each message about a limit, once: the primary key says of what
    "limit_alerts",
    metadata,
    Column("group_id", Id, primary_key=True),
    Column("kind", Id, primary_key=True),
    Column("slug", Id, primary_key=True),  # "" if the limit holds for all slugs together
    Column("type", Id, primary_key=True),
    Column("unit", Id, primary_key=True),
    Column("window_start_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("message_type", Id, primary_key=True),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    Column("message_id", Id, nullable=False),
    Column("threshold", Text, nullable=False),  # decimal numbers as text: amounts of money do not fit a BIGINT
    Column("used", Text, nullable=False),
    Column("told_at_ms", BigInteger, nullable=False),
    Index("ix_limit_alerts_window_start_ms", "window_start_ms"),
)

limit_refusals = Table(  # limits that have refused a call and were not looked at since
    "limit_refusals",
    metadata,
    Column("group_id", Id, primary_key=True),
    Column("slug", Id, primary_key=True),
    Column("type", Id, primary_key=True),
    Column("unit", Id, primary_key=True),
    Column("refused_at_ms", BigInteger, nullable=False),
    Index("ix_limit_refusals_refused_at_ms", "refused_at_ms"),
)
