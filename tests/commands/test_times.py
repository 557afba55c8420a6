"""Times on the command line."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from commands.times import api_time, end_time, span_s, until_text

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


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30d", "2026-12-24T12:00:00.000Z"),
        ("12h", "2026-11-25T00:00:00.000Z"),
        ("2027-01-31", "2027-01-31T00:00:00.000Z"),
        ("2027-01-31T08:00:00+02:00", "2027-01-31T06:00:00.000Z"),
    ],
)
def test_a_time_to_come_is_so_long_from_now(text: str, moment: str) -> None:
    assert end_time(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "today", "30", "999999w", "9999-12-31T23:59:59-14:00"])
def test_other_text_is_no_time_to_come(text: str) -> None:
    with pytest.raises(ValueError, match="expected ISO 8601"):
        end_time(text, NOW)


def test_spans_are_seconds() -> None:
    assert [span_s(text) for text in ("0s", "90s", "15m", "1h", "7d", "2w")] == [0, 90, 900, 3600, 604_800, 1_209_600]
    for text in ("", "1", "-1h", "1h30m", "1y"):
        with pytest.raises(ValueError, match="expected a number of seconds"):
            span_s(text)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("2026-11-27T12:00:01.000Z", "3 d"),
        ("2026-11-24T12:50:59.000Z", "50 min"),
        ("2026-11-24T12:00:00.500Z", "0 s"),
        ("2026-11-24T11:00:00Z", "0 s"),
    ],
)
def test_what_is_left_is_in_its_largest_unit(end: str, text: str) -> None:
    assert until_text(end, NOW) == text
