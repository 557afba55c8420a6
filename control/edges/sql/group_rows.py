"""Queries on `groups`. Locking the root's row locks the tree, so checks across it cannot race with changes."""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from sqlalchemy import ColumnElement, and_, delete, func, insert, literal, select, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import HAS_BALANCE, HAS_SPEND_LIMITS, api_keys, deleted_groups, groups
from control.long_work import CHARS_PER_ITEM, beside
from control.records.policy import GroupFilter, GroupRecord
from policy.exact_json import array_items
from policy.limits.groups import Enforcement, Group
from policy.limits.limit import SlugLimits
from policy.snapshot import RowKind, group_to_wire, models_entry_from_wire, models_entry_to_wire
from policy.spend.balances import Balance, balance_from_wire, balance_to_wire
from policy.spend.limits import SpendLimit, spend_limit_to_wire, spend_limits_from_wire

_CHARS_AT_ONCE = 32_768
"""The characters of JSON that are decoded at once: a millisecond."""
_FIRST_BATCH = 16
_SMALLEST_BATCH = 4
_LARGEST_BATCH = 500
_BATCH_CHARS = 1_000_000


async def find_group(conn: Connection, workspace_id: str, group_id: str) -> GroupRecord | None:
    query = select(groups).where(groups.c.id == group_id, groups.c.workspace_id == workspace_id)
    row = (await conn.execute(query)).one_or_none()
    return (await _records([row]))[0] if row else None


async def list_groups(
    conn: Connection, workspace_id: str, selection: GroupFilter, after: str | None, limit: int
) -> list[GroupRecord]:
    """Return at most `limit` groups after the id `after`, oldest first."""
    query = select(groups).where(groups.c.workspace_id == workspace_id).order_by(groups.c.id).limit(limit)
    if selection.external_entity_id is not None:
        query = query.where(groups.c.external_entity_id == selection.external_entity_id)
    if selection.top_id is not None:
        top = await find_group(conn, workspace_id, selection.top_id)
        if top is None:
            return []
        query = query.where(*_below(top.path))
    if after is not None:
        query = query.where(groups.c.id > after)
    return await _records((await conn.execute(query)).all())


async def load_records(conn: Connection, ids: Iterable[str]) -> dict[str, GroupRecord]:
    """The groups with these ids: at most a page and its ancestors."""
    query = select(groups).where(one_of(groups.c.id, ids))
    return {record.group.id: record for record in await _records((await conn.execute(query)).all())}


async def paths_of(conn: Connection, ids: Collection[str]) -> dict[str, str]:
    """The paths of these groups, as far as they exist. Models are not read: they may be large."""
    if not ids:
        return {}
    query = select(groups.c.id, groups.c.path).where(one_of(groups.c.id, ids))
    return {id: path for id, path in await conn.execute(query)}  # noqa: C416 (a Row is no tuple to mypy)


async def workspaces_of(conn: Connection, ids: Iterable[str]) -> dict[str, str]:
    """The workspaces of these groups, as far as they exist."""
    if not (ids := list(ids)):
        return {}
    query = select(groups.c.id, groups.c.workspace_id).where(one_of(groups.c.id, ids))
    return {id: workspace_id for id, workspace_id in await conn.execute(query)}  # noqa: C416 (a Row is no tuple to mypy)


async def lock_root(tx: WriteTx, root_id: str) -> None:
    """Lock a tree against changes until the transaction ends."""
    # FOR NO KEY UPDATE: minting a key, which refers to a group, need not wait.
    await tx.conn.execute(select(groups.c.id).where(groups.c.id == root_id).with_for_update(key_share=True))


async def lock_tree(tx: WriteTx, workspace_id: str, group_id: str) -> GroupRecord | None:
    """The group, with its tree locked against changes until the transaction ends. None if it does not exist."""
    unlocked = await find_group(tx.conn, workspace_id, group_id)
    if unlocked is None:
        return None
    await lock_root(tx, unlocked.root_id)
    return await find_group(tx.conn, workspace_id, group_id)


async def ancestors_of(conn: Connection, record: GroupRecord) -> list[GroupRecord]:
    """Return the ancestors, parent first, root last."""
    records_by_id = await load_records(conn, record.ancestor_ids)
    return [records_by_id[id] for id in record.ancestor_ids]


async def descendants_of(conn: Connection, record: GroupRecord) -> AsyncIterator[Sequence[Group]]:
    """All groups below, in batches: a tree may be large, and so may each group."""
    async for rows in _rows_below(conn, record):
        yield [record_below.group for record_below in await _records(rows)]


@dataclass(frozen=True, slots=True)
class TextBelow:
    """A group below, with its models or its spend limits as JSON text."""

    id: str
    external_entity_id: str
    name: str | None
    text: str


async def models_below(conn: Connection, record: GroupRecord) -> AsyncIterator[Sequence[TextBelow]]:
    """Each group below with its models, in batches: a tree may have 100 000 groups."""
    async for rows in _rows_below(conn, record):
        yield [TextBelow(row.id, row.external_entity_id, row.name, row.models) for row in rows]


async def spend_limits_below(conn: Connection, record: GroupRecord) -> AsyncIterator[Sequence[TextBelow]]:
    """Each group below that has spend limits, with those, in batches."""
    after = record.path
    inside = (groups.c.root_id == record.root_id, HAS_SPEND_LIMITS, _below(record.path)[1])
    columns = (groups.c.path, groups.c.id, groups.c.external_entity_id, groups.c.name, groups.c.spend_limits)
    query = select(*columns).where(*inside).order_by(groups.c.path)
    while rows := (await conn.execute(query.where(groups.c.path > after).limit(_LARGEST_BATCH))).all():
        yield [TextBelow(row.id, row.external_entity_id, row.name, row.spend_limits) for row in rows]
        after = rows[-1].path


async def spend_limits_of_tree(conn: Connection, root_id: str) -> dict[str, tuple[SpendLimit, ...]]:
    """The spend limits of each group of the tree that has some, by group."""
    query = select(groups.c.id, groups.c.spend_limits).where(groups.c.root_id == root_id, HAS_SPEND_LIMITS)
    return {id: spend_limits_of(text) for id, text in await conn.execute(query)}


async def spend_limits_in_tree(
    conn: Connection, root_id: str, but_path: str = ""
) -> tuple[str, tuple[SpendLimit, ...]] | None:
    """A group of the tree that has spend limits, by its id, and those; None if there is none besides `but_path`."""
    others = (groups.c.root_id == root_id, HAS_SPEND_LIMITS, groups.c.path != but_path)
    query = select(groups.c.id, groups.c.spend_limits).where(*others).order_by(groups.c.path).limit(1)
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else (row.id, spend_limits_of(row.spend_limits))


async def balance_in_tree(conn: Connection, root_id: str) -> tuple[str, Balance] | None:
    """A group of the tree that has a balance, by its id, and that; None if none has one."""
    query = select(groups.c.id, groups.c.balance).where(groups.c.root_id == root_id, HAS_BALANCE)
    row = (await conn.execute(query.order_by(groups.c.path).limit(1))).one_or_none()
    balance = None if row is None else balance_of(row.balance)
    return None if row is None or balance is None else (row.id, balance)


def spend_limits_of(text: str) -> tuple[SpendLimit, ...]:
    """The spend limits that the column holds as JSON text."""
    return spend_limits_from_wire(orjson.loads(text))


def balance_of(text: str | None) -> Balance | None:
    """The balance that the column holds as JSON text."""
    return None if text is None else balance_from_wire(orjson.loads(text))


async def _rows_below(conn: Connection, record: GroupRecord) -> AsyncIterator[Sequence[Any]]:
    after = record.path
    batch = _FIRST_BATCH
    while True:
        inside = and_(groups.c.path > after, _below(record.path)[1])
        rows = (await conn.execute(select(groups).where(inside).order_by(groups.c.path).limit(batch))).all()
        if not rows:
            return
        yield rows
        after = rows[-1].path
        chars = 1 + sum(len(row.models) for row in rows) // len(rows)
        batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, _BATCH_CHARS // chars))


async def insert_group(tx: WriteTx, record: GroupRecord) -> None:
    group = record.group
    models = await _models_text(group)
    values = {
        "id": group.id,
        "workspace_id": group.workspace_id,
        "parent_id": group.parent_id,
        "root_id": record.root_id,
        "path": record.path,
        "enforcement": group.enforcement.value,
        "external_entity_id": group.external_entity_id,
        "created_at_ms": record.created_at_ms,
        **_changing_columns(record, models),
    }
    await tx.conn.execute(insert(groups).values(**values))
    _publish(tx, record, models)


async def update_group(tx: WriteTx, record: GroupRecord) -> None:
    """Write the name, models, percents, spend limits, balance and owner of a group whose tree is locked."""
    models = await _models_text(record.group)
    values = _changing_columns(record, models)
    await tx.conn.execute(update(groups).where(groups.c.id == record.group.id).values(**values))
    _publish(tx, record, models)


def _changing_columns(record: GroupRecord, models: str) -> dict[str, Any]:
    return {
        "name": record.name,
        "models": models,
        "updated_at_ms": record.updated_at_ms,
        "managed_by": record.managed_by,
        "managed_at_ms": record.managed_at_ms,
        "alert_percents": orjson.dumps(record.alert_percents).decode(),
        "spend_limits": orjson.dumps(_spend_wire(record)).decode(),
        "balance": None if record.balance is None else orjson.dumps(balance_to_wire(record.balance)).decode(),
    }


@dataclass(frozen=True, slots=True)
class DeletedSubtree:
    """The number of deleted groups, the topmost included, and of deleted keys."""

    groups: int
    keys: int


async def delete_subtree(tx: WriteTx, record: GroupRecord) -> DeletedSubtree:
    """Delete the group, all groups below it and all their keys, with tombstones.

    Locks the rows first: a key that is minted concurrently is either deleted here or refused there. Their paths stay
    known, so that the sums of a group above them have their calls.
    """
    inside = inside_of(record.path)
    ids = select(groups.c.id).where(inside)
    locked = select(groups.c.id).where(inside).with_for_update().subquery()
    doomed: int = (await tx.conn.execute(select(func.count()).select_from(locked))).scalar_one()
    theirs = api_keys.c.group_id.in_(ids)
    await tx.publish_tombstones(RowKind.KEY, api_keys.c.digest, theirs)
    await tx.publish_tombstones(RowKind.GROUP, groups.c.id, inside)
    keys = (await tx.conn.execute(delete(api_keys).where(theirs))).rowcount
    names = (groups.c.workspace_id, groups.c.path, groups.c.external_entity_id, literal(tx.now_ms))
    await tx.conn.execute(
        insert(deleted_groups).from_select(deleted_groups.columns.keys(), select(*names).where(inside))
    )
    await tx.conn.execute(delete(groups).where(inside))
    return DeletedSubtree(doomed, keys)


async def forget_deleted_groups(tx: WriteTx, before_ms: int) -> int:
    """Forget the groups that were deleted before then; returns how many."""
    statement = delete(deleted_groups).where(deleted_groups.c.deleted_at_ms < before_ms)
    return (await tx.conn.execute(statement)).rowcount


def inside_of(path: str) -> ColumnElement[bool]:
    """The condition that a group has this path, or is below it."""
    return and_(*_below(path))


def _below(path: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The range of paths that begin with `path`. Paths end in `/`; `0` is the character after it."""
    return groups.c.path >= path, groups.c.path < f"{path[:-1]}0"


async def _models_text(group: Group) -> str:
    return await beside(group.workspace_id, len(group.models), partial(_encoded, group.models))


def _encoded(models: Sequence[SlugLimits]) -> str:
    return orjson.dumps([models_entry_to_wire(entry) for entry in models]).decode()


def _publish(tx: WriteTx, record: GroupRecord, models: str) -> None:
    """`models`: JSON text, encoded once for both tables."""
    wire = group_to_wire(replace(record.group, models=())) | {"models": orjson.Fragment(models)}
    if record.spend_limits:  # an older proxy refuses calls of a group with a member that it does not know
        wire["spend_limits"] = _spend_wire(record)
    if record.balance is not None:
        wire["balance"] = balance_to_wire(record.balance)
    tx.publish_text(RowKind.GROUP, record.group.id, orjson.dumps(wire).decode())


def _spend_wire(record: GroupRecord) -> list[dict[str, Any]]:
    return [spend_limit_to_wire(limit) for limit in record.spend_limits]


def models_entries(text: str) -> Iterable[Any]:
    """The entries of `models`, parsed. Long text is parsed entry by entry: a group from before the bound has 40 000."""
    return array_items(text) if len(text) > _CHARS_AT_ONCE else orjson.loads(text)


async def _records(rows: Sequence[Any]) -> list[GroupRecord]:
    """The groups of one workspace."""
    workspace_id = rows[0].workspace_id if rows else ""
    items = sum(len(row.models) for row in rows) // CHARS_PER_ITEM
    return await beside(workspace_id, items, partial(_decoded, rows))


def _decoded(rows: Sequence[Any]) -> list[GroupRecord]:
    """The groups. Models that several of them have, as customers of one plan do, are parsed once."""
    models = {text: tuple(map(models_entry_from_wire, models_entries(text))) for text in {row.models for row in rows}}
    return [_record(row, models[row.models]) for row in rows]


def _record(row: Any, models: tuple[SlugLimits, ...]) -> GroupRecord:
    group = Group(row.id, row.workspace_id, row.parent_id, row.external_entity_id, Enforcement(row.enforcement), models)
    times = (row.created_at_ms, row.updated_at_ms)
    percents = tuple(orjson.loads(row.alert_percents))
    owner = (row.managed_by, row.managed_at_ms)
    money = (spend_limits_of(row.spend_limits), balance_of(row.balance))
    return GroupRecord(group, row.name, row.path, *times, *owner, percents, *money)
