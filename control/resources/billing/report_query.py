"""Requests for a usage report: which calls, what groups them, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql.billing.sum_records import Apart
from control.records.events import EventWindow
from control.records.usage_sums import Usage
from control.resources.billing.report_groups import Grouping, Totals

COST = "cost"
UNPRICED_CALLS = "unpriced_calls"
SUMS: Sequence[str] = (*Usage._fields, UNPRICED_CALLS, COST)
"""The sums by which a report can be ordered."""


@dataclass(frozen=True, slots=True)
class ReportOrder:
    """The order of a report's groups: by a sum of `SUMS`, then by name. `currency`: the one of costs."""

    by: str
    is_descending: bool
    currency: str = ""

    def place(self, totals: Totals) -> int:
        """The first part of a group's place among all."""
        return -self._sum(totals) if self.is_descending else self._sum(totals)

    def _sum(self, totals: Totals) -> int:
        if self.by == COST:
            return totals.units.get(self.currency, 0)
        if self.by == UNPRICED_CALLS:
            return totals.unpriced_calls
        figure: int = getattr(totals.usage, self.by)
        return figure


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """The events of a report, and what groups them. The window names at most one entity, and no keys.

    `slug`: only calls of this one. `rolls_up`: the calls of a group include those of the groups below it. Then entities
    stand for groups, by their ids, and other groupings need an entity. Without an `order`, groups are in that of names.
    """

    window: EventWindow
    by: Grouping
    slug: str | None = None
    rolls_up: bool = False
    order: ReportOrder | None = None

    @property
    def apart(self) -> Apart:
        if self.rolls_up:
            return Apart.PATH
        return Apart.KEY if self.by is Grouping.KEY else Apart.NOTHING

    @property
    def entity(self) -> str | None:
        return next(iter(self.window.external_entity_ids), None)
