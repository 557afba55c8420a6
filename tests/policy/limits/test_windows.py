"""The log of a rolling window beside a plain list of the same events, and each of its edges."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.windows import (
    DAY_MS,
    EXACT_UP_TO,
    LEASE_GRANULE_MS,
    Entry,
    RollingLog,
    day_of,
    granule_ms,
    is_exact,
    lease_ms,
    until_end_ms,
    window_ms,
)

WINDOW_MS = 1000
GRANULE_MS = 20
GRANULES = st.sampled_from([1, GRANULE_MS])


@dataclass(frozen=True)
class Event:
    """`count` events at one instant."""

    at_ms: int
    count: int


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events in the order of time: close to each other, so that granules and windows hold several."""
    now_ms = draw(st.integers(1, 5000))
    events = []
    for pause_ms, count in draw(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 5)), max_size=12)):
        now_ms += pause_ms
        events.append(Event(now_ms, count))
    return events


def log_of(events: list[Event], granule: int) -> RollingLog:
    log = RollingLog()
    for event in events:
        log = log.charged(event.count, granule, event.at_ms)
    return log


def log(*entries: tuple[int, int, int]) -> RollingLog:
    return RollingLog(tuple(Entry(*entry) for entry in entries))


def counted(events: list[Event], since_ms: int) -> int:
    return sum(event.count for event in events if event.at_ms >= since_ms)


def last_ms(events: list[Event]) -> int:
    return events[-1].at_ms if events else 0


@given(histories(), st.integers(0, 2 * WINDOW_MS))
def test_exact_log_counts_the_events_of_its_window(events: list[Event], later_ms: int) -> None:
    now_ms = last_ms(events) + later_ms
    assert log_of(events, 1).live(WINDOW_MS, now_ms).total == counted(events, now_ms - WINDOW_MS)


@given(histories(), st.integers(0, 2 * WINDOW_MS))
def test_merged_log_counts_at_most_one_granule_too_long(events: list[Event], later_ms: int) -> None:
    now_ms = last_ms(events) + later_ms
    total = log_of(events, GRANULE_MS).live(WINDOW_MS, now_ms).total
    assert counted(events, now_ms - WINDOW_MS) <= total <= counted(events, now_ms - WINDOW_MS - GRANULE_MS + 1)


@given(histories())
def test_granule_has_one_entry(events: list[Event]) -> None:
    granules = {event.at_ms // GRANULE_MS for event in events if event.count}
    entries = log_of(events, GRANULE_MS).entries
    assert {entry.first_ms // GRANULE_MS for entry in entries} == granules
    assert len(entries) == len(granules)
    assert all(entry.first_ms // GRANULE_MS == entry.last_ms // GRANULE_MS for entry in entries)


@given(histories(), GRANULES, st.integers(0, 8))
def test_room_comes_in_the_very_millisecond_that_is_told(events: list[Event], granule: int, threshold: int) -> None:
    log = log_of(events, granule)
    room_at_ms = log.room_at_ms(threshold, WINDOW_MS)
    if log.total == 0 or log.total < threshold:
        assert room_at_ms == 0
    elif threshold:
        assert log.live(WINDOW_MS, room_at_ms).total < threshold <= log.live(WINDOW_MS, room_at_ms - 1).total


@given(histories(), GRANULES)
def test_log_is_empty_in_the_very_millisecond_that_is_told(events: list[Event], granule: int) -> None:
    log = log_of(events, granule)
    empty_at_ms = log.empty_at_ms(WINDOW_MS)
    assert (empty_at_ms == 0) == (log.total == 0)
    if empty_at_ms:
        assert log.live(WINDOW_MS, empty_at_ms).total == 0
        assert log.live(WINDOW_MS, empty_at_ms - 1).total > 0


@given(histories(), GRANULES, st.data())
def test_refund_undoes_the_events_of_its_time(events: list[Event], granule: int, data: st.DataObject) -> None:
    """Whoever refunds tells the time at which the events were counted, and no more than they were."""
    log = log_of(events, granule)
    total = log.total
    for event in events:
        back = data.draw(st.integers(0, event.count))
        log = log.refunded(back, event.at_ms)
        total -= back
        assert log.total == total


def test_event_of_exactly_one_window_ago_counts() -> None:
    """Times are truncated to the millisecond, so it may be younger than that."""
    one = log((5000, 5000, 3))
    assert one.live(WINDOW_MS, 6000) == one
    assert one.live(WINDOW_MS, 6001) == RollingLog()


def test_entry_leaves_with_its_last_event() -> None:
    one = log((5000, 5019, 3), (5020, 5020, 1))
    assert one.live(WINDOW_MS, 6019) == one
    assert one.live(WINDOW_MS, 6020) == log((5020, 5020, 1))


def test_nothing_is_charged_by_a_charge_of_zero() -> None:
    """A time of no event would keep an entry of earlier ones in the window."""
    assert RollingLog().charged(0, GRANULE_MS, 5000) == RollingLog()
    assert log((5000, 5000, 3)).charged(0, GRANULE_MS, 5010) == log((5000, 5000, 3))


def test_charge_joins_an_entry_within_its_granule_only() -> None:
    one = log((5000, 5005, 3))
    assert one.charged(2, GRANULE_MS, 5019) == log((5000, 5019, 5))
    assert one.charged(2, GRANULE_MS, 5020) == log((5000, 5005, 3), (5020, 5020, 2))


def test_charge_joins_a_moved_entry_of_two_granules_at_its_very_end_only() -> None:
    moved = log((5010, 5030, 3))
    assert moved.charged(1, GRANULE_MS, 5030) == log((5010, 5030, 4))
    assert moved.charged(1, GRANULE_MS, 5031) == log((5010, 5030, 3), (5031, 5031, 1))


def test_charge_takes_the_place_of_an_emptied_newest_entry() -> None:
    assert log((4000, 4000, 1), (5000, 5005, 0)).charged(2, GRANULE_MS, 5010) == log((4000, 4000, 1), (5010, 5010, 2))


def test_refund_changes_the_entry_that_holds_its_time_only() -> None:
    one = log((1000, 1010, 5), (1020, 1030, 5), (1040, 1050, 5))
    for at_ms in (1020, 1025, 1030):
        assert one.refunded(2, at_ms) == log((1000, 1010, 5), (1020, 1030, 3), (1040, 1050, 5))
    for at_ms in (999, 1011, 1019, 1031, 1051):
        assert one.refunded(2, at_ms) == one


def test_refund_of_more_than_an_entry_holds_empties_it() -> None:
    one = log((1000, 1010, 5), (1020, 1030, 5))
    assert one.refunded(9, 1000) == log((1020, 1030, 5))
    assert one.refunded(9, 1030).total == 5


def test_emptied_newest_entry_keeps_the_time_of_the_last_event() -> None:
    assert log((1000, 1010, 5), (1020, 1030, 5)).refunded(5, 1020) == log((1000, 1010, 5), (1020, 1030, 0))


def test_moved_log_holds_the_same_events_later() -> None:
    assert log((1000, 1010, 5), (1020, 1030, 6)).moved(7) == log((1007, 1017, 5), (1027, 1037, 6))


def test_merged_logs_leave_in_the_order_of_their_last_events() -> None:
    one = log((1000, 1050, 1), (1060, 1070, 2))
    other = log((1010, 1020, 3), (1065, 1066, 4))
    assert one.merged(other) == log((1010, 1020, 3), (1000, 1050, 1), (1065, 1066, 4), (1060, 1070, 2))


def test_windows_are_as_long_as_their_units_say() -> None:
    assert window_ms(Unit.SECOND, lease_ms=7) == 1000
    assert window_ms(Unit.MINUTE, lease_ms=7) == 60_000
    assert window_ms(Unit.DAY, lease_ms=7) == 7


def test_granules_are_a_fiftieth_of_a_second_and_a_second() -> None:
    assert [granule_ms(Unit.SECOND, exact) for exact in (False, True)] == [20, 1]
    assert [granule_ms(Unit.MINUTE, exact) for exact in (False, True)] == [1000, 1]
    assert [granule_ms(Unit.DAY, exact) for exact in (False, True)] == [20_000, 20_000]


@pytest.mark.parametrize("type", [LimitType.REQUEST, LimitType.TOKEN])
def test_small_rate_limits_are_exact(type: LimitType) -> None:
    assert EXACT_UP_TO == 64
    for unit in (Unit.SECOND, Unit.MINUTE):
        assert [is_exact(Limit(type, unit, threshold)) for threshold in (1, 64, 65)] == [True, True, False]
    assert not is_exact(Limit(type, Unit.DAY, 1))


@given(st.integers(0, 10**12), st.floats(0, 86_400))
def test_reservation_of_a_day_outlives_the_longest_call(admitted_at_ms: int, call_s: float) -> None:
    granule_end_ms = (admitted_at_ms // LEASE_GRANULE_MS + 1) * LEASE_GRANULE_MS - 1
    call_end_ms = admitted_at_ms + int(call_s * 1000)
    for last_event_ms in (admitted_at_ms, granule_end_ms):
        empty_at_ms = log((admitted_at_ms, last_event_ms, 1)).empty_at_ms(lease_ms(call_s))
        assert call_end_ms + 40_000 < empty_at_ms <= call_end_ms + 60_000


def test_day_ends_at_midnight_utc() -> None:
    midnight_ms = 20_000 * DAY_MS
    assert DAY_MS == 24 * 60 * 60 * 1000
    assert [day_of(midnight_ms + ms) for ms in (-1, 0, DAY_MS - 1)] == [19_999, 20_000, 20_000]
    assert [until_end_ms(Unit.DAY, midnight_ms + ms) for ms in (-1, 0, DAY_MS - 1)] == [1, DAY_MS, 1]
