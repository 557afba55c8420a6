"""The first tables: the revision, what is published, the tenants and all they own, and the billing events.

Frozen: later changes are later steps. It spells its tables out, so that `edges/sql/tables.py` may move on.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def _id(name: str, nullable: bool = False) -> "sa.Column[str]":
    return sa.Column(name, Id, nullable=nullable)


def _big(name: str, nullable: bool = False) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(name: str, nullable: bool = False) -> "sa.Column[str]":
    return sa.Column(name, sa.Text, nullable=nullable)


def _owned_by(table: str, column: str, *columns: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{table}.id"], f"fk_{'_'.join((*columns, column))}")


def upgrade() -> None:
    _published()
    _tenants()
    _groups_and_keys()
    _routing()
    _events()


def _published() -> None:
    table = op.create_table(
        "revision",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        _id("epoch"),
        _big("value"),
        _big("floor"),
    )
    op.bulk_insert(table, [{"id": 1, "epoch": secrets.token_hex(8), "value": 0, "floor": 0}])
    op.create_table(
        "published",
        _id("kind"),
        _id("id"),
        _big("revision"),
        _text("body", nullable=True),
        _big("published_at_ms"),
        sa.PrimaryKeyConstraint("kind", "id", name="pk_published"),
    )
    op.create_index("ix_published_revision_kind_id", "published", ["revision", "kind", "id"])
    dead = sa.text("body IS NULL")
    op.create_index(
        "ix_published_tombstones", "published", ["published_at_ms"], sqlite_where=dead, postgresql_where=dead
    )


def _tenants() -> None:
    op.create_table(
        "workspaces",
        sa.Column("id", Id, primary_key=True),
        _id("name"),
        _id("tier"),
        _id("billing"),
        sa.Column("onboarded", sa.Boolean, nullable=False),
        _big("created_at_ms"),
        sa.UniqueConstraint("name", name="uq_workspaces_name"),
    )
    op.create_table(
        "prefixes",
        sa.Column("prefix", Id, primary_key=True),
        _id("workspace_id"),
        _owned_by("workspaces", "workspace_id", "prefixes"),
    )
    op.create_index("ix_prefixes_workspace_id", "prefixes", ["workspace_id"])
    op.create_table(
        "secrets",
        sa.Column("id", Id, primary_key=True),
        _id("workspace_id"),
        _id("name"),
        _text("ciphertext"),
        _big("created_at_ms"),
        _big("updated_at_ms"),
        _owned_by("workspaces", "workspace_id", "secrets"),
    )
    op.create_index("uq_secrets_workspace_id_name", "secrets", ["workspace_id", "name"], unique=True)
    op.create_index("ix_secrets_workspace_id_id", "secrets", ["workspace_id", "id"])


def _groups_and_keys() -> None:
    op.create_table(
        "groups",
        sa.Column("id", Id, primary_key=True),
        _id("workspace_id"),
        _id("parent_id", nullable=True),
        _id("root_id"),
        _id("path"),
        _id("enforcement"),
        _id("external_entity_id"),
        _text("name", nullable=True),
        _text("models"),
        _big("created_at_ms"),
        _big("updated_at_ms"),
        _owned_by("workspaces", "workspace_id", "groups"),
        _owned_by("groups", "parent_id", "groups"),
    )
    unique = ["workspace_id", "external_entity_id"]
    op.create_index("uq_groups_workspace_id_external_entity_id", "groups", unique, unique=True)
    op.create_index("ix_groups_workspace_id_id", "groups", ["workspace_id", "id"])
    op.create_index("ix_groups_parent_id", "groups", ["parent_id"])
    op.create_index("ix_groups_path", "groups", ["path"])
    op.create_table(
        "api_keys",
        sa.Column("prefix", Id, primary_key=True),
        _id("digest"),
        _id("kind"),
        _id("workspace_id"),
        _id("group_id", nullable=True),
        _text("name", nullable=True),
        _big("created_at_ms"),
        _big("last_used_at_ms", nullable=True),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
        _owned_by("workspaces", "workspace_id", "api_keys"),
        _owned_by("groups", "group_id", "api_keys"),
    )
    op.create_index("ix_api_keys_group_id", "api_keys", ["group_id", "created_at_ms", "prefix"])
    own = sa.text("group_id IS NULL")
    columns = ["workspace_id", "created_at_ms", "prefix"]
    op.create_index("ix_api_keys_workspace_id", "api_keys", columns, sqlite_where=own, postgresql_where=own)


def _routing() -> None:
    op.create_table(
        "models",
        sa.Column("id", Id, primary_key=True),
        _id("workspace_id"),
        _text("name"),
        _big("created_at_ms"),
        _owned_by("workspaces", "workspace_id", "models"),
    )
    op.create_index("ix_models_workspace_id_id", "models", ["workspace_id", "id"])
    op.create_table(
        "deployments",
        sa.Column("id", Id, primary_key=True),
        _id("model_id"),
        _text("name"),
        _id("status"),
        _text("replicas"),
        _big("created_at_ms"),
        _big("updated_at_ms"),
        _owned_by("models", "model_id", "deployments"),
    )
    op.create_index("ix_deployments_model_id_id", "deployments", ["model_id", "id"])
    _environments()
    _endpoints()


def _environments() -> None:
    op.create_table(
        "environments",
        _id("model_id"),
        _id("name"),
        _id("deployment_id"),
        _big("created_at_ms"),
        _big("updated_at_ms"),
        sa.PrimaryKeyConstraint("model_id", "name", name="pk_environments"),
        _owned_by("models", "model_id", "environments"),
        _owned_by("deployments", "deployment_id", "environments"),
    )
    op.create_index("ix_environments_deployment_id", "environments", ["deployment_id"])


def _endpoints() -> None:
    op.create_table(
        "endpoints",
        sa.Column("id", Id, primary_key=True),
        _id("workspace_id"),
        _id("slug"),
        _text("target"),
        _id("secret_id", nullable=True),
        _id("model_id", nullable=True),
        _big("created_at_ms"),
        _big("updated_at_ms"),
        sa.UniqueConstraint("slug", name="uq_endpoints_slug"),
        _owned_by("workspaces", "workspace_id", "endpoints"),
        _owned_by("secrets", "secret_id", "endpoints"),
        _owned_by("models", "model_id", "endpoints"),
    )
    op.create_index("ix_endpoints_workspace_id_id", "endpoints", ["workspace_id", "id"])
    op.create_index("ix_endpoints_secret_id", "endpoints", ["secret_id"])
    op.create_index("ix_endpoints_model_id", "endpoints", ["model_id"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("idempotency_key", Id, primary_key=True),
        _id("workspace_id"),
        _id("group_id"),
        _id("external_entity_id"),
        _id("api_key_prefix"),
        _text("request_id"),
        _id("model_slug"),
        _big("timestamp_ms"),
        _big("input_tokens"),
        _big("output_tokens"),
        _big("cached_input_tokens"),
        sa.Column("status", sa.Integer, nullable=False),
        _text("request_metadata", nullable=True),
        _big("ingested_at_ms"),
    )
    order = ["timestamp_ms", "idempotency_key"]
    op.create_index("ix_events_workspace_time", "events", ["workspace_id", *order])
    op.create_index("ix_events_entity_time", "events", ["workspace_id", "external_entity_id", *order])
    op.create_index("ix_events_key_time", "events", ["workspace_id", "api_key_prefix", *order])


_TABLES = (
    *("events", "endpoints", "environments", "deployments", "models", "api_keys", "groups"),
    *("secrets", "prefixes", "workspaces", "published", "revision"),
)


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)
