"""The steps that traffic is kept in: four lengths, all written at once; what is read of the list of requests.

Minutes are kept for two days, hours for 31, and as long the steps that the charts of a day and a month show.

See docs/reference/management-api.md#traffic.
"""

from dataclasses import dataclass

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


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


@dataclass(frozen=True, slots=True)
class StepRange:
    """The `count` steps from `first_ms` on."""

    steps: Steps
    first_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        return self.first_ms + self.count * self.steps.length_ms


RequestPosition = tuple[int, int]
"""(timestamp, id) of a row of the list of requests: where a page ended."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """The selection of rows of the list of requests; None for no filter. `statuses`: the least and the greatest."""

    workspace_id: str
    request_id: str | None = None
    external_entity_id: str | None = None
    api_key_prefix: str | None = None
    slug: str | None = None
    statuses: tuple[int, int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
