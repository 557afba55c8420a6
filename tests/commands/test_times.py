"""Times on the command line."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from commands.times import api_time

NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("15m", "2026-11-24T11:45:00.000Z"),
        ("24h", "2026-11-23T12:00:00.000Z"),
        ("2w", "2026-11-10T12:00:00.000Z"),
        ("2026-11-01", "2026-11-01T00:00:00.000Z"),
        ("2026-11-01T08:30", "2026-11-01T08:30:00.000Z"),
        ("2026-11-01T08:30:00.250+02:00", "2026-11-01T06:30:00.250Z"),
        ("2026-11-01T08:30:00Z", "2026-11-01T08:30:00.000Z"),
        ("now", "2026-11-24T12:00:00.000Z"),
        ("today", "2026-11-24T00:00:00.000Z"),
        ("yesterday", "2026-11-23T00:00:00.000Z"),
        ("month", "2026-11-01T00:00:00.000Z"),
    ],
)
def test_times_become_utc_with_milliseconds(text: str, moment: str) -> None:
    assert api_time(text, NOW) == moment


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "Today", "24", "-3h", "9999999999h", "999999w", "0001-01-01T00:00+14:00"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected ISO 8601"):
        api_time(text, NOW)


@pytest.mark.parametrize(
    ("word", "moment"),
    [
        ("today", "2026-12-31T00:00:00.000Z"),
        ("yesterday", "2026-12-30T00:00:00.000Z"),
        ("month", "2026-12-01T00:00:00.000Z"),
    ],
)
def test_days_and_months_of_words_are_utc(word: str, moment: str) -> None:
    east = timezone(timedelta(hours=2))
    assert api_time(word, datetime(2027, 1, 1, 1, 30, tzinfo=east)) == moment
