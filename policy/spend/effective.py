"""The spend limits that bind the calls of a group, and the group that each comes from.

Control renders `effective_spend_limits` with the same function that the proxy admits by, so the two cannot differ.

See docs/reference/money.md#spend-limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policy.limits.groups import Enforcement
from policy.limits.kinds import USAGE_UNITS, Unit
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_hash import spend_key


@dataclass(frozen=True, slots=True)
class SpendBound:
    """A spend limit that binds a call, the group that sets it, and the group whose spend it bounds."""

    limit: SpendLimit
    source_group: str
    counting_group: str


@dataclass(frozen=True, slots=True)
class SpendPlan:
    """The spend limits that bind the calls of one group, over all its slugs."""

    group_id: str
    key: str
    """The Redis hash of the tree."""
    groups: tuple[str, ...]
    """The groups whose spend a call adds to, from the calling one up, whether they have a limit or not."""
    currency: str
    bounds: tuple[SpendBound, ...]
    """The limits in the order of trial: from the group to the root, DAY before MONTH."""
    is_hard: bool = field(init=False, compare=False)
    """True if one of them is HARD."""

    def __post_init__(self) -> None:
        is_hard = any(bound.limit.enforcement is SpendEnforcement.HARD for bound in self.bounds)
        object.__setattr__(self, "is_hard", is_hard)


def spend_plan(
    path: Sequence[str], enforcement: Enforcement, limits: Sequence[Sequence[SpendLimit]]
) -> SpendPlan | None:
    """The plan of the calls of `path[0]`; None if no spend limit binds them.

    `path`: the ids of the group, its parent, and so on to the root. `limits`: the spend limits of each of them.
    """
    bounds = _cascading(path, limits) if enforcement is Enforcement.CASCADING else _nearest(path, limits)
    if not bounds:
        return None
    groups = counting_groups(path, enforcement)
    return SpendPlan(path[0], spend_key(path[-1]), groups, bounds[0].limit.currency, bounds)


def counting_groups(path: Sequence[str], enforcement: Enforcement) -> tuple[str, ...]:
    """The groups whose spend a call of `path[0]` adds to: all up the tree, or its own if INDEPENDENT."""
    return tuple(path) if enforcement is Enforcement.CASCADING else (path[0],)


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
