"""The tables of spend limits, which are a column of `groups`. Part of the metadata of `control/edges/sql/tables.py`."""

from sqlalchemy import BigInteger, Column, Integer, Table, Text

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

older_spend_proxies = Table(  # which ask for policy and know less of spend limits than this version
    "older_spend_proxies",
    metadata,
    Column("spend_level", Integer, primary_key=True, autoincrement=False),  # what they know; 0: no spend limits
    Column("asked_at_ms", BigInteger, nullable=False),  # when one of them last did
)
