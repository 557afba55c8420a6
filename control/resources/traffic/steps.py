"""Traffic is kept in steps of three lengths, one for each period that is shown. All three are written at once.

See docs/reference/management-api.md#traffic.
"""

from dataclasses import dataclass
from enum import StrEnum

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


class Period(StrEnum):
    """What a chart shows."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Steps:
    """A period's steps. `kept_s`: older ones are deleted."""

    length_s: int
    count: int
    kept_s: int

    @property
    def length_ms(self) -> int:
        return self.length_s * 1000

    def first_ms(self, now_ms: int) -> int:
        """The start of the first step shown. The last one contains `now_ms`."""
        return (now_ms // self.length_ms - self.count + 1) * self.length_ms


STEPS = {
    Period.HOUR: Steps(60, 60, 3 * _HOUR_S),
    Period.DAY: Steps(900, 96, 2 * _DAY_S),
    Period.MONTH: Steps(6 * _HOUR_S, 120, 31 * _DAY_S),
}
