"""Queries on the groups whose usage the console shows, without their limits, which may be many."""

from typing import Any

from sqlalchemy import ColumnElement, Select, exists, select

from control.edges.sql.store import Connection
from control.edges.sql.tables import api_keys, groups, workspaces
from control.records.console import NamedGroup
from policy.credentials import KeyKind


async def find_named_group(conn: Connection, workspace_id: str, group_id: str) -> NamedGroup | None:
    return await _found(conn, _named(workspace_id, group_id))


async def find_group_of_key(conn: Connection, workspace_id: str, group_id: str, prefix: str) -> NamedGroup | None:
    """The group, if the workspace still has a key of that prefix that may manage it."""
    of_key = (api_keys.c.prefix == prefix, api_keys.c.workspace_id == workspace_id)
    may_manage = (api_keys.c.kind == KeyKind.WORKSPACE_MANAGE_ALL.value, api_keys.c.group_id.is_(None))
    has_key = exists().where(*of_key, *may_manage)
    return await _found(conn, _named(workspace_id, group_id).where(has_key, _onboarded(workspace_id)))


async def find_group_of_onboarded(conn: Connection, workspace_id: str, group_id: str) -> NamedGroup | None:
    """The group, if the workspace is onboarded."""
    return await _found(conn, _named(workspace_id, group_id).where(_onboarded(workspace_id)))


def _onboarded(workspace_id: str) -> ColumnElement[bool]:
    return exists().where(workspaces.c.id == workspace_id, workspaces.c.onboarded)


def _named(workspace_id: str, group_id: str) -> Select[Any]:
    query = select(groups.c.id, groups.c.external_entity_id, groups.c.name)
    return query.where(groups.c.workspace_id == workspace_id, groups.c.id == group_id)


async def _found(conn: Connection, query: Select[Any]) -> NamedGroup | None:
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else NamedGroup(*row)
