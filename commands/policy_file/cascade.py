"""The order in which limits of a tree may change, so that every step keeps control's rules. Pure.

In a CASCADING tree first each group is tightened, from the leaves up; then each gets its final limits, from the root
down.
See docs/reference/policy-files.md#the-order-of-changes and docs/decisions/0039-policy-files.md.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commands.policy_file.trees import path_up
from commands.policy_file.values import Group
from policy.limits.groups import Enforcement, ThresholdKey, exceeding, threshold_key, thresholds
from policy.limits.kinds import USAGE_UNITS
from policy.limits.limit import Limit, SlugLimits
from policy.prices import amount_text
from policy.spend.limits import SpendLimit, TreeCurrencyError, amounts, check_currency

SpendLimits = tuple[SpendLimit, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    """A group whose models change, or stay (`old` equals `new`). `old` None: it is created."""

    key: str
    parent: str | None
    old: tuple[SlugLimits, ...] | None
    new: tuple[SlugLimits, ...]


def intermediate_models(transitions: Mapping[str, Transition]) -> dict[str, tuple[SlugLimits, ...]]:
    """The models of each existing group between the two phases. Parents come before children in `transitions`.

    A threshold there is the least, old and new, of the group and all its ancestors. So it exceeds no ancestor's in
    either phase, and no descendant's exceeds it.
    """
    least: dict[str, dict[ThresholdKey, int]] = {}
    by_key: dict[str, tuple[SlugLimits, ...]] = {}
    for key, transition in transitions.items():
        ceilings = dict(least.get(transition.parent or "", {}))
        for models in (transition.old or (), transition.new):
            for tuple_, threshold in thresholds(models).items():
                ceilings[tuple_] = min(threshold, ceilings.get(tuple_, threshold))
        least[key] = ceilings
        if transition.old is not None:
            by_key[key] = tuple(_between(transition.old, transition.new, ceilings))
    return by_key


def _between(
    old: Sequence[SlugLimits], new: Sequence[SlugLimits], ceilings: Mapping[ThresholdKey, int]
) -> Iterator[SlugLimits]:
    """Access to what both allow, under the limits of both. Of two rate limits of one type, the new one."""
    before = {entry.slug: entry for entry in old}
    for entry in new:
        if entry.slug in before:
            was = before[entry.slug]
            rates = _merged(was.rate_limits, entry.rate_limits)
            usages = _merged(was.usage_limits, entry.usage_limits)
            least = (tuple(_lowered(entry.slug, limits, ceilings)) for limits in (rates, usages))
            yield SlugLimits(entry.slug, *least)


def _merged(old: Sequence[Limit], new: Sequence[Limit]) -> list[Limit]:
    types = {(limit.type, None if limit.is_rate else limit.unit) for limit in new}
    return [*new, *(limit for limit in old if (limit.type, None if limit.is_rate else limit.unit) not in types)]


def _lowered(slug: str, limits: Sequence[Limit], ceilings: Mapping[ThresholdKey, int]) -> Iterator[Limit]:
    for limit in limits:
        yield Limit(limit.type, limit.unit, ceilings[threshold_key(slug, limit.type, limit.unit)])


def exceeding_limits(groups: Mapping[str, Group]) -> list[str]:
    """Return the faults in these groups' limits: each threshold that exceeds an ancestor's in a CASCADING tree."""
    own = {key: thresholds(group.models) for key, group in groups.items()}
    faults: list[str] = []
    for key, group in groups.items():
        if group.enforcement is not Enforcement.CASCADING:
            continue
        for above in path_up(group, groups)[1:]:
            ceilings = own[above.external_entity_id]
            for limit in exceeding(ceilings, own[key]):
                slug, type, unit = limit
                what = f"{slug} {type}{f' per {unit}' if unit else ''}"
                faults.append(_fault(key, above, what, (str(own[key][limit]), str(ceilings[limit]))))
    return faults


def intermediate_spend(old: Mapping[str, Group], new: Mapping[str, Group]) -> dict[str, SpendLimits]:
    """The spend limits of each group of `old` between the two phases. Parents come before children in `old`.

    In a CASCADING tree each has the least amount, old and new, of the group and all its ancestors. A tree has one
    currency, so where that changes there are none between the phases. A group that is alone needs no phases.
    """
    parents = {group.parent for group in old.values()}
    currencies = defaultdict[str, set[str]](set)
    roots = {key: path_up(group, old)[-1].external_entity_id for key, group in old.items()}
    for key, root in roots.items():
        currencies[root] |= {limit.currency for limit in (*old[key].spend_limits, *new[key].spend_limits)}
    least: dict[str, dict[str, SpendLimit]] = {}
    between: dict[str, SpendLimits] = {}
    for key, group in old.items():
        own = group.spend_limits
        is_alone = group.parent is None and key not in parents
        least[key] = _least(own, new[key].spend_limits, least.get(group.parent or "", {}))
        if is_alone:
            between[key] = own
        elif len(currencies[roots[key]]) > 1:
            between[key] = ()
        elif group.enforcement is Enforcement.CASCADING:
            units = {limit.unit for limit in (*own, *new[key].spend_limits)}
            between[key] = tuple([least[key][unit] for unit in USAGE_UNITS if unit in units])
        else:
            between[key] = own
    return between


def _least(old: SpendLimits, new: SpendLimits, above: Mapping[str, SpendLimit]) -> dict[str, SpendLimit]:
    least = dict(above)
    for limit in (*old, *new):
        amount = least[limit.unit].amount if limit.unit in least else limit.amount
        least[limit.unit] = replace(limit, amount=min(amount, limit.amount))
    return least


def illegal_spend(groups: Mapping[str, Group]) -> list[str]:
    """Return the faults in these groups' spend limits: two currencies in a tree, an amount above an ancestor's."""
    faults: list[str] = []
    by_root = defaultdict[str, list[SpendLimit]](list)
    for group in groups.values():
        if group.spend_limits:
            path = path_up(group, groups)
            by_root[path[-1].external_entity_id] += group.spend_limits
            if group.enforcement is Enforcement.CASCADING:
                faults += [fault for above in path[1:] for fault in _above(group, above)]
    for root, limits in by_root.items():
        try:
            check_currency(limits)
        except TreeCurrencyError as error:
            faults.append(f"group {root}: {error}")
    return faults


def _above(group: Group, above: Group) -> Iterator[str]:
    own = amounts(group.spend_limits)
    ceilings = amounts(above.spend_limits)
    for unit in exceeding(ceilings, own):
        figures = (amount_text(own[unit]), amount_text(ceilings[unit]))
        yield _fault(group.external_entity_id, above, f"spend per {unit}", figures)


def _fault(key: str, above: Group, what: str, figures: tuple[str, str]) -> str:
    """`figures`: the limit, and that of the group above."""
    threshold, ceiling = figures
    name = above.external_entity_id
    return (
        f"group {key}: {what} {threshold} exceeds {ceiling} of {name}, a group above it; choose at most {ceiling}, or"
        f" raise it there"
    )
