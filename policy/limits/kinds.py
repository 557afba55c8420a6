"""The table of limit kinds: what a limit counts, in which window, and the number of each pair.

All else about kinds is made from it: windows, counter layout, constants of the Lua scripts, what the management API,
policy files and the command line accept, the console's lists, the words of refusals (CONTRIBUTING.md#a-limit-kind).

See docs/reference/limits.md#kinds.
"""

from datetime import date, timedelta
from enum import Enum, StrEnum
from typing import NamedTuple

from policy.billing import Tokens

_EPOCH = date(1970, 1, 1)


class TokenParts(NamedTuple):
    """The parts of a call's tokens that a type counts."""

    uncached_input: bool = False
    cached_input: bool = False
    output: bool = False


class Rolling(NamedTuple):
    """A rolling window. Events of one granule share an entry of its log."""

    window_ms: int
    granule_ms: int


class Calendar(Enum):
    """Windows of the UTC calendar."""

    DAY = "day"
    MONTH = "month"


class LimitType(StrEnum):
    """The type of a limit: its name, the noun for people, and which tokens count. None: each call counts as 1.

    `is_concurrent`: calls count while they are in flight, whatever the unit of the limit is.
    """

    noun: str
    parts: TokenParts | None
    is_concurrent: bool

    def __new__(cls, name: str, noun: str, parts: TokenParts | None, is_concurrent: bool = False) -> "LimitType":
        member = str.__new__(cls, name)
        member._value_ = name
        member.noun = noun
        member.parts = parts
        member.is_concurrent = is_concurrent
        return member

    REQUEST = "REQUEST", "requests", None
    TOKEN = "TOKEN", "tokens", TokenParts(uncached_input=True, cached_input=True, output=True)
    UNCACHED_INPUT_TOKEN = "UNCACHED_INPUT_TOKEN", "uncached input tokens", TokenParts(uncached_input=True)
    OUTPUT_TOKEN = "OUTPUT_TOKEN", "output tokens", TokenParts(output=True)
    CONCURRENT_REQUEST = "CONCURRENT_REQUEST", "requests in flight", None, True

    __hash__ = str.__hash__  # an enumeration's own takes ten times as long

    def amount(self, tokens: Tokens) -> int:
        """The number of a call's tokens that count."""
        if self.parts is None:
            return 0
        cached = min(tokens.cached_input, tokens.input)
        figures = (tokens.input - cached, cached, tokens.output)
        return sum(figure for figure, counts in zip(figures, self.parts, strict=True) if counts)


class Unit(StrEnum):
    """The window of a limit. Rate limits have a rolling one, usage limits one of the calendar."""

    window: Rolling | Calendar

    def __new__(cls, name: str, window: Rolling | Calendar) -> "Unit":
        member = str.__new__(cls, name)
        member._value_ = name
        member.window = window
        return member

    SECOND = "SECOND", Rolling(window_ms=1_000, granule_ms=20)
    MINUTE = "MINUTE", Rolling(window_ms=60_000, granule_ms=1_000)
    DAY = "DAY", Calendar.DAY
    MONTH = "MONTH", Calendar.MONTH

    __hash__ = str.__hash__

    @property
    def is_rolling(self) -> bool:
        return isinstance(self.window, Rolling)


RATE_UNITS = tuple(unit for unit in Unit if unit.is_rolling)
USAGE_UNITS = tuple(unit for unit in Unit if not unit.is_rolling)

Kind = tuple[LimitType, Unit]

KINDS: tuple[Kind, ...] = (
    (LimitType.REQUEST, Unit.SECOND),
    (LimitType.REQUEST, Unit.MINUTE),
    (LimitType.TOKEN, Unit.SECOND),
    (LimitType.TOKEN, Unit.MINUTE),
    (LimitType.REQUEST, Unit.DAY),
    (LimitType.TOKEN, Unit.DAY),
    (LimitType.UNCACHED_INPUT_TOKEN, Unit.SECOND),
    (LimitType.UNCACHED_INPUT_TOKEN, Unit.MINUTE),
    (LimitType.OUTPUT_TOKEN, Unit.SECOND),
    (LimitType.OUTPUT_TOKEN, Unit.MINUTE),
    (LimitType.UNCACHED_INPUT_TOKEN, Unit.DAY),
    (LimitType.OUTPUT_TOKEN, Unit.DAY),
    (LimitType.REQUEST, Unit.MONTH),
    (LimitType.TOKEN, Unit.MONTH),
    (LimitType.UNCACHED_INPUT_TOKEN, Unit.MONTH),
    (LimitType.OUTPUT_TOKEN, Unit.MONTH),
    (LimitType.CONCURRENT_REQUEST, Unit.SECOND),
    (LimitType.CONCURRENT_REQUEST, Unit.MINUTE),
)
"""The kinds of limits, in the order of trial. Their numbers count from 1, and are stored in Redis and in journals: they
never change, so new kinds come last."""

KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS, 1)}
TOKEN_TYPES = tuple(type for type in LimitType if type.parts is not None)
"""The types that count tokens. TOKEN, which counts all of them, is the first."""
CONCURRENT_TYPES = frozenset(type for type in LimitType if type.is_concurrent)
USAGE_TYPES = tuple(type for type in LimitType if not type.is_concurrent)
"""The types that usage limits can have."""


def compared_unit(type: str, unit: str) -> str:
    """The unit by which limits of this type are told apart: "" where it does not matter."""
    return "" if type in CONCURRENT_TYPES else unit


def window_number(calendar: Calendar, day: int) -> int:
    """The number of the window that has this UTC day, counted from 1970-01-01. Months count from March of year 0."""
    if calendar is Calendar.DAY:
        return day
    then = _EPOCH + timedelta(days=day)
    return 12 * then.year + then.month - 3


def days_left(calendar: Calendar, day: int) -> int:
    """The number of days that the window has from this one on, with it."""
    number = window_number(calendar, day)
    count = 1
    while window_number(calendar, day + count) == number:
        count += 1
    return count
