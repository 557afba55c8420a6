"""Queries that find rows of a workspace by a part of a name, whatever its case, and the list of all its keys.

Names of groups and slugs are looked through; a workspace has tens of thousands. Of keys there may be a million: their
index holds the names, newest first, and a look-up by prefix reads the few rows that begin with it.
"""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select, tuple_

from control.edges.sql.store import Connection
from control.edges.sql.tables import api_keys, endpoints, groups
from control.records.console import KeyFilter, ListedKey, NamedEndpoint, NamedGroup
from control.records.policy import KeyRecord

_PREFIX = re.compile(r"(?:tg|own)_[0-9A-Za-z_-]{4,}")
"""The beginning of a key's prefix that few keys share, of whatever workspace."""
_MOST_WITH_PREFIX = 2_000
_RECORD = [api_keys.c[name] for name in KeyRecord.__dataclass_fields__]
KeyPosition = tuple[int, str]
"""When a key was made, in epoch milliseconds, and its prefix."""


async def groups_like(conn: Connection, workspace_id: str, part: str, limit: int) -> Sequence[NamedGroup]:
    """At most `limit` groups whose id, external id or name holds `part`: those that are it, then begin with it."""
    columns = (groups.c.external_entity_id, groups.c.id, groups.c.name)
    matches = or_(*(column.icontains(part, autoescape=True) for column in columns))
    is_equal = or_(*(func.lower(column) == func.lower(part) for column in columns))
    begins = or_(*(column.istartswith(part, autoescape=True) for column in columns))
    query = (
        select(groups.c.id, groups.c.external_entity_id, groups.c.name)
        .where(groups.c.workspace_id == workspace_id, matches)
        .order_by(case((is_equal, 0), (begins, 1), else_=2), groups.c.external_entity_id)
        .limit(limit)
    )
    return [NamedGroup(*row) for row in await conn.execute(query)]


async def endpoints_like(conn: Connection, workspace_id: str, part: str, limit: int) -> Sequence[NamedEndpoint]:
    """At most `limit` endpoints whose slug holds `part`: those that are it first."""
    slug = endpoints.c.slug
    query = (
        select(endpoints.c.id, slug)
        .where(endpoints.c.workspace_id == workspace_id, slug.icontains(part, autoescape=True))
        .order_by(case((func.lower(slug) == func.lower(part), 0), else_=1), slug)
        .limit(limit)
    )
    return [NamedEndpoint(*row) for row in await conn.execute(query)]


async def list_all_keys(
    conn: Connection, workspace_id: str, selection: KeyFilter, after: KeyPosition | None, limit: int
) -> Sequence[ListedKey]:
    """At most `limit` keys of the workspace and of its groups behind `after`, newest first."""
    order = (api_keys.c.created_at_ms, api_keys.c.prefix)
    query = (
        select(*_RECORD, groups.c.external_entity_id, groups.c.name.label("group_name"))
        .join(groups, groups.c.id == api_keys.c.group_id, isouter=True)
        .where(api_keys.c.workspace_id == workspace_id, *_conditions(workspace_id, selection))
        .order_by(*(column.desc() for column in order))
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(*order) < after)
    return [_listed(row) for row in await conn.execute(query)]


def _conditions(workspace_id: str, selection: KeyFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if selection.kind is not None:
        conditions.append(api_keys.c.kind == selection.kind)
        if not selection.is_of_groups:  # a condition of the index of workspace keys, which are few
            conditions.append(api_keys.c.group_id.is_(None))
    if selection.external_entity_id is not None:
        named = groups.alias()
        entity = named.c.external_entity_id == selection.external_entity_id
        group_id = select(named.c.id).where(named.c.workspace_id == workspace_id, entity)
        conditions.append(api_keys.c.group_id == group_id.scalar_subquery())
    if selection.part is not None:
        part = selection.part
        is_prefix = _PREFIX.fullmatch(part) is not None
        conditions.append(
            api_keys.c.prefix.in_(_beginning(part)) if is_prefix else api_keys.c.name.icontains(part, autoescape=True)
        )
    return conditions


def _beginning(part: str) -> Select[Any]:
    """The prefixes that begin with `part`, of any workspace: the database goes to them by their own index."""
    keys = api_keys.alias()
    inside = and_(keys.c.prefix >= part, keys.c.prefix < f"{part}~")
    beginning = select(keys.c.prefix).where(inside).order_by(keys.c.prefix).limit(_MOST_WITH_PREFIX)
    return select(beginning.subquery().c.prefix)


def _listed(row: Any) -> ListedKey:
    *key, external_entity_id, group_name = row
    record = KeyRecord(*key)
    group = None if record.group_id is None else NamedGroup(record.group_id, external_entity_id, group_name)
    return ListedKey(record, group)
