"""The tables of traffic. Part of the metadata of `control/edges/sql/tables.py`.

No foreign keys: adding figures must lock no workspace.
"""

from sqlalchemy import BigInteger, Column, Integer, Table

from control.edges.sql.tables import Id, metadata
from policy.traffic import BUCKETS, SUMS

FIGURES = (*SUMS, *(f"first_bytes_{number}" for number in range(BUCKETS)))
"""The columns that are added up."""

traffic = Table(
    "traffic",
    metadata,
    Column("workspace_id", Id, primary_key=True),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("start_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("slug", Id, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in FIGURES),
    sqlite_with_rowid=False,
)

traffic_senders = Table(
    "traffic_senders",
    metadata,
    Column("sender", Id, primary_key=True),
    Column("number", BigInteger, nullable=False),  # of the last batch that was added
    Column("added_at_ms", BigInteger, nullable=False),
)
