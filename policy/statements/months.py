"""Calendar months in UTC, as statements are for. Pure."""

import re
from datetime import UTC, datetime

_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")


def month_window(text: str) -> tuple[str, str]:
    """The start of the month `2026-11`, and of the next one, in ISO 8601. Raises ValueError."""
    start, end = month_bounds(text)
    return _text(start), _text(end)


def month_bounds(text: str) -> tuple[datetime, datetime]:
    """The start of the month, and of the next one. Raises ValueError."""
    form = _MONTH.fullmatch(text)
    try:
        if form is None:
            raise ValueError(text)
        year = int(form[1])
        month = int(form[2])
        start = datetime(year, month, 1, tzinfo=UTC)
        end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    except ValueError:
        raise ValueError("expected a month such as 2026-11") from None
    return start, end


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
