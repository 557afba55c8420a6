"""The spend limits that bind the calls of a group, the group that each comes from, and the balance that they draw from.

Control renders `effective_spend_limits` with the same function that the proxy admits by, so the two cannot differ.

See docs/reference/money.md#spend-limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from policy.limits.groups import Enforcement
from policy.limits.kinds import USAGE_UNITS, Unit
from policy.spend.balances import Balance, balance_name
from policy.spend.limits import SpendLimit
from policy.spend.spend_hash import MAX_PICOS, picos_of_amount, spend_key


@dataclass(frozen=True, slots=True)
class SpendBound:
    """A spend limit that binds a call, the group that sets it, and the group whose spend it bounds.

    Of a key's own limit both are the key, by its name.
    """

    limit: SpendLimit
    source_group: str
    counting_group: str


@dataclass(frozen=True, slots=True)
class BalanceBound:
    """The prepaid balance that a call draws from, and the group that has it."""

    balance: Balance
    group_id: str


class KeySpend(NamedTuple):
    """The spend limits of a key, and the name that counts it (`policy.spend.key_names.key_name`)."""

    name: str
    limits: Sequence[SpendLimit]

    @property
    def bounds(self) -> tuple[SpendBound, ...]:
        """The limits in the order of trial: DAY before MONTH."""
        return tuple([SpendBound(limit, self.name, self.name) for limit in _ordered(self.limits)])


class Ceiling(NamedTuple):
    """An amount that a call may not pass, as the hash knows it.

    `name`: a group, or a balance (`balance_name`), whose spend and reservations count against it. `unit`: None for a
    balance, whose only window never ends. `is_hard`: the most that a call can cost must fit.
    """

    amount: Decimal
    name: str
    unit: Unit | None
    is_hard: bool


@dataclass(frozen=True, slots=True)
class SpendPlan:
    """The spend limits that bind the calls of one group, over all its slugs, and the balance that they draw from."""

    group_id: str
    key: str
    """The Redis hash of the tree."""
    groups: tuple[str, ...]
    """The groups whose spend a call adds to, from the calling one up, whether they have a limit or not. Before them
    the name of the key, if it has limits of its own; behind them that of the balance."""
    currency: str
    bounds: tuple[SpendBound, ...]
    """The limits in the order of trial: of the key, from the group to the root; DAY before MONTH."""
    balance: BalanceBound | None = None
    """It is tried behind all limits."""
    ceilings: tuple[Ceiling, ...] = field(init=False, compare=False)
    """All of them, in the order of trial."""
    is_hard: bool = field(init=False, compare=False)
    """True if one of them is HARD, as each balance is."""
    least_hard_picos: int = field(init=False, compare=False)
    """The least amount of a HARD limit, in 10^-12; without one, more than any call reserves. A call that needs more
    never fits."""

    def __post_init__(self) -> None:
        ceilings = [_ceiling(bound) for bound in self.bounds]
        if self.balance is not None:
            of = self.balance
            ceilings.append(Ceiling(of.balance.deposited, balance_name(of.group_id), None, True))
        object.__setattr__(self, "ceilings", tuple(ceilings))
        object.__setattr__(self, "is_hard", any(ceiling.is_hard for ceiling in ceilings))
        amounts = [picos_of_amount(bound.limit.amount) for bound in self.bounds if bound.limit.is_hard]
        object.__setattr__(self, "least_hard_picos", min(amounts, default=MAX_PICOS))


def spend_plan(
    path: Sequence[str],
    enforcement: Enforcement,
    limits: Sequence[Sequence[SpendLimit]],
    balances: Sequence[Balance | None],
    key: KeySpend | None = None,
) -> SpendPlan | None:
    """The plan of the calls of `path[0]`; None if no spend limit binds them, and they draw from no balance.

    `path`: the ids of the group, its parent, and so on to the root. `limits`: the spend limits of each of them;
    `balances`: the balance of each. `key`: that of the calls, if it has limits of its own. All have one currency.
    """
    bounds = _cascading(path, limits) if enforcement is Enforcement.CASCADING else _nearest(path, limits)
    balance = nearest_balance(path, balances)
    groups = counting_groups(path, enforcement)
    if key is not None:
        bounds = (*key.bounds, *bounds)
        groups = (key.name, *groups)
    if balance is not None:
        groups = (*groups, balance_name(balance.group_id))
        currency = balance.balance.currency
    elif bounds:
        currency = bounds[0].limit.currency
    else:
        return None
    return SpendPlan(path[0], spend_key(path[-1]), groups, currency, bounds, balance)


def nearest_balance(path: Sequence[str], balances: Sequence[Balance | None]) -> BalanceBound | None:
    """The balance that calls of `path[0]` draw from: that of the nearest group up the path that has one."""
    owned = zip(path, balances, strict=True)
    return next((BalanceBound(balance, id) for id, balance in owned if balance is not None), None)


def counting_groups(path: Sequence[str], enforcement: Enforcement) -> tuple[str, ...]:
    """The groups whose spend a call of `path[0]` adds to: all up the tree, or its own if INDEPENDENT."""
    return tuple(path) if enforcement is Enforcement.CASCADING else (path[0],)


def _ceiling(bound: SpendBound) -> Ceiling:
    limit = bound.limit
    return Ceiling(limit.amount, bound.counting_group, limit.unit, limit.is_hard)


def _cascading(path: Sequence[str], limits: Sequence[Sequence[SpendLimit]]) -> tuple[SpendBound, ...]:
    return tuple([SpendBound(limit, id, id) for id, own in zip(path, limits, strict=True) for limit in _ordered(own)])


def _nearest(path: Sequence[str], limits: Sequence[Sequence[SpendLimit]]) -> tuple[SpendBound, ...]:
    """The nearest group's limit of each unit, which bounds what the calling group itself spends."""
    nearest: dict[Unit, SpendBound] = {}
    for id, own in zip(path, limits, strict=True):
        for limit in own:
            nearest.setdefault(limit.unit, SpendBound(limit, id, path[0]))
    return tuple([nearest[unit] for unit in USAGE_UNITS if unit in nearest])


def _ordered(limits: Sequence[SpendLimit]) -> list[SpendLimit]:
    return sorted(limits, key=lambda limit: USAGE_UNITS.index(limit.unit))
