"""Times on the command line: ISO 8601, a date, so long ago (`24h`), or a word (`today`). All days are of UTC.

For a time to come, `30d` is so long from now.
"""

import re
from datetime import UTC, datetime, timedelta

import click

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
EXPECTED = (
    "expected ISO 8601 (2026-11-01, 2026-11-01T08:00:00Z; UTC without an offset), so long ago (15m, 24h, 7d), or now,"
    " today, yesterday, month"
)
TIMES = "ISO 8601, so long ago (24h, 7d), now, today, yesterday, month"
"""The same, for the help of flags."""
EXPECTED_END = (
    "expected ISO 8601 (2027-01-31, 2027-01-31T08:00:00Z; UTC without an offset), or so long from now (12h, 30d)"
)
EXPECTED_SPAN = "expected a number of seconds, minutes, hours, days or weeks: 90s, 15m, 1h, 7d, 2w"
_STEPS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def api_time(text: str, now: datetime) -> str:
    """`text` as the management API takes it: ISO 8601 in UTC, in milliseconds, rounded up. Raises ValueError."""
    try:
        return _wire(_moment(text, now))
    except (ValueError, OverflowError):
        raise ValueError(EXPECTED) from None


def end_time(text: str, now: datetime) -> str:
    """The same for a time to come: `30d` is so long from now, and words name no such time. Raises ValueError."""
    try:
        return _wire(now + _time_span(text) if _SPAN.fullmatch(text) else _iso_moment(text))
    except (ValueError, OverflowError):
        raise ValueError(EXPECTED_END) from None


def span_s(text: str) -> int:
    """The seconds of a span such as `1h`. Raises ValueError."""
    if not _SPAN.fullmatch(text):
        raise ValueError(EXPECTED_SPAN)
    return int(_time_span(text).total_seconds())


def until_text(text: str, now: datetime) -> str:
    """The span from now until the API's time `text`, in its largest unit, rounded down: `3 d`, `50 min`."""
    seconds = max(0, int((datetime.fromisoformat(text) - now).total_seconds()))
    unit, size = next(((unit, size) for unit, size in _STEPS if seconds >= size), _STEPS[-1])
    return f"{seconds // size} {unit}"


def _wire(moment: datetime) -> str:
    moment = moment.astimezone(UTC)
    moment += timedelta(microseconds=-moment.microsecond % 1000)  # the API's windows are in milliseconds
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(text: str, now: datetime) -> datetime:
    if _SPAN.fullmatch(text):
        return now - _time_span(text)
    if (start := _named_moment(text, now)) is not None:
        return start
    return _iso_moment(text)


def _iso_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _time_span(text: str) -> timedelta:
    return timedelta(**{_UNITS[text[-1]]: int(text[:-1])})


def _named_moment(word: str, now: datetime) -> datetime | None:
    """The moment that a word names: for a day or a month, its start in UTC."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match word:
        case "now":
            return now
        case "today":
            return today
        case "yesterday":
            return today - timedelta(days=1)
        case "month":
            return today.replace(day=1)
        case _:
            return None


def at_flag(_context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """The callback of a flag that takes a time."""
    return None if text is None else time_from(text, option.opts[0])


def time_from(text: str, flag: str) -> str:
    """The same for the value of a flag, now. Raises click.BadParameter."""
    try:
        return api_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=flag) from None
