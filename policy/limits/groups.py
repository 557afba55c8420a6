"""The group tree: parents, at most five levels, enforcement fixed at creation.

See docs/reference/management-api.md#the-group-tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from policy.limits.kinds import compared_unit
from policy.limits.limit import SlugLimits

MAX_DEPTH = 5
"""The most levels of a tree, including its root."""
MAX_MODELS = 1000
"""Entries in one group's `models`. Checked on write only: larger groups from earlier versions stay valid."""

K = TypeVar("K")
V = TypeVar("V", int, Decimal)
ThresholdKey = tuple[str, str, str]
"""The key of a threshold: slug, type, unit; "" for a type whose unit does not matter."""


class Enforcement(StrEnum):
    """The way usage is metered. INDEPENDENT: per group. CASCADING: a child's usage counts against every ancestor."""

    INDEPENDENT = "INDEPENDENT"
    CASCADING = "CASCADING"


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A group's place in its tree, and whose it is: all of a group but its models, which may be thousands."""

    id: str
    workspace_id: str
    parent_id: str | None
    external_entity_id: str
    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class Group(GroupNode):
    """A group. `models` holds its own entries, without inherited ones."""

    models: tuple[SlugLimits, ...]


class GroupRuleError(ValueError):
    """A rule of the group tree is broken. The message is shown to the operator."""


def inherit_enforcement(requested: Enforcement | None, parent: Group | None) -> Enforcement:
    """The enforcement of a new group: its parent's; for a root the requested one, INDEPENDENT by default."""
    if parent is None:
        return requested or Enforcement.INDEPENDENT
    if requested is not None and requested is not parent.enforcement:
        raise GroupRuleError(f"hierarchy.limit_enforcement must be the parent's, {parent.enforcement}")
    return parent.enforcement


def check_depth(ancestors: Sequence[Group]) -> None:
    """Raise if a child below `ancestors` (parent first) would be on a sixth level."""
    if len(ancestors) >= MAX_DEPTH:
        raise GroupRuleError(f"a group tree has at most {MAX_DEPTH} levels")


def exceeding(ceilings: Mapping[K, V], limits: Mapping[K, V]) -> list[K]:
    """The keys of `limits` that exceed the ceiling of the same key. For CASCADING trees only.

    Call it for each ancestor, and for each descendant of a changed group; for thresholds and for amounts.
    """
    return [key for key, value in limits.items() if value > ceilings.get(key, value)]


def tightened(old: Iterable[SlugLimits], new: Iterable[SlugLimits]) -> dict[ThresholdKey, int]:
    """Thresholds that `new` lowers or adds. Only these can make a descendant exceed its ancestor."""
    before = thresholds(old)
    return {key: threshold for key, threshold in thresholds(new).items() if threshold < before.get(key, threshold + 1)}


def thresholds(models: Iterable[SlugLimits]) -> dict[ThresholdKey, int]:
    return {
        threshold_key(entry.slug, limit.type, limit.unit): limit.threshold for entry in models for limit in entry.limits
    }


def threshold_key(slug: str, type: str, unit: str) -> ThresholdKey:
    """The key by which the cascade compares a threshold with those of other groups."""
    return slug, type, compared_unit(type, unit)
