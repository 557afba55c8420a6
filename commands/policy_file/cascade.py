"""The order in which limits of CASCADING trees may change, so that every step keeps control's rules. Pure.

First each group is tightened, from the leaves up; then each gets its final limits, from the root down.
See docs/reference/policy-files.md#the-order-of-changes and docs/decisions/0039-policy-files.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commands.policy_file.trees import path_up
from commands.policy_file.values import Group
from policy.limits.groups import Enforcement, ThresholdKey, thresholds
from policy.limits.limit import Limit, SlugLimits


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
        yield Limit(limit.type, limit.unit, ceilings[slug, limit.type, limit.unit])


def exceeding_limits(groups: Mapping[str, Group]) -> list[str]:
    """Return the faults in these groups' limits: each threshold that exceeds an ancestor's in a CASCADING tree."""
    own = {key: thresholds(group.models) for key, group in groups.items()}
    faults: list[str] = []
    for key, group in groups.items():
        if group.enforcement is not Enforcement.CASCADING:
            continue
        for above in path_up(group, groups)[1:]:
            for (slug, type, unit), threshold in own[key].items():
                ceiling = own[above.external_entity_id].get((slug, type, unit), threshold)
                if threshold > ceiling:
                    over = f"{threshold} exceeds {ceiling} of {above.external_entity_id}"
                    faults.append(f"group {key}: {slug} {type} per {unit} {over}")
    return faults
