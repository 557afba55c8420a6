"""Groups in the policy replica: a small row for each group, and a row for each entry of its models.

A call needs what the groups of its path have for one slug, and each of them may have thousands of entries.
"""

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from policy.snapshot import RowKind, Wire
from proxy.edges.policy.replica_rows import Name
from proxy.edges.policy.supervisor import row_tables
from proxy.edges.policy.supervisor.row_tables import EncodedRow

GROUP = RowKind.GROUP.value
SCHEMA = """
CREATE TABLE group_models (group_id TEXT NOT NULL, slug TEXT NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (group_id, slug)) WITHOUT ROWID;
"""
_ENTRIES = "SELECT slug, place, body FROM group_models WHERE group_id = ?"
_DELETE_ALL = "DELETE FROM group_models WHERE group_id = ?"
_DELETE = "DELETE FROM group_models WHERE group_id = ? AND slug = ?"
_UPSERT = (
    "INSERT INTO group_models VALUES (?, ?, ?, ?)"
    " ON CONFLICT (group_id, slug) DO UPDATE SET place = excluded.place, body = excluded.body"
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupParts:
    """A group as the replica holds it. `node`: its own row. `entries`: place and body of each entry, by slug."""

    node: EncodedRow
    entries: dict[str, tuple[int, bytes]]

    @property
    def id(self) -> str:
        return self.node.id


def parts_of(id: str, body: Wire | None) -> GroupParts:
    """The parts of a group that control published. One that this version cannot read counts as deleted."""
    entries: dict[str, tuple[int, bytes]] = {}
    if body is None:
        return GroupParts(row_tables.encode(GROUP, id, None), entries)
    try:
        for place, entry in enumerate(body["models"]):
            limits = {name: value for name, value in entry.items() if name != "slug"}
            entries.setdefault(str(entry["slug"]), (place, orjson.dumps(limits)))
    except (KeyError, TypeError) as error:
        log.warning("Skipped a group that this version cannot read (%s). Update this proxy.", type(error).__name__)
        return GroupParts(row_tables.encode(GROUP, id, None), {})
    node = {name: value for name, value in body.items() if name != "models"}
    return GroupParts(row_tables.encode(GROUP, id, node), entries)


def replace_entries(conn: sqlite3.Connection, groups: Sequence[GroupParts]) -> None:
    """Write the entries of these groups in place of all that the replica has of them."""
    conn.executemany(_DELETE_ALL, [(group.id,) for group in groups])
    conn.executemany(_UPSERT, _values(groups))


def write_changed_entries(conn: sqlite3.Connection, group: GroupParts) -> list[Name]:
    """Write the entries that differ from those that the replica has. Returns the names of these."""
    known = {slug: (place, body) for slug, place, body in conn.execute(_ENTRIES, (group.id,))}
    gone = [(group.id, slug) for slug in known if slug not in group.entries]
    changed = {slug: entry for slug, entry in group.entries.items() if known.get(slug) != entry}
    conn.executemany(_DELETE, gone)
    conn.executemany(_UPSERT, _values([GroupParts(group.node, changed)]))
    return gone + [(group.id, slug) for slug in changed]


def split_groups(conn: sqlite3.Connection) -> None:
    """Split the groups of a file that holds each of them whole, one at a time: there may be 100 000."""
    for (id,) in conn.execute("SELECT id FROM rows WHERE kind = ?", (GROUP,)).fetchall():
        (body,) = conn.execute("SELECT body FROM rows WHERE kind = ? AND id = ?", (GROUP, id)).fetchone()
        group = parts_of(id, orjson.loads(body))
        conn.execute("DELETE FROM rows WHERE kind = ? AND id = ?", (GROUP, id))
        row_tables.write(conn, [group.node])
        replace_entries(conn, [group])


def _values(groups: Iterable[GroupParts]) -> list[tuple[Any, ...]]:
    return [(group.id, slug, *entry) for group in groups for slug, entry in group.entries.items()]
