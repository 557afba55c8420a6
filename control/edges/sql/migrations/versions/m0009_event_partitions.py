"""One partition of events per day of their key on PostgreSQL; the table so far becomes the first partition.

Safe while the version before runs: no statement that reads the table holds a lock that keeps others out. SQLite keeps
one table. See docs/decisions/0045-event-partitions.md.
"""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

from control.edges.sql.migrations.long_statements import run_long

revision = "0009"
down_revision = "0008"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_DAYS_AHEAD = 7
"""The first partition ends this long after the step: it may be interrupted, and continued days later."""
_NEVER_MS = 2**62
_LATE_MS = 6 * 3_600_000
_ORDER = "timestamp_ms, idempotency_key"
_INDEXES = {
    "ix_events_workspace_time": f"workspace_id, {_ORDER}",
    "ix_events_entity_time": f"workspace_id, external_entity_id, {_ORDER}",
    "ix_events_key_entity_time": f"workspace_id, api_key_prefix, external_entity_id, {_ORDER}",
}
_CHECK = "ck_events_before_first_day"
_NOTE = """
CREATE FUNCTION note_stray_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE event_partitions SET
        earliest_ms = LEAST(earliest_ms, CASE WHEN NEW.timestamp_ms < earliest_ms THEN NEW.timestamp_ms - 3600000 END),
        until_ms = GREATEST(until_ms, CASE WHEN NEW.timestamp_ms >= until_ms THEN NEW.timestamp_ms + 3600000 END)
    WHERE name = TG_ARGV[0] AND (NEW.timestamp_ms < earliest_ms OR NEW.timestamp_ms >= until_ms);
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        _create_event_partitions()
        return
    if not sa.inspect(op.get_bind()).has_table("event_partitions"):  # else it was interrupted: it goes on from there
        _create_event_partitions()
        _prepare_first_partition()
    if _is_bounded():
        with op.get_context().autocommit_block():
            run_long(op.get_bind(), f"ALTER TABLE events VALIDATE CONSTRAINT {_CHECK}")
            run_long(
                op.get_bind(),
                "UPDATE event_partitions SET until_ms = GREATEST(until_ms, (SELECT max(timestamp_ms) + 1 FROM events))",
            )
    _replace_table()


def _create_event_partitions() -> None:
    op.create_table(
        "event_partitions",
        sa.Column("name", Id, primary_key=True),
        sa.Column("first_key", Id, nullable=False),
        sa.Column("beyond_key", Id, nullable=True),
        sa.Column("earliest_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
    )


def _prepare_first_partition() -> None:
    """Bound the keys that the table may get. The constraint spares a scan under a lock when it becomes a partition."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=_DAYS_AHEAD)
    bound_ms = int(day.timestamp() * 1000)
    bound = _ulid_time(bound_ms)
    op.execute(_NOTE)
    ahead = sa.text("SELECT 1 FROM events WHERE idempotency_key >= :bound LIMIT 1")
    # Keys beyond it: a clock that was a week ahead, or no ULIDs. They move when the table is replaced.
    has_ahead = op.get_bind().execute(ahead, {"bound": bound}).scalar() is not None
    until_ms = _NEVER_MS if has_ahead else bound_ms + _LATE_MS
    _insert_partition("events_before", bound, 0, until_ms)
    op.execute(
        _note_outside("events", "events_before", f"WHEN (NEW.timestamp_ms < 0 OR NEW.timestamp_ms >= {until_ms})")
    )
    if not has_ahead:
        op.execute(f"ALTER TABLE events ADD CONSTRAINT {_CHECK} CHECK (idempotency_key < '{bound}') NOT VALID")


def _is_bounded() -> bool:
    query = sa.text("SELECT 1 FROM pg_constraint WHERE conname = :name AND conrelid = CAST('events' AS regclass)")
    return op.get_bind().execute(query, {"name": _CHECK}).scalar() is not None


def _replace_table() -> None:
    """Make the table a partition of a new one, which takes over its name, in one short transaction."""
    bind = op.get_bind()
    op.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
    bound = bind.execute(sa.text("SELECT beyond_key FROM event_partitions WHERE name = 'events_before'")).scalar_one()
    op.execute("ALTER TABLE events RENAME TO events_before")
    op.execute("ALTER TABLE events_before RENAME CONSTRAINT events_pkey TO events_before_pkey")
    for name in _INDEXES:
        op.execute(f"ALTER INDEX {name} RENAME TO {name.replace('events', 'events_before')}")
    op.execute("CREATE TABLE events (LIKE events_before) PARTITION BY RANGE (idempotency_key)")
    _index("events")
    op.execute("CREATE TABLE events_rest (LIKE events_before)")
    _insert_partition("events_rest", None, _NEVER_MS, 0)
    op.execute(_note_outside("events_rest", "events_rest", ""))
    op.execute(
        f"WITH moved AS (DELETE FROM events_before WHERE idempotency_key >= '{bound}' RETURNING *)"  # noqa: S608 (ours)
        " INSERT INTO events_rest SELECT * FROM moved"
    )
    if bind.execute(sa.text("SELECT 1 FROM events_before LIMIT 1")).scalar() is None:
        op.execute("DROP TABLE events_before")
        op.execute("DELETE FROM event_partitions WHERE name = 'events_before'")
    else:
        op.execute(f"ALTER TABLE events ATTACH PARTITION events_before FOR VALUES FROM (MINVALUE) TO ('{bound}')")
        op.execute(f"ALTER TABLE events_before DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.execute("ALTER TABLE events ATTACH PARTITION events_rest DEFAULT")


def _index(table: str) -> None:
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT events_pkey PRIMARY KEY (idempotency_key)")
    for name, columns in _INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {table} ({columns})")


def _insert_partition(name: str, beyond_key: str | None, earliest_ms: int, until_ms: int) -> None:
    statement = sa.text("INSERT INTO event_partitions VALUES (:name, '', :beyond_key, :earliest_ms, :until_ms)")
    bounds = {"beyond_key": beyond_key, "earliest_ms": earliest_ms, "until_ms": until_ms}
    op.get_bind().execute(statement, {"name": name, **bounds})


def _note_outside(table: str, partition: str, when: str) -> str:
    return (
        f"CREATE TRIGGER note_stray_event AFTER INSERT ON {table} FOR EACH ROW {when}"
        f" EXECUTE FUNCTION note_stray_event('{partition}')"
    )


def _ulid_time(ms: int) -> str:
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return "".join(alphabet[ms >> shift & 31] for shift in range(45, -1, -5))


def downgrade() -> None:
    """Copies all events into one table. Takes long, and nobody else reads or writes events meanwhile."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        op.execute("CREATE TABLE events_whole (LIKE events)")
        op.execute("INSERT INTO events_whole SELECT * FROM events")
        op.execute("DROP TABLE events")
        op.execute("ALTER TABLE events_whole RENAME TO events")
        _index("events")
        op.execute("DROP FUNCTION note_stray_event")
    op.drop_table("event_partitions")
