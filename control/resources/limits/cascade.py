"""The cascade: which limits of other groups forbid those of a changed group (docs/reference/management-api.md).

Thresholds and amounts of spend limits are compared alike, by a key: slug, type and unit; or the unit alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Generic, TypeVar

from control.edges.sql import group_rows
from control.edges.sql.store import Connection
from control.errors import ChildExceedsParentLimitError, LimitConflict, Neighbour
from control.long_work import CHARS_PER_ITEM, beside
from control.records.policy import GroupRecord
from policy.limits.groups import ThresholdKey, exceeding, threshold_key, thresholds, tightened
from policy.limits.kinds import Unit
from policy.limits.limit import SlugLimits
from policy.prices import amount_text
from policy.spend.limits import SpendLimit, amounts

K = TypeVar("K")
V = TypeVar("V", int, Decimal)
SPEND = "SPEND"
"""The type that stands for spend limits where types of limits are listed."""


@dataclass(frozen=True, slots=True)
class Other(Generic[V]):
    """The limit of another group."""

    value: V
    group: Neighbour


async def check_thresholds(
    conn: Connection, old: GroupRecord | None, new: GroupRecord, ancestors: Sequence[GroupRecord]
) -> None:
    """Check the thresholds of a new or changed group of a CASCADING tree, which is locked. `old`: None for a new one.

    Raises `ChildExceedsParentLimitError`, with the tightest limit above and below for each that is refused.
    """
    workspace_id = new.group.workspace_id
    entries = len(new.group.models) * (1 + len(ancestors))
    above = await beside(workspace_id, entries, partial(_above, new.group.models, ancestors))
    lowered = {} if old is None else await beside(workspace_id, entries, partial(_lowered, old, new))
    below: dict[ThresholdKey, Other[int]] = {}
    if lowered:
        async for groups in group_rows.models_below(conn, new):
            items = sum(len(group.text) for group in groups) // CHARS_PER_ITEM
            await beside(workspace_id, items, partial(_add_below, below, lowered, groups, _thresholds_of))
    if above or below:
        raise ChildExceedsParentLimitError(list(_explained(new.group.models, above, below)))


async def check_amounts(
    conn: Connection, old: GroupRecord | None, new: GroupRecord, ancestors: Sequence[GroupRecord]
) -> None:
    """The same for the amounts of spend limits."""
    own = amounts(new.spend_limits)
    above = _tightest(own, [(ancestor, amounts(ancestor.spend_limits)) for ancestor in ancestors])
    before = {} if old is None else amounts(old.spend_limits)
    lowered = {unit: value for unit, value in own.items() if unit not in before or value < before[unit]}
    below: dict[Unit, Other[Decimal]] = {}
    if lowered and old is not None:
        async for groups in group_rows.spend_limits_below(conn, new):
            items = sum(len(group.text) for group in groups) // CHARS_PER_ITEM
            await beside(new.group.workspace_id, items, partial(_add_below, below, lowered, groups, _amounts_of))
    if above or below:
        raise ChildExceedsParentLimitError(list(_explained_spend(new.spend_limits, above, below)))


def _above(models: Sequence[SlugLimits], ancestors: Sequence[GroupRecord]) -> dict[ThresholdKey, Other[int]]:
    return _tightest(thresholds(models), [(ancestor, thresholds(ancestor.group.models)) for ancestor in ancestors])


def _tightest(own: Mapping[K, V], uppers: Iterable[tuple[GroupRecord, Mapping[K, V]]]) -> dict[K, Other[V]]:
    """The least limit above of each own one that exceeds it. The nearest group's, where several are alike."""
    least: dict[K, Other[V]] = {}
    for record, ceilings in uppers:
        for key in exceeding(ceilings, own):
            if key not in least or ceilings[key] < least[key].value:
                group = Neighbour(record.group.id, record.group.external_entity_id, record.name)
                least[key] = Other(ceilings[key], group)
    return least


def _lowered(old: GroupRecord, new: GroupRecord) -> dict[ThresholdKey, int]:
    return tightened(old.group.models, new.group.models)


def _add_below(
    greatest: dict[K, Other[V]],
    ceilings: Mapping[K, V],
    groups: Sequence[group_rows.TextBelow],
    limits_of: Callable[[str], Iterable[tuple[K, V]]],
) -> None:
    """Note the greatest limit of these groups above each ceiling."""
    for group in groups:
        for key, value in limits_of(group.text):
            if value > ceilings.get(key, value) and (key not in greatest or value > greatest[key].value):
                greatest[key] = Other(value, Neighbour(group.id, group.external_entity_id, group.name))


def _thresholds_of(text: str) -> Iterator[tuple[ThresholdKey, int]]:
    for entry in group_rows.models_entries(text):
        for limit in (*entry["rate_limits"], *entry["usage_limits"]):
            yield threshold_key(entry["slug"], limit["type"], limit["unit"]), limit["threshold"]


def _amounts_of(text: str) -> Iterable[tuple[Unit, Decimal]]:
    return amounts(group_rows.spend_limits_of(text)).items()


def _explained(
    models: Sequence[SlugLimits], above: Mapping[ThresholdKey, Other[int]], below: Mapping[ThresholdKey, Other[int]]
) -> Iterator[LimitConflict]:
    for place, entry in enumerate(models):
        for name, limits in (("rate_limits", entry.rate_limits), ("usage_limits", entry.usage_limits)):
            for index, limit in enumerate(limits):
                key = threshold_key(entry.slug, limit.type, limit.unit)
                for others in (above, below):
                    if key in others:
                        yield LimitConflict(
                            f"models.{place}.{name}.{index}.threshold",
                            limit.threshold,
                            others[key].value,
                            others[key].group,
                            is_above=others is above,
                            type=limit.type,
                            unit=limit.unit,
                            slug=entry.slug,
                        )


def _explained_spend(
    limits: Sequence[SpendLimit], above: Mapping[Unit, Other[Decimal]], below: Mapping[Unit, Other[Decimal]]
) -> Iterator[LimitConflict]:
    for limit in limits:
        for others in (above, below):
            if limit.unit in others:
                yield LimitConflict(
                    "spend_limits",
                    amount_text(limit.amount),
                    amount_text(others[limit.unit].value),
                    others[limit.unit].group,
                    is_above=others is above,
                    type=SPEND,
                    unit=limit.unit,
                    currency=limit.currency,
                )
