"""The limits that bind a call of (group, slug), and the group that each comes from.

Control renders `effective_models` with the same function that the proxy admits by, so the two cannot differ.

See docs/reference/limits.md#which-limits-bind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, cast

from policy.limits.counter_layout import bucket_key, kind_mask
from policy.limits.groups import Enforcement, Group, GroupNode
from policy.limits.kinds import KIND_NUMBER, compared_unit
from policy.limits.limit import Limit

_LIMITS = attrgetter("limits")


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that binds a call, the group that configures it, and the group whose bucket counts it."""

    limit: Limit
    source_group: str
    counting_group: str


@dataclass(frozen=True, slots=True, eq=False)
class LimitSet:
    """Limits that one bucket counts, in the order of trial. `mask`: their `kind_mask`. `limit_set` makes them."""

    limits: tuple[Limit, ...]
    mask: int
    thresholds: tuple[int, ...]


class Plan(NamedTuple):
    """The limits that bind calls of one (group, slug)."""

    slug: str
    group_id: str
    key: str
    """The Redis hash that counts them."""
    groups: tuple[str, ...]
    """The groups whose buckets count a call, in the order of trial."""
    limits: tuple[LimitSet, ...]
    """The limits of each of these groups' buckets."""
    sources: tuple[str, ...] = ()
    """The group that configures each limit of the one set, if INDEPENDENT. Else each group configures its own."""

    def bound(self, index: int) -> Bound:
        """The limit with this place in `bounds`, from 0."""
        place = index
        for group, own in zip(self.groups, self.limits, strict=True):
            if place < len(own.limits):
                return Bound(own.limits[place], self.sources[index] if self.sources else group, group)
            place -= len(own.limits)
        raise IndexError(index)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """All limits that bind, in the order of trial."""
        pairs = [(limit, group) for group, own in zip(self.groups, self.limits, strict=True) for limit in own.limits]
        sources = self.sources or [group for _, group in pairs]
        return tuple([Bound(limit, source, group) for (limit, group), source in zip(pairs, sources, strict=True)])


@lru_cache(4096)
def limit_set(limits: tuple[Limit, ...]) -> LimitSet:
    """The set of limits that one group has for one slug."""
    ordered = tuple(sorted(limits, key=lambda limit: KIND_NUMBER[limit.type, limit.unit]))
    return LimitSet(ordered, kind_mask(ordered), tuple(limit.threshold for limit in ordered))


def bounds_of_each(path: Sequence[Group]) -> Iterator[tuple[str, tuple[Bound, ...]]]:
    """Each slug of `path[0]` with the limits that bind its calls, in time linear in the entries of the path."""
    entries = [{entry.slug: limit_set(entry.limits) for entry in group.models} for group in path]
    for slug in entries[0]:
        plan = plan_for(path, slug, [own.get(slug) for own in entries])
        if plan is not None:
            yield slug, plan.bounds


def plan_for(path: Sequence[GroupNode], slug: str, limits: Sequence[LimitSet | None]) -> Plan | None:
    """The plan of a call of `path[0]`. `path` is the group itself, then its parent, and so on to the root."""
    return plan_of_ids([group.id for group in path], path[0].enforcement, slug, limits)


def plan_of_ids(
    ids: Sequence[str], enforcement: Enforcement, slug: str, limits: Sequence[LimitSet | None]
) -> Plan | None:
    """The same by the ids of the groups, and the enforcement of their tree.

    `limits`: those of each group in its own `models` for the slug. None if the first one has nothing there: ancestors
    add limits, never access.
    """
    if limits[0] is None:
        return None
    if enforcement is not Enforcement.CASCADING:
        return _nearest(ids, limits, slug)
    key = bucket_key(ids[-1], slug)
    if None not in limits and all(map(_LIMITS, limits)):  # nearly always: then plans share what they are made of
        return Plan(slug, ids[0], key, tuple(ids), tuple(cast("Sequence[LimitSet]", limits)))
    groups = tuple([id for id, own in zip(ids, limits, strict=True) if own is not None and own.limits])
    sets = tuple([own for own in limits if own is not None and own.limits])
    return Plan(slug, ids[0], key, groups, sets)


def counting_owner(path: Sequence[GroupNode]) -> GroupNode:
    """The group in the key of the hash that counts a call of `path[0]`."""
    return path[-1] if path[0].enforcement is Enforcement.CASCADING else path[0]


def _nearest(ids: Sequence[str], limits: Sequence[LimitSet | None], slug: str) -> Plan:
    """Plan an INDEPENDENT group: for each (type, unit) the nearest group's limit, counted in its own bucket."""
    nearest_limits: dict[tuple[str, str], tuple[Limit, str]] = {}
    for id, own in zip(ids, limits, strict=True):
        for limit in own.limits if own is not None else ():
            nearest_limits.setdefault((limit.type, compared_unit(limit.type, limit.unit)), (limit, id))
    caller = ids[0]
    key = bucket_key(caller, slug)
    if not nearest_limits:
        return Plan(slug, caller, key, (), ())
    nearest = limit_set(tuple(limit for limit, _ in nearest_limits.values()))
    sources = tuple(nearest_limits[limit.type, compared_unit(limit.type, limit.unit)][1] for limit in nearest.limits)
    return Plan(slug, caller, key, (caller,), (nearest,), sources)


def plan_of_limits(name: str, owner: str, key: str, limits: tuple[Limit, ...]) -> Plan:
    """A plan of limits that one owner, which need not be a group, has and counts."""
    return Plan(name, owner, key, (owner,), (limit_set(limits),))
