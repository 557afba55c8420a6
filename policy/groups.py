"""The group tree: parents, at most five levels, enforcement fixed at creation (spec 2.5, 7.2, 8.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from policy.limits import LimitType, SlugLimits, Unit

MAX_DEPTH = 5
"""Levels of a tree, its root included (spec 8.2)."""
MAX_MODELS = 1000
"""Entries of one group's `models`, when it is written. What was written before there was a bound stays as it is."""


class Enforcement(StrEnum):
    """INDEPENDENT: usage is metered per group. CASCADING: a child's usage counts against every ancestor (spec 8.2)."""

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
        super().__init__("Child group exceeds parent group limit.")  # spec 7.2, to the letter


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
    ceilings = _thresholds(upper)
    for key, threshold in _thresholds(lower).items():
        if threshold > ceilings.get(key, threshold):
            raise ChildExceedsParentError


def _thresholds(models: Iterable[SlugLimits]) -> dict[tuple[str, LimitType, Unit], int]:
    return {(entry.slug, limit.type, limit.unit): limit.threshold for entry in models for limit in entry.limits}
