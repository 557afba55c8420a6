"""The news of a group's limits: what is to be told, and what may be told again. Pure.

See docs/reference/events-and-webhooks.md#alerts.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from control.records.limits.alerts import BALANCE, Alert, LimitFigures, WatchedGroup
from policy.limits.alerts import (
    BALANCE_EXHAUSTED,
    LIMIT_ALERT,
    LIMIT_REACHED,
    WHOLE,
    LimitName,
    PastAlert,
    crossed_percents,
    rearmed,
)


@dataclass(frozen=True, slots=True)
class LimitNews:
    """The news of one limit. `again`: alerts that may be told again. `is_raised`: it was, since it was told."""

    figures: LimitFigures
    again: Sequence[PastAlert]
    is_raised: bool
    crossings: Sequence[tuple[str, int]]
    """Types of messages and percents that are to be told."""

    def alerts(self, group: WatchedGroup, new_id: Callable[[], str]) -> Iterator[Alert]:
        entity = group.record.group.external_entity_id
        for message_type, percent in self.crossings:
            yield Alert(new_id(), group.id, entity, message_type, percent, self.figures)


def limit_news(figures: LimitFigures, past: Sequence[PastAlert], refused: Collection[LimitName]) -> LimitNews | None:
    """The news of a limit whose alerts in this window are `past`; None if there are none.

    `refused`: limits that have refused a call since they were looked at.
    """
    again = rearmed(past, figures.threshold, figures.use, deposited=figures.deposited)
    present = {(one.message_type, one.percent) for one in past if one not in again}
    is_raised = any(one.threshold < figures.raised_to for one in past)
    crossed = crossed_percents(figures.percents, figures.threshold, figures.use)
    due = [(LIMIT_ALERT, percent) for percent in crossed]
    if figures.limit in refused and not figures.leaves_room:
        due.append((BALANCE_EXHAUSTED if figures.limit.kind == BALANCE else LIMIT_REACHED, WHOLE))
    crossings = [one for one in due if one not in present]
    return LimitNews(figures, again, is_raised, crossings) if is_raised or crossings else None
