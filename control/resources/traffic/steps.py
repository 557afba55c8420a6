"""Traffic is kept in steps of four lengths, all written at once: minutes for two days, hours for 31, and as long the
steps that the charts of a day and a month show.

See docs/reference/management-api.md#traffic.
"""

from dataclasses import dataclass
from enum import StrEnum

from control.resources.errors import InvalidFieldError

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


class Period(StrEnum):
    """What a chart shows."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one length. `kept_s`: older ones are deleted."""

    length_s: int
    kept_s: int

    @property
    def length_ms(self) -> int:
        return self.length_s * 1000


MINUTES = Steps(60, 2 * _DAY_S)
QUARTERS = Steps(900, 2 * _DAY_S)
HOURS = Steps(_HOUR_S, 31 * _DAY_S)
QUARTER_DAYS = Steps(6 * _HOUR_S, 31 * _DAY_S)
KEPT = (MINUTES, QUARTERS, HOURS, QUARTER_DAYS)
_CHARTS = {
    Period.HOUR: ((MINUTES, 60),),
    Period.DAY: ((QUARTERS, 96), (HOURS, 24)),
    Period.MONTH: ((QUARTER_DAYS, 120),),
}
"""The steps that show a period, and how many of them; the second ones where the first are not kept any more."""


@dataclass(frozen=True, slots=True)
class Span:
    """The `count` steps from `first_ms` on."""

    steps: Steps
    first_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        return self.first_ms + self.count * self.steps.length_ms


def span_of(period: Period, end_ms: int | None, now_ms: int) -> Span:
    """The steps of the period whose last one contains `end_ms`, or now. InvalidFieldError if they are not kept."""
    last_ms = now_ms if end_ms is None else min(end_ms - 1, now_ms)
    for steps, count in _CHARTS[period]:
        first_ms = (last_ms // steps.length_ms - count + 1) * steps.length_ms
        if first_ms >= now_ms - steps.kept_s * 1000:
            return Span(steps, first_ms, count)
    raise InvalidFieldError(
        "end_time", "minutes are kept for 2 days, hours for 31: ask for a later time or a longer period"
    )
