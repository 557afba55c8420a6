"""The tables of the list of requests. Part of the metadata of `control/edges/sql/tables.py`.

No foreign keys: adding rows must lock no workspace.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table

from control.edges.sql.tables import Id, metadata

INDEXED = ("request_id", "api_key_prefix", "external_entity_id", "slug", "status")
"""The columns by which rows are found, the one that leaves the fewest first."""

requests = Table(
    "requests",
    metadata,
    Column("workspace_id", Id, primary_key=True),
    Column("timestamp_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("request_id", Id, nullable=False),
    Column("external_entity_id", Id, nullable=False),
    Column("api_key_prefix", Id, nullable=False),
    Column("slug", Id, nullable=False),
    Column("path", Id, nullable=False),
    Column("status", Integer, nullable=False),
    Column("error_code", Id, nullable=False),
    Column("limit_group_id", Id, nullable=False),
    Column("limit_type", Id, nullable=False),  # "": no limit has refused the call
    Column("limit_unit", Id, nullable=False),
    Column("limit_threshold", Id, nullable=False),
    Column("first_byte_us", BigInteger, nullable=True),
    Column("duration_us", BigInteger, nullable=False),
    Column("event_key", Id, nullable=False),  # "": the call leaves no event
    Column("weight", BigInteger, nullable=False),
    *(Index(f"ix_requests_{name}", "workspace_id", name, "timestamp_ms", "id") for name in INDEXED),
    Index("ix_requests_timestamp_ms", "timestamp_ms"),
    sqlite_with_rowid=False,
)

request_count = Table(  # one row: who adds or deletes rows of `requests` locks it first
    "request_count",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", BigInteger, nullable=False),  # how many rows `requests` has
)
