"""Which limits bind a call of (group, slug), and which group each comes from.

Control renders `effective_models` with the same function that the proxy admits by, so the two cannot differ.

See docs/reference/limits.md#which-limits-bind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policy.groups import Enforcement, Group, GroupNode
from policy.limits.counter_layout import KIND_NUMBER, bucket_key
from policy.limits.limit import Limit, LimitType, SlugLimits, Unit


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that binds a call, the group that configures it, and the group whose bucket counts it."""

    limit: Limit
    source_group: str
    counting_group: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What admission needs to know of one (group, slug). `key`: its hash. `bounds`: in the order of trial."""

    slug: str
    group_id: str
    key: str
    bounds: tuple[Bound, ...]


def bounds_of_each(path: Sequence[Group]) -> Iterator[tuple[str, tuple[Bound, ...]]]:
    """Each slug of `path[0]` with the limits that bind its calls, in time linear in the entries of the path."""
    levels = [{entry.slug: entry.limits for entry in group.models} for group in path]
    for entry in path[0].models:
        yield entry.slug, _bounds(path, [level.get(entry.slug, ()) for level in levels])


def _bounds(path: Sequence[GroupNode], levels: Sequence[tuple[Limit, ...]]) -> tuple[Bound, ...]:
    """In the order of trial. `levels`: for each group of the path, the limits that it configures for the slug."""
    if path[0].enforcement is Enforcement.CASCADING:
        found = [
            Bound(limit, group.id, group.id) for group, limits in zip(path, levels, strict=True) for limit in limits
        ]
    else:
        found = _nearest(path, levels)
    rank = {group.id: depth for depth, group in enumerate(path)}
    found.sort(key=lambda b: (rank[b.counting_group], KIND_NUMBER[b.limit.type, b.limit.unit]))
    return tuple(found)


def plan_for(path: Sequence[GroupNode], entries: Sequence[SlugLimits | None]) -> Plan | None:
    """The plan of a call of `path[0]`. `path` is the group itself, then its parent, and so on to the root.

    `entries`: what each group of the path has in its own `models` for the slug that is called. None if `path[0]` has
    nothing there: ancestors add limits, never access.
    """
    caller = path[0]
    own = entries[0]
    if own is None:
        return None
    levels = [() if entry is None else entry.limits for entry in entries]
    return Plan(own.slug, caller.id, bucket_key(counting_owner(path).id, own.slug), _bounds(path, levels))


def counting_owner(path: Sequence[GroupNode]) -> GroupNode:
    """The group in the key of the hash that counts a call of `path[0]`."""
    return path[-1] if path[0].enforcement is Enforcement.CASCADING else path[0]


def _nearest(path: Sequence[GroupNode], levels: Sequence[tuple[Limit, ...]]) -> list[Bound]:
    """INDEPENDENT: for each (type, unit) the limit of the nearest group; the calling group's own bucket counts it."""
    chosen: dict[tuple[LimitType, Unit], Bound] = {}
    for group, limits in zip(path, levels, strict=True):
        for limit in limits:
            chosen.setdefault((limit.type, limit.unit), Bound(limit, group.id, path[0].id))
    return list(chosen.values())
