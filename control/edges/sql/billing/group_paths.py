"""Groups by their paths, deleted ones too: whose calls the sums of a group and of those below it have."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import orjson
from sqlalchemy import text

from control.edges.sql.store import Connection

_KNOWN = (
    "SELECT path, external_entity_id FROM groups WHERE workspace_id = :workspace AND {where}"
    " UNION ALL SELECT path, external_entity_id FROM deleted_groups WHERE workspace_id = :workspace AND {where}"
)
_LISTED = {
    "sqlite": "path IN (SELECT value FROM json_each(:paths))",
    "postgresql": "path = ANY (ARRAY(SELECT json_array_elements_text(CAST(:paths AS json))))",
}


class KnownGroup(NamedTuple):
    """A group that there is or was."""

    path: str
    external_entity_id: str


class PathPage(NamedTuple):
    """A page of paths: at most `limit`. `has_deleted`: those of deleted groups are among them."""

    limit: int
    has_deleted: bool


async def groups_named(conn: Connection, workspace_id: str, external_entity_id: str) -> Sequence[KnownGroup]:
    """The groups that have or had this external id."""
    query = text(_KNOWN.format(where="external_entity_id = :entity"))
    rows = await conn.execute(query, {"workspace": workspace_id, "entity": external_entity_id})
    return [KnownGroup(*row) for row in rows]


async def groups_from(conn: Connection, workspace_id: str, path: str) -> Sequence[KnownGroup]:
    """The group with this path and all below it."""
    # Without the workspace, to which the path's ids belong anyway: SQLite would read all groups of the workspace.
    groups, between, deleted = _KNOWN.partition(" UNION ALL ")
    statement = groups.replace("workspace_id = :workspace AND ", "") + between + deleted
    query = text(statement.format(where="path >= :path AND path < :beyond"))
    rows = await conn.execute(query, {"workspace": workspace_id, "path": path, "beyond": f"{path[:-1]}0"})
    return [KnownGroup(*row) for row in rows]


async def paths_from(conn: Connection, workspace_id: str, path: str, after: str, page: PathPage) -> Sequence[str]:
    """The paths of a group and of those below it, in order, behind `after`."""
    query = _KNOWN if page.has_deleted else _KNOWN.partition(" UNION ALL ")[0]
    where = "path >= :path AND path < :beyond AND path > :after"
    values = {"workspace": workspace_id, "path": path, "beyond": f"{path[:-1]}0", "after": after, "limit": page.limit}
    rows = await conn.execute(text(f"{query.format(where=where)} ORDER BY path LIMIT :limit"), values)
    return list(rows.scalars())


async def entities_of(conn: Connection, workspace_id: str, paths: Collection[str]) -> Mapping[str, str]:
    """The external ids of the groups with these paths, as far as they are known."""
    query = text(_KNOWN.format(where=_LISTED[conn.dialect.name]))
    rows = await conn.execute(query, {"workspace": workspace_id, "paths": orjson.dumps([*paths]).decode()})
    return dict(map(tuple, rows))
