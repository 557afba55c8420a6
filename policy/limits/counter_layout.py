"""The Redis hash that counts a call: its key, the names of its fields, and how they are packed.

`proxy/edges/redis/log.lua` reads and writes the same layout.

See docs/reference/limits.md#counter-layout.
"""

from collections.abc import Iterable

from policy.limits.limit import Limit, LimitType, Unit
from policy.limits.windows import day_of, is_exact, window_ms

KINDS = (
    (LimitType.REQUEST, Unit.SECOND),
    (LimitType.REQUEST, Unit.MINUTE),
    (LimitType.TOKEN, Unit.SECOND),
    (LimitType.TOKEN, Unit.MINUTE),
    (LimitType.REQUEST, Unit.DAY),
    (LimitType.TOKEN, Unit.DAY),
)
"""The kinds of limits, in the order of trial. Their numbers are 1 to 6; in a mask, bit `1 << (number - 1)`."""

KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS, 1)}
EXACT_SHIFT = 6
"""In a mask, a rate limit's bit shifted by this much says that its log is the exact one."""

TOKEN_KINDS = sum(1 << (number - 1) for (kind, _), number in KIND_NUMBER.items() if kind is LimitType.TOKEN)
"""The bits of the TOKEN limits in a mask."""

AHEAD = 63
"""In a header, what looks like the log of this kind says how far the group's time is ahead of Redis' clock. It comes
first, once that clock has stepped back (docs/reference/limits.md#time)."""

MARGIN = 64
"""The log of a TOKEN limit's margins has the number of its kind plus this (docs/reference/limits.md#tokens)."""

EXPIRY_S = 3 * 86_400
"""A hash expires after this long without use."""

_DAY_AT = 6
_LOGS_AT = 23
_LOG_BYTES = 29
_ENTRY_BYTES = 15
_DAY_BYTES = 17
MARKER_PREFIX = "@"
TAKES_SUFFIX = "!"
DAYS_SUFFIX = ":days"


def bucket_key(owner_group: str, slug: str) -> str:
    """The key of a call's hash. `owner_group`: the root of a CASCADING tree, the calling group of an INDEPENDENT one.

    The braces are Redis Cluster's hash tag: a key added beside this one would be in the same slot.
    """
    return f"tg:{{{owner_group}|{slug}}}"


def kind_mask(limits: Iterable[Limit]) -> int:
    """The limits that bind one counting group, as a bit mask of their kinds and of the exact ones among them."""
    mask = 0
    for limit in limits:
        bit = 1 << (KIND_NUMBER[limit.type, limit.unit] - 1)
        mask |= bit | (bit << EXACT_SHIFT if is_exact(limit) else 0)
    return mask


def has_kind(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def is_exact_kind(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1 + EXACT_SHIFT) & 1)


def fields_of(group: str) -> tuple[str, ...]:
    """All fields that a counting group can have in a hash: header, other days, a log per kind, those of margins."""
    numbers = KIND_NUMBER.values()
    margins = (number + MARGIN for (type, _), number in KIND_NUMBER.items() if type is LimitType.TOKEN)
    return (group, days_field(group), *(closed_field(group, number) for number in (*numbers, *margins)))


def day_usage(header: bytes | None, clock_ms: int, other_days: bytes | None = None) -> tuple[int, int]:
    """(requests, settled tokens) of the UTC day of `clock_ms`. Zeros where the group has not counted on that day.

    `header` and `other_days`: a group's field and its `days_field`, read together.
    """
    days = (header or b"")[_DAY_AT:_LOGS_AT] + (other_days or b"")
    for at in range(0, len(days), _DAY_BYTES):
        if _number(days, at, at + 3) == day_of(clock_ms):
            return _number(days, at + 3, at + 10), _number(days, at + 10, at + 17)
    return 0, 0


def time_ms(header: bytes | None, clock_ms: int) -> int:
    """The group's time when Redis' clock shows `clock_ms`. Its entries go by this time, which never goes back."""
    at = _log_at(header, AHEAD)
    if header is None:
        return clock_ms
    ahead_ms = 0 if at < 0 else _number(header, at + 1, at + 8)
    return max(clock_ms + ahead_ms, _number(header, 0, _DAY_AT))


def days_field(group: str) -> str:
    """The field with what a group counted on other days, for each: day, requests, tokens."""
    return group + DAYS_SUFFIX


def closed_field(group: str, number: int) -> str:
    """The field with the closed entries of one of a group's logs."""
    return f"{group}:{number}"


def rate_usage(header: bytes | None, closed: bytes | None, number: int, now_ms: int) -> tuple[int, int]:
    """What counts at `now_ms` against a rate limit of the kind `number`, and for how many ms some of it still counts.

    `now_ms`: in the group's time. `header` and `closed`: a group's field and its `closed_field`, read together.
    Unsettled tokens count as expected.
    """
    at = _log_at(header, number)
    if header is None or at < 0:
        return 0, 0
    window = window_ms(KINDS[number - 1][1], 0)
    edge_ms, oldest_ms = now_ms - window, _number(header, at + 8, at + 14)
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
    """Where the header has this log: kind, total, last times of the oldest closed and the open entry. -1: nowhere."""
    places = range(_LOGS_AT, len(header or b""), _LOG_BYTES)
    return next((at for at in places if header is not None and header[at] == number), -1)


def _number(header: bytes, start: int, end: int) -> int:
    return int.from_bytes(header[start:end], "little")


def marker_time_ms(marker: bytes) -> int:
    """When an incarnation last settled or took something in this hash. Both markers hold a number, then the time."""
    return _number(marker, 6, 12)
