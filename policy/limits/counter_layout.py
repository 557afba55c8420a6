"""The Redis hash that counts a call: its key, the names of its fields, and how they are packed.

`policy/limits/log.lua` reads and writes the same layout.

See docs/reference/limits.md#counter-layout.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from policy.limits.kinds import KIND_NUMBER, KINDS, Calendar, Kind, LimitType, Rolling, Unit, window_number
from policy.limits.limit import Limit
from policy.limits.windows import day_of, is_exact, window_ms

MASK_PAGE = 6
"""The number of kinds of a mask that share twice as many bits: one for each kind, then one for each that says that its
log is the exact one."""

AHEAD = 63
"""The number, in the place of a log's kind, of the entry that says how far the group's time is ahead of Redis' clock.
It is the header's first, and there only once that clock has stepped back (docs/reference/limits.md#time)."""

MARGIN = 64
"""The log of the margins of a limit that counts tokens has the number of its kind plus this
(docs/reference/limits.md#tokens)."""

COUNT = 128
"""The number that is added to a usage limit's kind, in the place of a log's kind: that total is the window's count."""

DAY_PAIR: tuple[Kind, ...] = ((LimitType.REQUEST, Unit.DAY), (LimitType.TOKEN, Unit.DAY))
"""The kinds whose counts are members of every header, together with the number of the day."""

HASH_EXPIRY_S = 34 * 86_400 + 3_600
"""A hash is dropped so long after its last use, within an hour: a month's counts outlive the month, and three days
more, the span of a stopped clock or a long outage."""
EXPIRY_S = 3 * 86_400
"""A marker of settlements or takes is pruned after this long without use."""

_DAY_AT = 6
_LOGS_AT = 23
_LOG_BYTES = 29
_ENTRY_BYTES = 15
_NUMBER_BYTES = 3
_COUNT_BYTES = 7
MARKER_PREFIX = "@"
TAKES_SUFFIX = "!"
DAYS_SUFFIX = ":days"
PLACES_SUFFIX = ":places"


def bucket_key(owner_group: str, slug: str) -> str:
    """The key of a call's hash. `owner_group`: the root of a CASCADING tree, the calling group of an INDEPENDENT one.

    The braces are Redis Cluster's hash tag: a key added beside this one would be in the same slot.
    """
    return f"tg:{{{owner_group}|{slug}}}"


def kind_mask(limits: Iterable[Limit]) -> int:
    """The limits that bind one counting group, as a bit mask of their kinds and of the exact ones among them.

    Calls in flight are not in it: no settlement corrects their count (`policy/limits/in_flight/places.py`).
    """
    mask = 0
    for limit in limits:
        if limit.type.is_concurrent:
            continue
        bit = _bit(KIND_NUMBER[limit.type, limit.unit])
        mask |= bit | (bit << MASK_PAGE if is_exact(limit) else 0)
    return mask


@lru_cache(4096)
def kinds_of(mask: int) -> Mapping[Kind, bool]:
    """The kinds of a mask in the order of trial, and whether each one's log is the exact one."""
    bits = {kind: _bit(number) for kind, number in KIND_NUMBER.items()}
    return {kind: bool(mask & bit << MASK_PAGE) for kind, bit in bits.items() if mask & bit}


@lru_cache(4096)
def masks_by_type(mask: int) -> Mapping[LimitType, int]:
    """The mask in parts, one for each type that counts tokens. Requests are in the part of TOKEN."""
    parts: dict[LimitType, int] = {}
    for (type, unit), is_exact_log in kinds_of(mask).items():
        bit = _bit(KIND_NUMBER[type, unit])
        part = LimitType.TOKEN if type.parts is None else type
        parts[part] = parts.get(part, 0) | bit | (bit << MASK_PAGE if is_exact_log else 0)
    return parts


def _bit(number: int) -> int:
    page, place = divmod(number - 1, MASK_PAGE)
    return 1 << (2 * MASK_PAGE * page + place)


def fields_of(group: str) -> tuple[str, ...]:
    """All fields that a counting group can have in a hash: header, logs, those of margins, other calendar windows, the
    places of calls in flight."""
    fields = {group: None, places_field(group): None}
    for kind, number in KIND_NUMBER.items():
        if kind[0].is_concurrent:
            continue
        fields[closed_field(group, number)] = None
        if kind[0].parts is not None:
            fields[closed_field(group, number + MARGIN)] = None
        if not kind[1].is_rolling:
            fields[windows_field(group, kind)] = None
    return tuple(fields)


def calendar_usage(kind: Kind, header: bytes | None, windows: bytes | None, clock_ms: int) -> int:
    """The count of a usage limit in the calendar window of `clock_ms`: requests, or settled tokens.

    `header` and `windows`: a group's field and its `windows_field`, read together.
    """
    calendar = kind[1].window
    assert not isinstance(calendar, Rolling)
    present = window_number(calendar, day_of(clock_ms))
    for number, counts in _windows_of(kind, header or b"", windows or b"", calendar):
        if number == present:
            return counts
    return 0


def _windows_of(kind: Kind, header: bytes, windows: bytes, calendar: Calendar) -> Iterator[tuple[int, int]]:
    """The number of each window that is known, and what it has counted. The header's is the latest."""
    day = _number(header, _DAY_AT, _DAY_AT + _NUMBER_BYTES)
    if kind in DAY_PAIR:
        counts = len(DAY_PAIR)
        at = _NUMBER_BYTES + _COUNT_BYTES * DAY_PAIR.index(kind)
        yield day, _number(header, _DAY_AT + at, _DAY_AT + at + _COUNT_BYTES)
    else:
        counts = 1
        at = _NUMBER_BYTES
        log = _log_at(header, COUNT + KIND_NUMBER[kind])
        if log >= 0:
            yield window_number(calendar, day), _number(header, log + 1, log + 1 + _COUNT_BYTES)
    for start in range(0, len(windows), _NUMBER_BYTES + _COUNT_BYTES * counts):
        count_at = start + at
        yield _number(windows, start, start + _NUMBER_BYTES), _number(windows, count_at, count_at + _COUNT_BYTES)


def time_ms(header: bytes | None, clock_ms: int) -> int:
    """The group's time when Redis' clock shows `clock_ms`. Its entries go by this time, which never goes back."""
    at = _log_at(header, AHEAD)
    if header is None:
        return clock_ms
    ahead_ms = 0 if at < 0 else _number(header, at + 1, at + 8)
    return max(clock_ms + ahead_ms, _number(header, 0, _DAY_AT))


def windows_field(group: str, kind: Kind) -> str:
    """The field with what a group counted in other calendar windows of this kind, for each: its number, the count.

    For the kinds of `DAY_PAIR` it is one field, with two counts.
    """
    return group + DAYS_SUFFIX if kind in DAY_PAIR else closed_field(group, COUNT + KIND_NUMBER[kind])


def places_field(group: str) -> str:
    """The field with a group's calls in flight, by worker incarnation (`policy/limits/in_flight/places.py`)."""
    return group + PLACES_SUFFIX


def closed_field(group: str, number: int) -> str:
    """The field with the closed entries of one of a group's logs."""
    return f"{group}:{number}"


def rate_usage(header: bytes | None, closed: bytes | None, number: int, now_ms: int) -> tuple[int, int]:
    """The count at `now_ms` against a rate limit of the kind `number`, and the ms for which some of it still counts.

    `now_ms`: in the group's time. `header` and `closed`: a group's field and its `closed_field`, read together.
    Unsettled tokens count as expected.
    """
    at = _log_at(header, number)
    if header is None or at < 0:
        return 0, 0
    window = window_ms(KINDS[number - 1][1], 0)
    edge_ms = now_ms - window
    oldest_ms = _number(header, at + 8, at + 14)
    last_ms = _number(header, at + 14, at + 20)
    if last_ms < edge_ms:
        return 0, 0
    total = _number(header, at + 1, at + 8)
    if closed is not None and 0 < oldest_ms < edge_ms:  # 0: the closed entries are stale
        for start in range(0, len(closed), _ENTRY_BYTES):
            if _number(closed, start, start + 6) >= edge_ms:
                break
            total -= _number(closed, start + 8, start + _ENTRY_BYTES)
    return total, last_ms + window + 1 - now_ms if total else 0


def _log_at(header: bytes | None, number: int) -> int:
    """The offset of this log in the header, or -1: kind, total, last times of the oldest closed and the open entry."""
    places = range(_LOGS_AT, len(header or b""), _LOG_BYTES)
    return next((at for at in places if header is not None and header[at] == number), -1)


def _number(header: bytes, start: int, end: int) -> int:
    return int.from_bytes(header[start:end], "little")


def marker_time_ms(marker: bytes) -> int:
    """The time at which an incarnation last settled or took something in this hash. A marker has it behind a number."""
    return _number(marker, 6, 12)
