"""Queries that find rows of a workspace by a part of a name, whatever its case, and the list of all its keys.

Names of groups and slugs are looked through; a workspace has tens of thousands. Of keys there may be a million: an
index holds their names, newest first, and a look-up by prefix reads the few rows that begin with it.
"""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, case, func, select, tuple_

from control.edges.sql.store import Connection
from control.edges.sql.tables import api_keys, endpoints, groups
from control.records.console import KeyFilter, ListedKey, NamedEndpoint, NamedGroup
from control.records.policy import KeyRecord

_PREFIX = re.compile(r"(?:tg|own)_[0-9A-Za-z_-]{4,}")
"""The beginning of a key's prefix that few keys share, of whatever workspace."""
_MOST_WITH_PREFIX = 2_000
_RECORD = [api_keys.c[name] for name in KeyRecord.__dataclass_fields__]
_ORDER = (api_keys.c.created_at_ms, api_keys.c.prefix)
_KEYS = select(*_RECORD, groups.c.external_entity_id, groups.c.name.label("group_name")).join(
    groups, groups.c.id == api_keys.c.group_id, isouter=True
)
KeyPosition = tuple[int, str]
"""The time at which a key was made, in epoch milliseconds, and its prefix."""


async def groups_like(conn: Connection, workspace_id: str, part: str, limit: int) -> Sequence[NamedGroup]:
    """Return at most `limit` groups whose id, external id or name holds `part`: those first whose external id is it."""
    entity = groups.c.external_entity_id
    place = _place_of(conn, part)
    names = entity + "\n" + groups.c.id + "\n" + func.coalesce(groups.c.name, "")
    is_equal = func.lower(entity) == func.lower(part)
    query = (
        select(groups.c.id, entity, groups.c.name)
        .where(groups.c.workspace_id == workspace_id, place(names) > 0)
        .order_by(case((is_equal, 0), (place(entity) == 1, 1), else_=2), entity)
        .limit(limit)
    )
    return [NamedGroup(*row) for row in await conn.execute(query)]


async def endpoints_like(conn: Connection, workspace_id: str, part: str, limit: int) -> Sequence[NamedEndpoint]:
    """Return at most `limit` endpoints whose slug holds `part`: those that are it first."""
    slug = endpoints.c.slug
    query = (
        select(endpoints.c.id, slug)
        .where(endpoints.c.workspace_id == workspace_id, _place_of(conn, part)(slug) > 0)
        .order_by(case((func.lower(slug) == func.lower(part), 0), else_=1), slug)
        .limit(limit)
    )
    return [NamedEndpoint(*row) for row in await conn.execute(query)]


async def list_all_keys(
    conn: Connection, workspace_id: str, selection: KeyFilter, after: KeyPosition | None, limit: int
) -> Sequence[ListedKey]:
    """Return at most `limit` keys of the workspace and of its groups behind `after`, newest first."""
    if selection.part is not None and _PREFIX.fullmatch(selection.part):
        return await _beginning(conn, workspace_id, selection, after, limit)
    query = _KEYS.order_by(*(column.desc() for column in _ORDER)).limit(limit)
    if selection.external_entity_id is None:
        query = query.where(api_keys.c.workspace_id == workspace_id)
    else:
        group_id = await _group_named(conn, workspace_id, selection.external_entity_id)
        if group_id is None:
            return []
        query = query.where(api_keys.c.group_id == group_id)  # alone, so that the index of the group's keys is used
    if selection.kind is not None:
        query = query.where(api_keys.c.kind == selection.kind)
    if selection.kind is not None and not selection.is_of_groups:
        query = query.where(api_keys.c.group_id.is_(None))  # the condition of their own index: they are few
    if selection.part is not None:
        query = query.where(_place_of(conn, selection.part)(api_keys.c.name) > 0)
    if selection.newest is not None:
        query = query.where(tuple_(*_ORDER) >= await _oldest_of(conn, workspace_id, selection.newest))
    if after is not None:
        query = query.where(tuple_(*_ORDER) < after)
    return [_listed(row) for row in await conn.execute(query)]


async def _beginning(
    conn: Connection, workspace_id: str, selection: KeyFilter, after: KeyPosition | None, limit: int
) -> Sequence[ListedKey]:
    """The same of keys whose prefix begins with a part. Rows of all workspaces are read: no index has one alone."""
    inside = and_(api_keys.c.prefix >= selection.part, api_keys.c.prefix < f"{selection.part}~")
    rows = await conn.execute(_KEYS.where(inside).order_by(api_keys.c.prefix).limit(_MOST_WITH_PREFIX))
    keys = [_listed(row) for row in rows if row.workspace_id == workspace_id and selection.admits(row)]
    keys.sort(key=_position, reverse=True)
    return [key for key in keys if after is None or _position(key) < after][:limit]


async def _group_named(conn: Connection, workspace_id: str, external_entity_id: str) -> str | None:
    conditions = (groups.c.workspace_id == workspace_id, groups.c.external_entity_id == external_entity_id)
    return (await conn.execute(select(groups.c.id).where(*conditions))).scalar_one_or_none()


async def _oldest_of(conn: Connection, workspace_id: str, newest: int) -> KeyPosition:
    """The position of the oldest one of the newest keys."""
    query = select(*_ORDER).where(api_keys.c.workspace_id == workspace_id).order_by(*(one.desc() for one in _ORDER))
    row = (await conn.execute(query.offset(newest - 1).limit(1))).one_or_none()
    return (0, "") if row is None else (row.created_at_ms, row.prefix)


def _place_of(conn: Connection, part: str) -> Any:
    """The function that says where a text holds `part`, whatever the case: 0 if nowhere. LIKE takes longer."""
    place = func.instr if conn.dialect.name == "sqlite" else func.strpos
    return lambda text: place(func.lower(text), func.lower(part))


def _position(key: ListedKey) -> KeyPosition:
    return (key.record.created_at_ms, key.record.prefix)


def _listed(row: Any) -> ListedKey:
    *key, external_entity_id, group_name = row
    record = KeyRecord(*key)
    group = None if record.group_id is None else NamedGroup(record.group_id, external_entity_id, group_name)
    return ListedKey(record, group)
