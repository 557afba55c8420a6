"""Queries on the groups that made listed calls: by the keys that they have, or by their external ids."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import select

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection
from control.edges.sql.tables import api_keys, groups


@dataclass(frozen=True, slots=True)
class CallingGroup:
    """A group that there is. `path`: ids from the root to itself, each with `/`."""

    path: str
    created_at_ms: int


async def groups_of_keys(conn: Connection, workspace_id: str, prefixes: Collection[str]) -> Mapping[str, CallingGroup]:
    """The groups whose keys have these prefixes now, by prefix."""
    query = (
        select(api_keys.c.prefix, groups.c.path, groups.c.created_at_ms)
        .join(groups, groups.c.id == api_keys.c.group_id)
        .where(api_keys.c.workspace_id == workspace_id, one_of(api_keys.c.prefix, prefixes))
    )
    return {row.prefix: CallingGroup(row.path, row.created_at_ms) for row in await conn.execute(query)}


async def groups_of_entities(
    conn: Connection, workspace_id: str, entities: Collection[str]
) -> Mapping[str, CallingGroup]:
    """The groups that have these external ids now, by external id."""
    query = select(groups.c.external_entity_id, groups.c.path, groups.c.created_at_ms).where(
        groups.c.workspace_id == workspace_id, one_of(groups.c.external_entity_id, entities)
    )
    return {row.external_entity_id: CallingGroup(row.path, row.created_at_ms) for row in await conn.execute(query)}
