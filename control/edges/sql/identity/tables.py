"""The table of identity providers. Part of the metadata of `control/edges/sql/tables.py`."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text

from control.edges.sql.tables import Id, metadata

identity_providers = Table(  # at most one of a workspace
    "identity_providers",
    metadata,
    Column("workspace_id", Id, ForeignKey("workspaces.id"), primary_key=True),
    Column("id", Id, nullable=False),  # a digest of issuer and audience
    Column("issuer", Text, nullable=False),
    Column("audience", Text, nullable=False),
    Column("entity_claim", Text, nullable=False),
    Column("jwks_url", Text, nullable=True),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("key_set", Text, nullable=True),  # a JSON list of public keys; null: they could never be fetched
    Column("keys_fetched_at_ms", BigInteger, nullable=True),
    Column("last_error", Text, nullable=True),
    Column("attempted_at_ms", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger, nullable=False),
    Index("uq_identity_providers_id", "id", unique=True),
    Index("ix_identity_providers_attempted_at_ms", "attempted_at_ms"),
)
