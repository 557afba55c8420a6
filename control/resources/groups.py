"""The group tree: load, ask policy, save (docs/reference/management-api.md#the-group-tree).

Every check that spans groups runs with the tree locked, inside the transaction that saves. No SQL, no HTTP.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from control.edges.sql import group_rows, key_rows
from control.edges.sql.database import TakenError
from control.edges.sql.spend import balance_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.workspace_rows import owned_prefixes
from control.errors import (
    ExternalEntityIdTakenError,
    GroupHasCreditError,
    GroupNotFoundError,
    InvalidFieldError,
    ParentGroupNotFoundError,
    UsageUnavailableError,
)
from control.long_work import beside
from control.records.audit import Change, Shown
from control.records.ids import new_id
from control.records.policy import GroupFilter, GroupRecord
from control.records.usage import Bucket
from control.resources.changes.ownership import OwnerChange, with_owner
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import group_sides
from control.resources.changes.tags import group_tag
from control.resources.group_usage import UsageSource
from control.resources.limit_starts import LimitsToStart, start_limits
from control.resources.limits.cascade import check_thresholds
from control.resources.policy_feed import check_known_to_proxies, check_spend_known_to_proxies
from control.resources.spend.tree_limits import check_spend_in_tree, checked_spend_limits
from policy.endpoints import EndpointRuleError, check_slug
from policy.limits.alerts import IllegalPercentsError, check_percents
from policy.limits.counter_layout import bucket_key
from policy.limits.groups import (
    Enforcement,
    Group,
    GroupRuleError,
    check_depth,
    inherit_enforcement,
)
from policy.limits.limit import IllegalLimitsError, SlugLimits, check_slug_limits
from policy.limits.starts import UsageLimitKey, changed_usage_limits
from policy.prices import amount_of, amount_text
from policy.spend.effective import SpendPlan, spend_plan
from policy.spend.key_names import key_name
from policy.spend.limits import SpendLimit
from policy.spend.spend_hash import spend_key

MOST_FORGOTTEN = 10_000
"""Buckets of a deleted tree that are removed from Redis at once; the others expire with their hashes, in days."""
_FORGET_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to create. `enforcement` None: the parent's, or INDEPENDENT."""

    external_entity_id: str
    name: str | None
    models: tuple[SlugLimits, ...]
    enforcement: Enforcement | None
    parent_id: str | None
    owner: OwnerChange | None = None
    alert_percents: tuple[int, ...] = ()
    spend_limits: tuple[SpendLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The change that a PATCH makes. `models`, `owner`, `alert_percents`, `spend_limits` None: unchanged.

    `name` counts only when `renames`.
    """

    models: tuple[SlugLimits, ...] | None = None
    renames: bool = False
    name: str | None = None
    owner: OwnerChange | None = None
    alert_percents: tuple[int, ...] | None = None
    spend_limits: tuple[SpendLimit, ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupInTree:
    """A group and its ancestors, parent first: what all that is effective in it is computed from."""

    record: GroupRecord
    ancestors: tuple[GroupRecord, ...]

    @property
    def path(self) -> tuple[Group, ...]:
        """Itself, its parent, and so on to the root."""
        return (self.record.group, *(ancestor.group for ancestor in self.ancestors))

    @property
    def tag(self) -> str:
        return group_tag((self.record, *self.ancestors))

    @property
    def spend_plan(self) -> SpendPlan | None:
        """The spend limits that bind its calls, and the balance that they draw from; None if there is neither."""
        path = (self.record, *self.ancestors)
        limits = [record.spend_limits for record in path]
        balances = [record.balance for record in path]
        return spend_plan([record.group.id for record in path], self.record.group.enforcement, limits, balances)


class _TrialError(Exception):
    """Ends the transaction of a trial, so that nothing is saved. `group`: what would have been."""

    def __init__(self, group: GroupInTree) -> None:
        super().__init__()
        self.group = group


async def create_group(store: Store, workspace_id: str, new: NewGroup, *, is_trial: bool = False) -> GroupInTree:
    """Create a group. `is_trial`: check all of it, and save nothing."""

    async def work(tx: WriteTx) -> GroupInTree:
        percents = _checked_percents(new.alert_percents)
        spend_limits = checked_spend_limits(new.spend_limits)
        prefixes = await owned_prefixes(tx.conn, workspace_id)
        await beside(workspace_id, len(new.models), partial(_check_models, new.models, prefixes))
        await check_known_to_proxies(tx, new.models)
        await check_spend_known_to_proxies(tx, spend_limits)
        parent = await _locked_parent(tx, workspace_id, new.parent_id)
        ancestors = [parent, *await group_rows.ancestors_of(tx.conn, parent)] if parent else []
        entries = len(new.models) * len(ancestors)
        above = [ancestor.group for ancestor in ancestors]
        group = await beside(workspace_id, entries, partial(_new_group, workspace_id, new, above))
        path = f"{parent.path if parent else ''}{group.id}/"
        unowned = GroupRecord(group, new.name, path, tx.now_ms, tx.now_ms, None, None, percents, spend_limits)
        record = with_owner(unowned, new.owner)
        if group.enforcement is Enforcement.CASCADING:
            await check_thresholds(tx.conn, None, record, ancestors)
        await check_spend_in_tree(tx, None, record, ancestors)
        await group_rows.insert_group(tx, record)
        if is_trial:
            raise _TrialError(GroupInTree(record, tuple(ancestors)))
        _, side = await _sides(None, record)
        tx.audit(workspace_id, Change("group.create", path_of(record), None, side))
        return GroupInTree(record, tuple(ancestors))

    try:
        return await store.transact(work)
    except TakenError:
        raise ExternalEntityIdTakenError from None
    except _TrialError as end:
        return end.group


async def try_change(store: Store, workspace_id: str, group_id: str, change: GroupChange) -> GroupInTree:
    """Check a change as `change_group` does, and save nothing."""

    async def work(tx: WriteTx) -> GroupInTree:
        old = _existing(await group_rows.lock_tree(tx, workspace_id, group_id))
        return await _checked_change(tx, workspace_id, old, change)

    return await store.transact(work)


async def _checked_change(tx: WriteTx, workspace_id: str, old: GroupRecord, change: GroupChange) -> GroupInTree:
    """The group, whose tree is locked, after the change. Raises what forbids it."""
    ancestors = await group_rows.ancestors_of(tx.conn, old)
    tx.condition.check(group_tag((old, *ancestors)))
    if change.models is not None:
        prefixes = await owned_prefixes(tx.conn, workspace_id)
        await beside(workspace_id, len(change.models), partial(_check_models, change.models, prefixes))
        await check_known_to_proxies(tx, change.models)
    await check_spend_known_to_proxies(tx, change.spend_limits or ())
    record = _changed(old, change, tx.now_ms)
    if change.models is not None and record.group.enforcement is Enforcement.CASCADING:
        await check_thresholds(tx.conn, old, record, ancestors)
    if change.spend_limits is not None:
        await check_spend_in_tree(tx, old, record, ancestors)
    return GroupInTree(record, tuple(ancestors))


async def change_group(
    store: Store, usage: UsageSource | None, workspace_id: str, group_id: str, change: GroupChange
) -> GroupInTree:
    """Start the usage limits that are added or changed, then save. Without counters they start at 0."""

    async def work(tx: WriteTx) -> GroupInTree | LimitsToStart:
        old = _existing(await group_rows.lock_tree(tx, workspace_id, group_id))
        changed = await _checked_change(tx, workspace_id, old, change)
        record = changed.record
        limits = await _changed_usage_limits(old, record)
        if usage is not None and limits - raised_limits:  # or another change removed some meanwhile
            return LimitsToStart(record, limits)
        await group_rows.update_group(tx, record)
        tx.audit(workspace_id, Change("group.update", path_of(record), *await _sides(old, record)))
        return changed

    raised_limits: frozenset[UsageLimitKey] = frozenset()
    while isinstance(saved := await store.transact(work), LimitsToStart):
        assert usage is not None
        await start_limits(store, usage, saved)
        raised_limits |= saved.limits
    return saved


def _changed(old: GroupRecord, change: GroupChange, now_ms: int) -> GroupRecord:
    """The group after the change. Raises `InvalidFieldError` for percents or spend limits that break a rule."""
    percents, spend_limits = change.alert_percents, change.spend_limits
    changed = replace(
        old,
        group=old.group if change.models is None else replace(old.group, models=change.models),
        name=change.name if change.renames else old.name,
        updated_at_ms=max(now_ms, old.updated_at_ms + 1),
        alert_percents=old.alert_percents if percents is None else _checked_percents(percents),
        spend_limits=old.spend_limits if spend_limits is None else checked_spend_limits(spend_limits),
    )
    return with_owner(changed, change.owner)


@dataclass(frozen=True, slots=True)
class RemovedGroup:
    """A group that was deleted with all groups below it."""

    record: GroupRecord
    removed_at_ms: int


async def remove_group(
    store: Store, usage: UsageSource | None, workspace_id: str, group_id: str, *, forfeit: bool = False
) -> RemovedGroup:
    """Delete the group, all groups below it and all their keys, or nothing; then free their counters in Redis.

    `forfeit`: also where credit is left in their balances. Raises `GroupHasCreditError` without it.
    """

    async def work(tx: WriteTx) -> tuple[RemovedGroup, list[Bucket]]:
        record = _existing(await group_rows.lock_tree(tx, workspace_id, group_id))
        tx.condition.check(group_tag((record, *await group_rows.ancestors_of(tx.conn, record))))
        buckets = await _buckets_of(tx.conn, record)
        forfeited = await _delete_ledgers(tx, record, forfeit=forfeit)
        deleted = await group_rows.delete_subtree(tx, record)
        side, _ = await _sides(record, None)
        counts = {"groups_deleted": deleted.groups, "api_keys_deleted": deleted.keys, **forfeited}
        tx.audit(workspace_id, Change("group.delete", path_of(record), {**(side or {}), **counts}, None))
        return RemovedGroup(record, tx.now_ms), buckets

    removed, buckets = await store.transact(work)
    if usage is not None:
        # Saves memory in Redis, no more: nothing reads these counters again, and they expire with their hashes.
        with suppress(UsageUnavailableError, TimeoutError):
            async with asyncio.timeout(_FORGET_TIMEOUT_S):
                await usage.forget(buckets)
    return removed


async def _delete_ledgers(tx: WriteTx, record: GroupRecord, *, forfeit: bool) -> Shown:
    """Delete the ledgers of a subtree. Returns what is forfeited, for the audit trail."""
    balances = await balance_rows.lock_balances(tx, record)
    rest = {id: units for id, units in (await balance_rows.credit_left(tx.conn, balances)).items() if units > 0}
    for id, units in rest.items():
        if not forfeit:
            raise GroupHasCreditError(id, amount_text(amount_of(units)), balances[id].currency)
    await balance_rows.delete_ledgers(tx, record)
    if not rest:
        return {}
    currency = balances[next(iter(rest))].currency  # a tree has one
    return {"credit_forfeited": {"amount": amount_text(amount_of(sum(rest.values()))), "currency": currency}}


async def _buckets_of(conn: Connection, top: GroupRecord) -> list[Bucket]:
    """Return the buckets of the group, of those below it, and of all their keys, up to a bound."""
    buckets = [Bucket(bucket_key(top.counting_owner, entry.slug), top.group.id) for entry in top.group.models]
    is_cascading = top.group.enforcement is Enforcement.CASCADING
    async for batch in group_rows.descendants_of(conn, top):
        for group in batch:
            owner = top.counting_owner if is_cascading else group.id
            buckets += [Bucket(bucket_key(owner, entry.slug), group.id) for entry in group.models]
        if len(buckets) >= MOST_FORGOTTEN:
            break
    of_keys = await key_rows.buckets_below(conn, group_rows.inside_of(top.path), MOST_FORGOTTEN)
    buckets += [Bucket(spend_key(top.root_id), key_name(bucket)) for bucket in of_keys]
    return buckets[:MOST_FORGOTTEN]


async def _changed_usage_limits(old: GroupRecord, new: GroupRecord) -> frozenset[UsageLimitKey]:
    entries = len(old.group.models) + len(new.group.models)
    return await beside(
        new.group.workspace_id, entries, partial(changed_usage_limits, old.group.models, new.group.models)
    )


async def read_group(store: Store, workspace_id: str, group_id: str) -> GroupInTree:
    async with store.read() as conn:
        record = _existing(await group_rows.find_group(conn, workspace_id, group_id))
        return GroupInTree(record, tuple(await group_rows.ancestors_of(conn, record)))


async def read_groups(
    store: Store, workspace_id: str, selection: GroupFilter, after: str | None, limit: int
) -> list[GroupInTree]:
    """Return at most `limit` groups, oldest first, behind the id `after`; all their ancestors are read at once."""
    async with store.read() as conn:
        records = await group_rows.list_groups(conn, workspace_id, selection, after, limit)
        ancestors = await group_rows.load_records(conn, (id for record in records for id in record.ancestor_ids))
    return [GroupInTree(record, tuple([ancestors[id] for id in record.ancestor_ids])) for record in records]


async def _sides(before: GroupRecord | None, after: GroupRecord | None) -> tuple[Shown | None, Shown | None]:
    """A group before and after a change, for the audit trail."""
    groups = [record.group for record in (before, after) if record is not None]
    entries = sum(len(group.models) for group in groups)
    return await beside(groups[0].workspace_id, entries, partial(group_sides, before, after))


def _checked_percents(percents: Sequence[int]) -> tuple[int, ...]:
    """Legal percents in ascending order."""
    try:
        check_percents(percents)
    except IllegalPercentsError as error:
        raise InvalidFieldError("alert_percents", str(error)) from None
    return tuple(sorted(percents))


def _check_models(models: Sequence[SlugLimits], prefixes: Collection[str]) -> None:
    """Refuse an illegal entry, a slug that the workspace does not own, and a slug that is named twice."""
    slugs: set[str] = set()
    for index, entry in enumerate(models):
        if entry.slug in slugs:
            raise InvalidFieldError(f"models.{index}.slug", f"{entry.slug} is named twice in models")
        slugs.add(entry.slug)
        try:
            check_slug(entry.slug, prefixes)
            check_slug_limits(entry)
        except EndpointRuleError as error:
            raise InvalidFieldError(f"models.{index}.slug", error.message) from None
        except IllegalLimitsError as error:
            raise InvalidFieldError(f"models.{index}", str(error)) from None


def _new_group(workspace_id: str, new: NewGroup, ancestors: list[Group]) -> Group:
    """The group, if policy allows it below `ancestors` (parent first)."""
    parent = ancestors[0] if ancestors else None
    try:
        enforcement = inherit_enforcement(new.enforcement, parent)
    except GroupRuleError as error:
        raise InvalidFieldError("hierarchy.limit_enforcement", str(error)) from None
    try:
        check_depth(ancestors)
    except GroupRuleError as error:
        raise InvalidFieldError("hierarchy.parent_group_id", str(error)) from None
    parent_id = parent.id if parent else None
    return Group(new_id("grp"), workspace_id, parent_id, new.external_entity_id, enforcement, new.models)


async def _locked_parent(tx: WriteTx, workspace_id: str, parent_id: str | None) -> GroupRecord | None:
    if parent_id is None:
        return None
    parent = await group_rows.lock_tree(tx, workspace_id, parent_id)
    if parent is None:
        raise ParentGroupNotFoundError
    return parent


def _existing(record: GroupRecord | None) -> GroupRecord:
    if record is None:
        raise GroupNotFoundError
    return record
