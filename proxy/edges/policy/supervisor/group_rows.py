"""Groups in the policy replica: a small row for each group, and a row for each entry of its models.

A call needs what the groups of its path have for one slug, and each of them may have thousands of entries.
"""

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from policy.snapshot import (
    RowKind,
    Wire,
    group_balance_from_wire,
    group_node_from_wire,
    group_spend_from_wire,
    limits_from_wire,
)
from proxy.edges.policy.replica_rows import Name
from proxy.edges.policy.supervisor import row_tables
from proxy.edges.policy.supervisor.row_tables import EncodedRow

GROUP = RowKind.GROUP.value
SCHEMA = """
CREATE TABLE group_models (group_id TEXT NOT NULL, slug TEXT NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (group_id, slug)) WITHOUT ROWID;
"""
NOWHERE = "?"
"""No group has this id. It is the parent of each group that this version cannot read: calls of that group and of those
below it find no way to the root, and are answered 503."""
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
    """The parts of a group that control published. One that this version cannot read is below `NOWHERE`."""
    entries: dict[str, tuple[int, bytes]] = {}
    if body is None:
        return GroupParts(row_tables.encode(GROUP, id, None), entries)
    node = {name: value for name, value in body.items() if name != "models"}
    try:
        group_node_from_wire(id, node)
        group_spend_from_wire(node)
        group_balance_from_wire(node)
        for place, entry in enumerate(body["models"]):
            limits_from_wire(entry)
            limits = {name: value for name, value in entry.items() if name != "slug"}
            entries.setdefault(str(entry["slug"]), (place, orjson.dumps(limits)))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        log.warning(
            "Group %s has limits that this version cannot read (%s); its calls are answered 503. Update this proxy.",
            id,
            type(error).__name__,
        )
        names = {name: body.get(name) for name in ("workspace_id", "external_entity_id")}
        return GroupParts(EncodedRow(GROUP, id, NOWHERE, orjson.dumps(names)), {})
    return GroupParts(row_tables.encode(GROUP, id, node), entries)


def replace_entries(conn: sqlite3.Connection, groups: Sequence[GroupParts]) -> None:
    """Write the entries of these groups in place of all that the replica has of them."""
    conn.executemany(_DELETE_ALL, [(group.id,) for group in groups])
    conn.executemany(_UPSERT, _values(groups))


def write_changed_entries(conn: sqlite3.Connection, group: GroupParts) -> list[Name]:
    """Write the entries that differ from the replica's, and delete those that ended. Return the names of both."""
    present = {slug: (place, body) for slug, place, body in conn.execute(_ENTRIES, (group.id,))}
    deletions = [(group.id, slug) for slug in present if slug not in group.entries]
    changed = {slug: entry for slug, entry in group.entries.items() if present.get(slug) != entry}
    conn.executemany(_DELETE, deletions)
    conn.executemany(_UPSERT, _values([GroupParts(group.node, changed)]))
    return deletions + [(group.id, slug) for slug in changed]


def count_unreadable(conn: sqlite3.Connection) -> int:
    """Count the groups that the version that wrote them could not read."""
    (count,) = conn.execute("SELECT count(*) FROM groups WHERE parent_id = ?", (NOWHERE,)).fetchone()
    return int(count)


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
