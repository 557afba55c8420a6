"""The group tree: parents, at most five levels, enforcement fixed at creation.

See docs/reference/management-api.md#the-group-tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from policy.limits.limit import SlugLimits

MAX_DEPTH = 5
"""Levels of a tree, its root included."""
MAX_MODELS = 1000
"""Entries of one group's `models`, when it is written. What was written before there was a bound stays as it is."""


Tuple = tuple[str, str, str]
"""What a threshold is of: slug, type, unit."""


class Enforcement(StrEnum):
    """INDEPENDENT: usage is metered per group. CASCADING: a child's usage counts against every ancestor."""

    INDEPENDENT = "INDEPENDENT"
    CASCADING = "CASCADING"


@dataclass(frozen=True, slots=True)
class Group:
    """One group as the rules see it; `models` is what is written on it, not what it inherits."""

    id: str
    workspace_id: str
    parent_id: str | None
    external_entity_id: str
    enforcement: Enforcement
    models: tuple[SlugLimits, ...]

    def entry(self, slug: str) -> SlugLimits | None:
        """This group's own entry for `slug`; None when it names no such slug."""
        return next((entry for entry in self.models if entry.slug == slug), None)


class GroupRuleError(ValueError):
    """A rule of the tree is broken; the message is what the operator reads."""


class ChildExceedsParentError(GroupRuleError):
    """Child group exceeds parent group limit."""

    def __init__(self) -> None:
        super().__init__("Child group exceeds parent group limit.")


def inherit_enforcement(asked: Enforcement | None, parent: Group | None) -> Enforcement:
    """The mode of a new group: the parent's; for a root what was asked, INDEPENDENT when nothing was."""
    if parent is None:
        return asked or Enforcement.INDEPENDENT
    if asked is not None and asked is not parent.enforcement:
        raise GroupRuleError(f"hierarchy.limit_enforcement must be the parent's, {parent.enforcement}")
    return parent.enforcement


def check_depth(ancestors: Sequence[Group]) -> None:
    """Raise when a child below `ancestors` (parent first) would be on a sixth level."""
    if len(ancestors) >= MAX_DEPTH:
        raise GroupRuleError(f"a group tree has at most {MAX_DEPTH} levels")


def check_below(upper: Iterable[SlugLimits], lower: Iterable[SlugLimits]) -> None:
    """Raise `ChildExceedsParentError` when a threshold in `lower` is above one in `upper` for the same tuple.

    For CASCADING trees only. Call it with each ancestor above a changed group, and with each descendant below it.
    """
    ceilings = thresholds(upper)
    for key, threshold in thresholds(lower).items():
        check_under(ceilings, key, threshold)


def check_under(ceilings: Mapping[Tuple, int], key: Tuple, threshold: int) -> None:
    """The same for one threshold, where there are very many below: `ceilings` are made once."""
    if threshold > ceilings.get(key, threshold):
        raise ChildExceedsParentError


def tightened(old: Iterable[SlugLimits], new: Iterable[SlugLimits]) -> dict[Tuple, int]:
    """What `new` says lower than `old`, or first: nothing else can make a group below exceed its ancestor."""
    before = thresholds(old)
    return {key: threshold for key, threshold in thresholds(new).items() if threshold < before.get(key, threshold + 1)}


def thresholds(models: Iterable[SlugLimits]) -> dict[Tuple, int]:
    return {(entry.slug, limit.type, limit.unit): limit.threshold for entry in models for limit in entry.limits}
