"""The tables of spend limits and balances. Part of the metadata of `control/edges/sql/tables.py`.

A group's spend limits, and what was paid into its balance in all, are columns of `groups`.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, func, literal_column

from control.edges.sql.tables import Id, metadata

spend_progress = Table(  # one row
    "spend_progress",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("counted_ms", BigInteger, nullable=False),  # events through this time are counted; 0: none were yet
)

spend_machines = Table(  # machines of the proxy, by name
    "spend_machines",
    metadata,
    Column("machine", Id, primary_key=True),
    Column("incarnations", Text, nullable=False),  # a JSON list: those of its workers that may still give events
    Column("reported_at_ms", BigInteger, nullable=False),
    Column("rebuilt", Text, nullable=False, server_default="{}"),  # a JSON object: root of a tree that waits, its state
)

spend_rebuilds = Table(  # trees with a HARD limit, or that had one until just now
    "spend_rebuilds",
    metadata,
    Column("root_id", Id, primary_key=True),
    Column("state", Text, nullable=False),  # see control/records/spend.py
)

balance_credits = Table(  # of groups that exist
    "balance_credits",
    metadata,
    Column("key", Id, primary_key=True),  # a ULID: the key of a withdrawal's reservation
    Column("group_id", Id, nullable=False),
    Column("reference", Text, nullable=False),  # the operator's name for it
    Column("amount", Text, nullable=False),  # decimal text; below 0: a withdrawal
    Column("note", Text, nullable=True),
    Column("timestamp_ms", BigInteger, nullable=False),  # a withdrawal's is stamped as an event's
    Index("uq_balance_credits_group_id_reference", "group_id", "reference", unique=True),
)
_FIRST = literal_column("1", Integer)
IS_WITHDRAWAL = func.substr(balance_credits.c.amount, _FIRST, _FIRST) == literal_column("'-'")
"""Literals, as in `HAS_PERCENTS`."""
Index(
    "ix_balance_credits_withdrawals",
    balance_credits.c.timestamp_ms,
    sqlite_where=IS_WITHDRAWAL,
    postgresql_where=IS_WITHDRAWAL,
)

balance_draws = Table(  # of groups that exist: the calls through a slug in a UTC hour. A cost is the sum of three limbs
    "balance_draws",
    metadata,
    Column("group_id", Id, primary_key=True),
    Column("hour_ms", BigInteger, primary_key=True),  # the start of the hour that has their events' timestamps
    Column("slug", Id, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("whole", BigInteger, nullable=False),  # units of the currency
    Column("picos", BigInteger, nullable=False),  # 10^-12 of one, and 10^-24: sums, which may be above 10^12
    Column("last", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

older_spend_proxies = Table(  # which ask for policy and have a lower level than this version (policy/spend/levels.py)
    "older_spend_proxies",
    metadata,
    Column("spend_level", Integer, primary_key=True, autoincrement=False),  # their level: of more than spend
    Column("asked_at_ms", BigInteger, nullable=False),  # when one of them last did
)
