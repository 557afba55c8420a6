"""The table of answers to requests with an `Idempotency-Key`. Part of the metadata of `control/edges/sql/tables.py`."""

from sqlalchemy import BigInteger, Column, Index, Table, Text

from control.edges.sql.tables import Id, metadata

idempotent_answers = Table(
    "idempotent_answers",
    metadata,
    Column("id", Id, primary_key=True),  # a digest of the key and its scope
    Column("answer", Text, nullable=False),  # sealed; empty only within the transaction that writes it
    Column("expires_at_ms", BigInteger, nullable=False),
    Index("ix_idempotent_answers_expires_at_ms", "expires_at_ms"),
)
