"""The group tree as it changes: load, ask policy, save (docs/reference/management-api.md#the-group-tree).

Every check that spans groups runs with the tree locked, inside the transaction that saves. No SQL and no HTTP here.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from control.api.protocol.errors import ProblemError, bad_field, conflict, not_found
from control.edges.sql import group_rows
from control.edges.sql.database import TakenError
from control.edges.sql.group_rows import GroupRecord
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.workspace_rows import owned_prefixes
from control.resources.ids import new_id
from control.time_slices import pause
from policy.endpoints import EndpointRuleError, check_slug
from policy.groups import (
    ChildExceedsParentError,
    Enforcement,
    Group,
    GroupRuleError,
    check_below,
    check_depth,
    check_threshold,
    inherit_enforcement,
    tightened,
)
from policy.limits.counter_layout import bucket_key
from policy.limits.limit import IllegalLimitsError, SlugLimits, check_slug_limits

MOST_FORGOTTEN = 10_000
"""Buckets of a deleted tree that Redis is told to forget; the others go with their hashes, in days."""


@dataclass(frozen=True, slots=True)
class NewGroup:
    """What an operator asks for; `enforcement` None: the parent's, or INDEPENDENT."""

    external_entity_id: str
    name: str | None
    models: tuple[SlugLimits, ...]
    enforcement: Enforcement | None
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What PATCH may change. `models` None: as they are. `name` counts only when `renames`."""

    models: tuple[SlugLimits, ...] | None = None
    renames: bool = False
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A group and its path up the tree, itself first: what `effective_models` is computed from."""

    record: GroupRecord
    path: tuple[Group, ...]


async def create_group(store: Store, workspace_id: str, new: NewGroup) -> Placed:
    async def work(tx: WriteTx) -> Placed:
        await check_models_of(new.models, await owned_prefixes(tx.conn, workspace_id))
        parent = await _locked_parent(tx, workspace_id, new.parent_id)
        ancestors = [parent.group, *await group_rows.ancestors_of(tx.conn, parent)] if parent else []
        group = await _grown(workspace_id, new, ancestors)
        path = f"{parent.path if parent else ''}{group.id}/"
        record = GroupRecord(group, new.name, path, tx.now_ms, tx.now_ms)
        await group_rows.insert_group(tx, record)
        return Placed(record, (group, *ancestors))

    try:
        return await store.transact(work)
    except TakenError:
        raise conflict("metadata.external_entity_id is taken by another group of this workspace") from None


async def change_group(store: Store, workspace_id: str, group_id: str, change: GroupChange) -> Placed:
    async def work(tx: WriteTx) -> Placed:
        if change.models is not None:
            await check_models_of(change.models, await owned_prefixes(tx.conn, workspace_id))
        old = _found(await group_rows.lock_tree(tx, workspace_id, group_id))
        ancestors = await group_rows.ancestors_of(tx.conn, old)
        group = old.group if change.models is None else replace(old.group, models=change.models)
        name = change.name if change.renames else old.name
        record = replace(old, group=group, name=name, updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
        if change.models is not None and group.enforcement is Enforcement.CASCADING:
            await _check_cascade(tx, old, record, ancestors)
        await group_rows.update_group(tx, record)
        return Placed(record, (group, *ancestors))

    return await store.transact(work)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A group that was deleted with all below it. `buckets`: (hash, counting group) of what they counted, the first."""

    record: GroupRecord
    deleted_at_ms: int
    buckets: Sequence[tuple[str, str]]


async def delete_group(store: Store, workspace_id: str, group_id: str) -> Deleted:
    """Delete the group, all below it and all their keys, or nothing."""

    async def work(tx: WriteTx) -> Deleted:
        record = _found(await group_rows.lock_tree(tx, workspace_id, group_id))
        buckets = await _buckets_of(tx.conn, record)
        await group_rows.delete_subtree(tx, record)
        return Deleted(record, tx.now_ms, buckets)

    return await store.transact(work)


async def _buckets_of(conn: Connection, top: GroupRecord) -> list[tuple[str, str]]:
    """Of the group and those below it, up to a bound."""
    found = [(bucket_key(top.counting_owner, entry.slug), top.group.id) for entry in top.group.models]
    is_cascading = top.group.enforcement is Enforcement.CASCADING
    async for batch in group_rows.descendants_of(conn, top):
        for group in batch:
            owner = top.counting_owner if is_cascading else group.id
            found += [(bucket_key(owner, entry.slug), group.id) for entry in group.models]
        if len(found) >= MOST_FORGOTTEN:
            break
    return found[:MOST_FORGOTTEN]


async def place_group(conn: Connection, workspace_id: str, group_id: str) -> Placed:
    """The group with its path; 404 when the workspace has no such group."""
    record = _found(await group_rows.find_group(conn, workspace_id, group_id))
    return Placed(record, (record.group, *await group_rows.ancestors_of(conn, record)))


async def place_all(conn: Connection, records: Sequence[GroupRecord]) -> list[Placed]:
    """The same for many, with one look at all their ancestors."""
    known = await group_rows.load_groups(conn, (id for record in records for id in record.ancestor_ids))
    return [Placed(r, (r.group, *(known[id] for id in r.ancestor_ids))) for r in records]


async def check_models_of(models: Sequence[SlugLimits], prefixes: Collection[str]) -> None:
    """400, with the field's path, unless every entry is legal, names an owned slug, and no slug is named twice."""
    seen: set[str] = set()
    for index, entry in enumerate(models):
        await pause()
        if entry.slug in seen:
            raise bad_field(f"models.{index}.slug", f"{entry.slug} is named twice in models")
        seen.add(entry.slug)
        try:
            check_slug(entry.slug, prefixes)
            check_slug_limits(entry)
        except EndpointRuleError as error:
            raise bad_field(f"models.{index}.slug", error.message) from None
        except IllegalLimitsError as error:
            raise bad_field(f"models.{index}", str(error)) from None


async def _grown(workspace_id: str, new: NewGroup, ancestors: list[Group]) -> Group:
    """The new group, if policy lets it stand below `ancestors` (parent first)."""
    parent = ancestors[0] if ancestors else None
    try:
        enforcement = inherit_enforcement(new.enforcement, parent)
    except GroupRuleError as error:
        raise bad_field("hierarchy.limit_enforcement", str(error)) from None
    try:
        check_depth(ancestors)
    except GroupRuleError as error:
        raise bad_field("hierarchy.parent_group_id", str(error)) from None
    if enforcement is Enforcement.CASCADING:
        await _check_limits_below(ancestors, new.models)
    parent_id = parent.id if parent else None
    return Group(new_id("grp"), workspace_id, parent_id, new.external_entity_id, enforcement, new.models)


async def _check_cascade(tx: WriteTx, old: GroupRecord, new: GroupRecord, ancestors: Sequence[Group]) -> None:
    await _check_limits_below(ancestors, new.group.models)
    ceilings = tightened(old.group.models, new.group.models)
    if not ceilings:
        return
    with _refused_as_exceeding():
        async for entry in group_rows.entries_below(tx.conn, new):
            await pause()
            for limit in (*entry["rate_limits"], *entry["usage_limits"]):
                check_threshold(ceilings, (entry["slug"], limit["type"], limit["unit"]), limit["threshold"])


async def _check_limits_below(uppers: Sequence[Group], lower: Sequence[SlugLimits]) -> None:
    """400 when a threshold in `lower` is above one of `uppers` for the same tuple."""
    for upper in uppers:
        await pause()
        with _refused_as_exceeding():
            check_below(upper.models, lower)


@contextmanager
def _refused_as_exceeding() -> Iterator[None]:
    """400: a child's threshold is above an ancestor's."""
    try:
        yield
    except ChildExceedsParentError as error:
        raise ProblemError(400, "CHILD_EXCEEDS_PARENT_LIMIT", str(error)) from None


async def _locked_parent(tx: WriteTx, workspace_id: str, parent_id: str | None) -> GroupRecord | None:
    if parent_id is None:
        return None
    parent = await group_rows.lock_tree(tx, workspace_id, parent_id)
    if parent is None:
        raise not_found("parent group")
    return parent


def _found(record: GroupRecord | None) -> GroupRecord:
    if record is None:
        raise not_found("group")
    return record
