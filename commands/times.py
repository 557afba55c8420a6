"""Times on the command line: ISO 8601, a date, so long ago (`24h`), or a word (`today`). All days are of UTC."""

import re
from datetime import UTC, datetime, timedelta

import click

_AGO = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
EXPECTED = (
    "expected ISO 8601 (2026-11-01, 2026-11-01T08:00:00Z; UTC without an offset), so long ago (15m, 24h, 7d), or now,"
    " today, yesterday, month"
)
TIMES = "ISO 8601, so long ago (24h, 7d), now, today, yesterday, month"
"""The same, for the help of flags."""


def api_time(text: str, now: datetime) -> str:
    """`text` as the management API takes it: ISO 8601 in UTC, in milliseconds, rounded up. Raises ValueError."""
    try:
        moment = _moment(text, now).astimezone(UTC)
        moment += timedelta(microseconds=-moment.microsecond % 1000)  # the API's windows are in milliseconds
    except (ValueError, OverflowError):
        raise ValueError(EXPECTED) from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(text: str, now: datetime) -> datetime:
    if (ago := _AGO.fullmatch(text)) is not None:
        return now - timedelta(**{_UNITS[ago.group(2)]: int(ago.group(1))})
    if (start := _named_moment(text, now)) is not None:
        return start
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


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
