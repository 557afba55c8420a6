"""Checks what counts against a rate limit, read from a group's stored fields at any later time.

See docs/reference/limits.md#counter-layout. That the scripts write and count the same is tested on a real Redis.
"""

from collections.abc import Sequence

from policy.limits.counter_layout import AHEAD, DAY_PAIR, calendar_usage, rate_usage, time_ms

RPS = 1
RPM = 2
TPM = 4
NOW_MS = 1_700_000_000_000


def number(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little")


def entry(last_ms: int, count: int, span_ms: int = 0) -> bytes:
    return number(last_ms, 6) + number(span_ms, 2) + number(count, 7)


def log(kind: int, total: int, oldest_closed_ms: int, open_entry: bytes) -> bytes:
    return number(kind, 1) + number(total, 7) + number(oldest_closed_ms, 6) + open_entry


def header(*logs: bytes, last_ms: int = NOW_MS) -> bytes:
    return number(last_ms, 6) + number(last_ms // 86_400_000, 3) + number(7, 7) + number(99, 7) + b"".join(logs)


def day_usage(head: bytes, clock_ms: int, other_days: bytes | None = None) -> tuple[int, int]:
    requests, tokens = (calendar_usage(kind, head, other_days, clock_ms) for kind in DAY_PAIR)
    return requests, tokens


def usages(head: bytes, closed: bytes | None, times_ms: Sequence[int], kind: int = RPM) -> list[tuple[int, int]]:
    return [rate_usage(head, closed, kind, at_ms) for at_ms in times_ms]


def test_entries_leave_one_by_one_the_millisecond_after_their_window() -> None:
    closed = entry(NOW_MS - 50_000, 4) + entry(NOW_MS - 20_000, 2, 900)
    head = header(log(RPM, 9, NOW_MS - 50_000, entry(NOW_MS, 3, 12)))
    times = [
        NOW_MS,
        NOW_MS + 10_000,
        NOW_MS + 10_001,
        NOW_MS + 40_000,
        NOW_MS + 40_001,
        NOW_MS + 60_000,
        NOW_MS + 60_001,
    ]
    read = usages(head, closed, times)
    assert [count for count, _ in read] == [9, 9, 5, 5, 3, 3, 0]
    assert [reset_ms for _, reset_ms in read] == [60_001, 50_001, 50_000, 20_001, 20_000, 1, 0]


def test_closed_entries_are_stale_unless_the_header_names_the_oldest() -> None:
    head = header(log(RPM, 3, 0, entry(NOW_MS, 3)))
    assert rate_usage(head, entry(NOW_MS - 1_000, 4), RPM, NOW_MS) == (3, 60_001)


def test_an_open_entry_that_was_given_back_counts_nothing() -> None:
    head = header(log(RPM, 4, NOW_MS - 50_000, entry(NOW_MS, 0)))
    closed = entry(NOW_MS - 50_000, 4)
    assert usages(head, closed, [NOW_MS, NOW_MS + 10_001]) == [(4, 60_001), (0, 0)]


def test_each_log_has_its_own_window() -> None:
    head = header(log(TPM, 500, 0, entry(NOW_MS, 500)), log(RPS, 2, 0, entry(NOW_MS, 2)))
    assert usages(head, None, [NOW_MS + 1_000, NOW_MS + 1_001], RPS) == [(2, 1), (0, 0)]
    assert rate_usage(head, None, TPM, NOW_MS + 1_001) == (500, 59_000)


def test_a_limit_that_has_never_counted_is_unused() -> None:
    assert rate_usage(None, None, RPM, NOW_MS) == (0, 0)
    assert rate_usage(header(), None, RPM, NOW_MS) == (0, 0)
    assert rate_usage(header(log(RPS, 2, 0, entry(NOW_MS, 2))), None, RPM, NOW_MS) == (0, 0)


def test_time_of_a_group_never_goes_back() -> None:
    assert time_ms(None, NOW_MS) == NOW_MS
    assert time_ms(header(), NOW_MS + 5) == NOW_MS + 5
    assert time_ms(header(), NOW_MS - 5) == NOW_MS
    ahead = header(log(AHEAD, 3_600_000, 0, entry(0, 0)), log(RPS, 2, 0, entry(NOW_MS, 2)))
    assert time_ms(ahead, NOW_MS - 3_600_000 + 5) == NOW_MS + 5
    assert rate_usage(ahead, None, RPS, NOW_MS + 5) == (2, 996)


def test_a_day_is_read_from_the_header_or_from_beside_it() -> None:
    yesterday = number(NOW_MS // 86_400_000 - 1, 3) + number(5, 7) + number(60, 7)
    assert day_usage(header(), NOW_MS, yesterday) == (7, 99)
    assert day_usage(header(), NOW_MS - 86_400_000, yesterday) == (5, 60)
    assert day_usage(header(), NOW_MS - 86_400_000) == (0, 0)
    assert day_usage(header(), NOW_MS + 86_400_000, yesterday) == (0, 0)
