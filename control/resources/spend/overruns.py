"""HARD limits and balances above which more is spent, and the reason: what changed since the last look at the tree.

Calls that cost more than was reserved for them are told by the proxy (reason `provider`), and not here.

See docs/reference/money.md#hard-limits and #balances.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from control.edges.sql.group_rows import paths_of, spend_limits_of_tree
from control.edges.sql.key_rows import keys_with_spend_limits
from control.edges.sql.spend.balance_sums import balances_of_tree
from control.edges.sql.store import Connection, Store
from control.errors import SpendNotCountedError
from control.records.spend import SpendTree
from control.resources.spend.tree_hashes import TreeHashes
from policy.limits.kinds import Unit
from policy.prices import amount_of, amount_text
from policy.spend.balances import Balance
from policy.spend.effective import BalanceBound, KeySpend, SpendBound, spend_plan
from policy.spend.key_names import key_name, key_of_name
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_hash import BALANCE_WINDOW, SPENT_PREFIX, window_name

log = logging.getLogger(__name__)

BOUNDS_AT_ONCE = 500


class OverrunReason(StrEnum):
    """The reason for which more is spent than a HARD limit or a balance allows."""

    AMOUNT = "amount"
    RESTORE = "restore"
    PRICE = "price"
    REDIS = "redis"

    __hash__ = str.__hash__


_REASONS = {
    OverrunReason.AMOUNT: "its amount was lowered, or it is new",
    OverrunReason.RESTORE: "the database was set back, and events came back",
    OverrunReason.PRICE: "a price was changed for time that has begun",
    OverrunReason.REDIS: "Redis started anew or failed over, and may have lost what it had acknowledged",
}
_Limits = Mapping[tuple[str, Unit], Decimal]
"""The amounts of a tree's HARD limits, by the group that sets each and its unit."""
_Above = dict[tuple[str, str], tuple[SpendBound | BalanceBound, Decimal]]
"""Limits and balances above which more is spent, and how much is: by the group that spent it and the window's name."""


class _Look(NamedTuple):
    """A look at a tree: its limits, those and the balances above which more is spent, and what may change that."""

    limits: _Limits
    above: frozenset[tuple[str, str]]
    """Groups whose spend is above their amount, or their balance, each with the name of the window."""
    restores: int
    prices: str
    epoch: str


class Overruns:
    """Looks at trees from time to time. `count` is called with the reason of each overrun: once per window, or until a
    balance is topped up."""

    def __init__(self, store: Store, hashes: TreeHashes, count: Callable[[str], None]) -> None:
        self._store = store
        self._hashes = hashes
        self._count = count
        self._looks: dict[str, _Look] = {}
        self._restores = 0

    def note_restore(self) -> None:
        """Note that the database was set back."""
        self._restores += 1

    async def look(self, tree: SpendTree) -> None:
        """Tell what is spent above a HARD limit or a balance of the tree now, and was not at the last look."""
        reserves = await self._hashes.reserves(tree)
        groups = {field[len(SPENT_PREFIX) :].rpartition(":")[0] for field in reserves.spent_fields}
        async with self._store.read() as conn:
            limits = await spend_limits_of_tree(conn, tree.root_id)
            bounds = await _hard_bounds(conn, tree, groups, limits)
            keys = await _limits_of_keys(conn, tree)
            bounds += [one for key in keys for one in key.bounds if _is_hard(one.limit) and key.name in groups]
            balances = await balances_of_tree(conn, tree.root_id)
        try:
            above = await self._above(tree, bounds) | await self._overdrawn(tree, balances)
        except SpendNotCountedError:  # it is being built
            return
        look = _Look(
            limits=_amounts(limits | {key.name: key.limits for key in keys}),
            above=frozenset(above),
            restores=self._restores,
            prices=tree.prices,
            epoch=(await self._hashes.epochs([tree]))[tree.root_id].partition(" ")[0],
        )
        before = self._looks.get(tree.root_id)
        self._looks[tree.root_id] = look
        if before is None:  # this process has just begun to look
            return
        for place in look.above - before.above:
            reason = _reason(before, look, above[place][0])
            if reason is not None:
                self._tell(reason, *above[place])

    async def _above(self, tree: SpendTree, bounds: Sequence[SpendBound]) -> _Above:
        """The limits above which more is spent."""
        above: _Above = {}
        for start in range(0, len(bounds), BOUNDS_AT_ONCE):
            some = bounds[start : start + BOUNDS_AT_ONCE]
            reading = await self._hashes.spend_of(some, tree.key)
            for bound, use in zip(some, reading.uses, strict=True):
                if use.spent > bound.limit.amount:
                    window = window_name(bound.limit.unit, reading.at_ms)
                    above[bound.counting_group, window] = (bound, use.spent)
        return above

    async def _overdrawn(self, tree: SpendTree, balances: Mapping[str, Balance]) -> _Above:
        """The balances from which more is drawn than was paid in."""
        above: _Above = {}
        ids = [*balances]
        for start in range(0, len(ids), BOUNDS_AT_ONCE):
            drawn = (await self._hashes.drawn_of(tree, ids[start : start + BOUNDS_AT_ONCE])).drawn
            for id, units in drawn.items():
                if amount_of(units) > balances[id].deposited:
                    above[id, BALANCE_WINDOW] = (BalanceBound(balances[id], id), amount_of(units))
        return above

    def _tell(self, reason: OverrunReason, bound: SpendBound | BalanceBound, spent: Decimal) -> None:
        self._count(reason.value)
        if isinstance(bound, BalanceBound):
            paid = bound.balance
            log.warning(
                "Calls and withdrawals have drawn %s of the %s %s that were paid into the balance of group %s: %s."
                " Calls that draw from it are refused. Post a credit of more than the difference to admit calls again.",
                *(amount_text(spent), amount_text(paid.deposited), paid.currency, bound.group_id, _REASONS[reason]),
            )
            return
        limit = bound.limit
        if key := key_of_name(bound.source_group):
            log.warning(
                "Key %s, with those that it was rotated to, has spent %s of the %s %s a %s that its HARD spend limit"
                " allows: %s. Its calls are refused until the window ends. Raise the amount to admit calls again.",
                *(key, amount_text(spent), amount_text(limit.amount), limit.currency, limit.unit, _REASONS[reason]),
            )
            return
        log.warning(
            "Group %s has spent %s of the %s %s a %s that a HARD spend limit of group %s allows: %s. Calls that it"
            " binds are refused until the window ends. Raise the amount to admit calls again.",
            *(bound.counting_group, amount_text(spent), amount_text(limit.amount), limit.currency, limit.unit),
            *(bound.source_group, _REASONS[reason]),
        )


def _reason(before: _Look, now: _Look, bound: SpendBound | BalanceBound) -> OverrunReason | None:
    """The reason for which more is spent than the limit or the balance allows; None: the proxy tells it."""
    if isinstance(bound, SpendBound):  # what was paid in is never lowered
        amount = before.limits.get((bound.source_group, bound.limit.unit))
        if amount is None or bound.limit.amount < amount:
            return OverrunReason.AMOUNT
    if before.restores != now.restores:
        return OverrunReason.RESTORE
    if before.prices != now.prices:
        return OverrunReason.PRICE
    return OverrunReason.REDIS if before.epoch != now.epoch else None


def _amounts(limits: Mapping[str, Sequence[SpendLimit]]) -> _Limits:
    return {(id, limit.unit): limit.amount for id, own in limits.items() for limit in own if _is_hard(limit)}


def _is_hard(limit: SpendLimit) -> bool:
    return limit.enforcement is SpendEnforcement.HARD


async def _limits_of_keys(conn: Connection, tree: SpendTree) -> Sequence[KeySpend]:
    """The spend limits of keys of the tree."""
    keys = await keys_with_spend_limits(conn, tree.root_id) if tree.counts_keys else ()
    return [KeySpend(key_name(key.bucket or key.prefix), key.key_settings.spend_limits) for key in keys]


async def _hard_bounds(
    conn: Connection, tree: SpendTree, groups: Collection[str], limits: Mapping[str, Sequence[SpendLimit]]
) -> list[SpendBound]:
    """The HARD limits that bound what each of these groups itself has spent, with all below it if CASCADING."""
    bounds: list[SpendBound] = []
    for id, path in (await paths_of(conn, groups)).items():
        ids = path.split("/")[-2::-1]
        plan = spend_plan(ids, tree.enforcement, [limits.get(one, ()) for one in ids], [None] * len(ids))
        own = () if plan is None else plan.bounds
        bounds += [bound for bound in own if _is_hard(bound.limit) and bound.counting_group == id]
    return bounds
