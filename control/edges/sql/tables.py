"""Every table of control, for SQLAlchemy Core. Migrations create them; `*_rows` and `events/` query them.

Times are epoch milliseconds, JSON is text, ids are compared byte by byte on both databases.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    false,
    literal_column,
)

naming = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=naming)

# PostgreSQL's default collation orders text by language; keyset paging and prefix ranges need byte order.
Id = String().with_variant(String(collation="C"), "postgresql")
# SQLite counts up an INTEGER primary key only.
Counter = BigInteger().with_variant(Integer, "sqlite")

revision = Table(
    "revision",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Id, nullable=False),
    Column("value", BigInteger, nullable=False),
    Column("floor", BigInteger, nullable=False),  # tombstones up to here were deleted: an older reader starts over
)

revision_nonces = Table(  # identifies a history: after a restore the same revision has another nonce
    "revision_nonces",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("nonce", Id, nullable=False),
    Column("published_at_ms", BigInteger, nullable=False),
)

published = Table(
    "published",
    metadata,
    Column("kind", Id, primary_key=True),
    Column("id", Id, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("body", Text, nullable=True),  # NULL is a tombstone
    Column("published_at_ms", BigInteger, nullable=False),
    Index("ix_published_revision_kind_id", "revision", "kind", "id"),
)
Index(
    "ix_published_tombstones",
    published.c.published_at_ms,
    sqlite_where=published.c.body.is_(None),
    postgresql_where=published.c.body.is_(None),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Id, nullable=False, unique=True),
    Column("tier", Id, nullable=False),
    Column("billing", Id, nullable=False),
    Column("onboarded", Boolean, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("async_max_body_bytes", Integer, nullable=True),  # NULL: the proxies' setting
    Column("signing_secret", Text, nullable=True),  # sealed, as is the previous one
    Column("previous_signing_secret", Text, nullable=True),
    Column("previous_signing_until_ms", BigInteger, nullable=False, server_default="0"),
    Column("training", Boolean, nullable=False, server_default=false()),  # may it create training jobs
)

prefixes = Table(
    "prefixes",
    metadata,
    Column("prefix", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False, index=True),
)

groups = Table(
    "groups",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("parent_id", Id, ForeignKey("groups.id"), nullable=True, index=True),
    Column("root_id", Id, nullable=False),
    Column("path", Id, nullable=False, index=True),  # "root/child/grandchild/": a subtree is one range of it
    Column("enforcement", Id, nullable=False),
    Column("external_entity_id", Id, nullable=False),
    Column("name", Text, nullable=True),
    Column("models", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("managed_by", Text, nullable=True),  # the policy file that owns it
    Column("managed_at_ms", BigInteger, nullable=True),  # its `updated_at_ms` when that file last wrote it
    Column("alert_percents", Text, nullable=False, server_default="[]"),
    Column("spend_limits", Text, nullable=False, server_default="[]"),
    Column("balance", Text, nullable=True),  # a JSON object (policy/spend/balances.py); null: no prepaid balance
    Index("uq_groups_workspace_id_external_entity_id", "workspace_id", "external_entity_id", unique=True),
    Index("ix_groups_workspace_id_id", "workspace_id", "id"),
    Index("ix_groups_names", "workspace_id", "external_entity_id", "id", "name"),  # names are looked through in it
)
HAS_PERCENTS = groups.c.alert_percents != literal_column("'[]'")
"""A literal, not a parameter: otherwise the planner does not use the partial index."""
Index("ix_groups_alert_percents", groups.c.path, sqlite_where=HAS_PERCENTS, postgresql_where=HAS_PERCENTS)
HAS_SPEND_LIMITS = groups.c.spend_limits != literal_column("'[]'")
"""A literal, as in `HAS_PERCENTS`."""
Index(
    "ix_groups_spend_limits",
    groups.c.root_id,
    groups.c.path,
    sqlite_where=HAS_SPEND_LIMITS,
    postgresql_where=HAS_SPEND_LIMITS,
)

HAS_BALANCE = groups.c.balance.is_not(None)
Index("ix_groups_balance", groups.c.root_id, groups.c.path, sqlite_where=HAS_BALANCE, postgresql_where=HAS_BALANCE)

deleted_groups = Table(  # by which sums and events of a subtree are found, as long as there may be any
    "deleted_groups",
    metadata,
    Column("workspace_id", Id, primary_key=True),
    Column("path", Id, primary_key=True),
    Column("external_entity_id", Id, nullable=False),
    Column("deleted_at_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("prefix", Id, primary_key=True),
    Column("digest", Id, nullable=False, unique=True),
    Column("kind", Id, nullable=False),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=True),  # NULL: a workspace key
    Column("name", Text, nullable=True),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("last_used_at_ms", BigInteger, nullable=True),
    Column("expires_at_ms", BigInteger, nullable=True),
    Column("disabled", Boolean, nullable=False, server_default=false()),
    Column("settings", Text, nullable=True),  # JSON: what is set besides these two
    Column("bucket", Id, nullable=True),  # the prefix of the first key of a rotation
    Column("role", Id, nullable=True),
    Column("replaced_by", Id, nullable=True),  # the prefix of the key that rotation put in its place
    Column("spend_root_id", Id, nullable=True),  # the root of its group's tree, if it has spend limits of its own
    Index("ix_api_keys_group_id", "group_id", "created_at_ms", "prefix"),
    Index("ix_api_keys_all", "workspace_id", "created_at_ms", "prefix", "name"),  # names are looked through in it
)
HAS_OWN_SPEND = api_keys.c.spend_root_id.is_not(None)
Index(
    "ix_api_keys_spend_root_id",
    api_keys.c.spend_root_id,
    api_keys.c.prefix,
    sqlite_where=HAS_OWN_SPEND,
    postgresql_where=HAS_OWN_SPEND,
)

Index(
    "ix_api_keys_workspace_id",
    api_keys.c.workspace_id,
    api_keys.c.created_at_ms,
    api_keys.c.prefix,
    sqlite_where=api_keys.c.group_id.is_(None),
    postgresql_where=api_keys.c.group_id.is_(None),
)

revoked_buckets = Table(  # revoked keys that shared the counters of another one (api_keys.bucket)
    "revoked_buckets",
    metadata,
    Column("prefix", Id, primary_key=True),
    Column("bucket", Id, nullable=False),
    Column("revoked_at_ms", BigInteger, nullable=False, index=True),
)

secrets = Table(
    "secrets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("name", Id, nullable=False),
    Column("ciphertext", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("managed_by", Text, nullable=True),  # the policy file that owns it
    Column("managed_at_ms", BigInteger, nullable=True),  # its `updated_at_ms` when that file last wrote it
    Index("uq_secrets_workspace_id_name", "workspace_id", "name", unique=True),
    Index("ix_secrets_workspace_id_id", "workspace_id", "id"),
)

models = Table(
    "models",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Index("ix_models_workspace_id_id", "workspace_id", "id"),
)

deployments = Table(
    "deployments",
    metadata,
    Column("id", Id, primary_key=True),
    Column("model_id", Id, ForeignKey("models.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Id, nullable=False),
    Column("replicas", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("wake_url", Text, nullable=True),  # its path may hold a secret
    Column("health", Text, nullable=True),
    Column("max_concurrency", Integer, nullable=True),
    # The defaults are for an older version of control that still runs beside this one.
    Column("max_queued", Integer, nullable=False, server_default="100"),
    Column("error_message", Text, nullable=True),
    Column("wake_next_ms", BigInteger, nullable=False, server_default="0"),  # when the wake hook may be asked again
    Column("wake_pause_ms", BigInteger, nullable=False, server_default="0"),
    Column("last_request_at_ms", BigInteger, nullable=True),
    Index("ix_deployments_model_id_id", "model_id", "id"),
)

deployment_logs = Table(
    "deployment_logs",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("deployment_id", Id, nullable=False),  # no foreign key: a line may arrive after the deployment was deleted
    Column("timestamp_ns", BigInteger, nullable=False),
    Column("level", Id, nullable=False),
    Column("message", Text, nullable=False),
    Column("replica", Text, nullable=True),
    Column("request_id", Id, nullable=True),
    Index("ix_deployment_logs_deployment_id_timestamp_ns", "deployment_id", "timestamp_ns"),
)

environments = Table(
    "environments",
    metadata,
    Column("model_id", Id, ForeignKey("models.id"), primary_key=True),
    Column("name", Id, primary_key=True),
    Column("deployment_id", Id, ForeignKey("deployments.id"), nullable=True, index=True),  # null: an empty environment
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
)

endpoints = Table(
    "endpoints",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("slug", Id, nullable=False, unique=True),
    Column("target", Text, nullable=False),
    # Also in `target`. Here the database refuses to delete what an endpoint uses.
    Column("secret_id", Id, ForeignKey("secrets.id"), nullable=True, index=True),
    Column("model_id", Id, ForeignKey("models.id"), nullable=True, index=True),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("managed_by", Text, nullable=True),  # the policy file that owns it
    Column("managed_at_ms", BigInteger, nullable=True),  # its `updated_at_ms` when that file last wrote it
    Column("region", Text, nullable=True),  # null: UNRESTRICTED, as of endpoints from before there were regions
    Index("ix_endpoints_workspace_id_id", "workspace_id", "id"),
)

DETAIL_FIGURES = (
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
    "audio_input_tokens",
    "audio_output_tokens",
    "image_input_tokens",
    "image_output_tokens",
    "server_tool_calls",
)
"""The columns of `policy.billing.Details`, in its order. Null takes no room on PostgreSQL, a 0 eight bytes."""

events = Table(
    "events",
    metadata,
    Column("idempotency_key", Id, primary_key=True),
    Column("workspace_id", Id, nullable=False),
    Column("group_id", Id, nullable=False),
    Column("external_entity_id", Id, nullable=False),
    Column("api_key_prefix", Id, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("model_slug", Id, nullable=False),
    Column("timestamp_ms", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cached_input_tokens", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_metadata", Text, nullable=True),
    Column("ingested_at_ms", BigInteger, nullable=False),
    Column("source", Text, nullable=True),  # null: an event of an older proxy, which has no details either
    Column("group_path", Id, nullable=True),  # ids from the root to the calling group, each with `/`; null: not known
    Column("service_tier", Text, nullable=True),  # null: none reported
    *(Column(name, BigInteger, nullable=True) for name in DETAIL_FIGURES),  # null: 0, as in most events
    Column("charged", SmallInteger, nullable=False, server_default="1"),  # 1: the call costs `per_call`; else 0
    Column("balance_group", Id, nullable=True),  # the group from whose balance the call draws; null: from none
    Column("draw", Text, nullable=True),  # units (10^-22) that it draws, as digits: priced at the commit, never again
    Index("ix_events_workspace_time", "workspace_id", "timestamp_ms", "idempotency_key"),
    Index("ix_events_entity_time", "workspace_id", "external_entity_id", "timestamp_ms", "idempotency_key"),
    Index(
        "ix_events_key_entity_time",
        *("workspace_id", "api_key_prefix", "external_entity_id", "timestamp_ms", "idempotency_key"),
    ),
)

event_partitions = Table(  # of `events` on PostgreSQL: docs/decisions/0045-event-partitions.md; no rows on SQLite
    "event_partitions",
    metadata,
    Column("name", Id, primary_key=True),
    Column("first_key", Id, nullable=False),
    Column("beyond_key", Id, nullable=True),  # null: the partition of all keys that have no other
    Column("earliest_ms", BigInteger, nullable=False),  # no event in it has an earlier timestamp
    Column("until_ms", BigInteger, nullable=False),  # all its timestamps are earlier; a trigger keeps both true
)

event_clock = Table(
    "event_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("latest_ms", BigInteger, nullable=False),  # the database's clock when a window was last served, or later
)

older_proxies = Table(  # which ask for policy and know fewer kinds of limits than this version
    "older_proxies",
    metadata,
    Column("limit_kinds", Integer, primary_key=True, autoincrement=False),  # how many they know
    Column("asked_at_ms", BigInteger, nullable=False),  # when one of them last did
)

sealing_keys = Table(  # which control has, as its last process noted that started or read them again
    "sealing_keys",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("key_ids", Text, nullable=False),  # separated by commas; the first one seals
)

event_metadata_progress = Table(  # how far request metadata that no message carries is deleted
    "event_metadata_progress",
    metadata,
    Column("workspace_id", Id, primary_key=True),
    Column("until_ms", BigInteger, nullable=False),  # of the events before then it is
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, ForeignKey("workspaces.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("description", Text, nullable=True),
    Column("enabled", Boolean, nullable=False),
    Column("secret", Text, nullable=False),  # sealed
    Column("previous_secret", Text, nullable=True),  # sealed; also signs until `previous_until_ms`
    Column("previous_until_ms", BigInteger, nullable=True),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("managed_by", Text, nullable=True),  # the policy file that owns it
    Column("managed_at_ms", BigInteger, nullable=True),  # its `updated_at_ms` when that file last wrote it
    Column("include_details", Boolean, nullable=False, server_default=false()),
    Column("event_types", Text, nullable=False, server_default='["API_BILLING_USAGE"]'),
    Column("group_id", Id, nullable=True),  # it is told of this group and those below it; null: of all
    Index("ix_webhooks_workspace_id_id", "workspace_id", "id"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "webhook_id", Id, nullable=False
    ),  # no foreign key: an ingest must not fail because a webhook was just deleted
    Column("type", Id, nullable=False),
    Column("event_keys", Text, nullable=False),
    Column("status", Id, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("attempt_log", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column(
        "retry_since_ms", BigInteger, nullable=False
    ),  # start of the three days of retries: created, or last redelivered
    Column("next_attempt_at_ms", BigInteger, nullable=False),
    Column("lease", Id, nullable=True),
    Column("leased_until_ms", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger, nullable=True),
    Column("costs", Text, nullable=True),  # of its events, in their order; null: the message has no details
    Column("body", Text, nullable=True),  # null: it is made of its events
    Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
    Index("ix_webhook_deliveries_ended", "status", "ended_at_ms"),
)
for _name, _column in (
    ("due", webhook_deliveries.c.next_attempt_at_ms),
    ("leased", webhook_deliveries.c.leased_until_ms),
):
    _pending = webhook_deliveries.c.status == "PENDING"
    Index(
        f"ix_webhook_deliveries_{_name}",
        webhook_deliveries.c.webhook_id,
        _column,
        sqlite_where=_pending,
        postgresql_where=_pending,
    )

audit_events = Table(
    "audit_events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workspace_id", Id, nullable=False),  # no foreign key: the trail outlives what it tells of
    Column("timestamp_ms", BigInteger, nullable=False),
    Column("actor", Id, nullable=False),  # the prefix of a workspace key, or "cli"
    Column("action", Id, nullable=False),
    Column("resource", Id, nullable=False),
    Column("before", Text, nullable=True),
    Column("after", Text, nullable=True),
    Column("request_id", Id, nullable=True),
    Index("ix_audit_events_workspace_id_time", "workspace_id", "timestamp_ms", "id"),
    Index("ix_audit_events_actor_time", "workspace_id", "actor", "timestamp_ms", "id"),
)

console_sessions = Table(
    "console_sessions",
    metadata,
    Column("digest", Id, primary_key=True),  # of the token in the browser's cookie
    # No foreign key: an older version of control deletes keys, and knows nothing of sessions.
    Column("key_digest", Id, nullable=False),  # of a person's session: a digest of issuer and subject
    Column("sealed_key", Text, nullable=False),  # under a key that is derived from the token; empty without a key
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("person", Text, nullable=True),  # JSON; NULL: a key logged in
    Column("workspace_id", Id, nullable=True),  # of a person; NULL: not chosen yet
    Column("role", Id, nullable=True),
    Index("ix_console_sessions_key_digest", "key_digest", "created_at_ms", "digest"),
    Index("ix_console_sessions_expires_at_ms", "expires_at_ms"),
)

prices = Table(  # decimal numbers as text: SQLite has no exact ones
    "prices",
    metadata,
    Column("workspace_id", Id, ForeignKey("workspaces.id"), primary_key=True),
    Column("slug", Id, primary_key=True),
    Column("valid_from_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("currency", Id, nullable=False),
    Column("input_per_million", Id, nullable=False),  # uncached input
    Column("cached_input_per_million", Id, nullable=False),
    Column("output_per_million", Id, nullable=False),
    Column("per_call", Id, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("other_members", Text, nullable=True),  # JSON of those that have no column; null: each has its default
    Column("managed_by", Text, nullable=True),  # the policy file that owns it
    Column("managed_at_ms", BigInteger, nullable=True),
)
