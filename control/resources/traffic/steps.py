"""The steps of traffic that a chart shows.

See docs/reference/management-api.md#traffic.
"""

from enum import StrEnum

from control.errors import InvalidFieldError
from control.records.traffic import HOURS, MINUTES, QUARTER_DAYS, QUARTERS, StepRange


class Period(StrEnum):
    """The period that a chart shows."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


_CHARTS = {
    Period.HOUR: ((MINUTES, 60),),
    Period.DAY: ((QUARTERS, 96), (HOURS, 24)),
    Period.MONTH: ((QUARTER_DAYS, 120),),
}
"""The steps that show a period, and how many of them; the second ones where the first are not kept any more."""


def span_of(period: Period, end_ms: int | None, now_ms: int) -> StepRange:
    """The steps of the period whose last one contains `end_ms`, or now. InvalidFieldError if they are not kept."""
    last_ms = now_ms if end_ms is None else min(end_ms - 1, now_ms)
    for steps, count in _CHARTS[period]:
        first_ms = (last_ms // steps.length_ms - count + 1) * steps.length_ms
        if first_ms >= now_ms - steps.kept_s * 1000:
            return StepRange(steps, first_ms, count)
    raise InvalidFieldError(
        "end_time", "minutes are kept for 2 days, hours for 31: ask for a later time or a longer period"
    )
