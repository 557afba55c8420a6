"""The counter's name for (group, slug), and how its fields are packed (docs/reference/limits.md#counter-layout).

One Redis hash per call, whatever the depth. Its fields: per counting group a header, named like the group; per log of
that group with closed entries one field, `<group>:<kind>`; per worker incarnation the markers of what it settled,
`@<incarnation>`, and of what it took, `@<incarnation>!`. `proxy/edges/redis/log.lua` reads and writes the same layout.
"""

from collections.abc import Iterable

from policy.limits.limit import Limit, LimitType, Unit
from policy.limits.windows import day_of, is_exact

KINDS = (
    (LimitType.REQUEST, Unit.SECOND),
    (LimitType.REQUEST, Unit.MINUTE),
    (LimitType.TOKEN, Unit.SECOND),
    (LimitType.TOKEN, Unit.MINUTE),
    (LimitType.REQUEST, Unit.DAY),
    (LimitType.TOKEN, Unit.DAY),
)
"""What can bind a counting group, in the order of trial. Scripts call them 1 to 6, bit masks `1 << (number - 1)`."""

KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS, 1)}
EXACT_SHIFT = 6
"""In a mask of parts, a rate's bit again this much higher says that its log is the exact one."""

TOKEN_KINDS = sum(1 << (number - 1) for (kind, _), number in KIND_NUMBER.items() if kind is LimitType.TOKEN)
"""In a mask of parts, the bits of the TOKEN limits."""

EXPIRY_S = 3 * 86_400
"""A hash that nobody used for so long is gone; so are settlements that are older."""

_DAY_AT, _DAY_REQUESTS_AT, _DAY_TOKENS_AT, _LOGS_AT = 6, 9, 16, 23
MARKER_PREFIX = "@"
TAKES_SUFFIX = "!"


def bucket_key(owner_group: str, slug: str) -> str:
    """The hash that one call touches. `owner_group`: the root of a CASCADING tree, the caller in an INDEPENDENT one.

    The braces are Redis Cluster's hash tag: a key is one slot, whatever comes to stand beside it.
    """
    return f"tg:{{{owner_group}|{slug}}}"


def kind_mask(limits: Iterable[Limit]) -> int:
    """The limits that bind one counting group, as a bit mask."""
    parts = 0
    for limit in limits:
        bit = 1 << (KIND_NUMBER[limit.type, limit.unit] - 1)
        parts |= bit | (bit << EXACT_SHIFT if is_exact(limit) else 0)
    return parts


def has_kind(parts: int, number: int) -> bool:
    return bool(parts >> (number - 1) & 1)


def is_exact_kind(parts: int, number: int) -> bool:
    return bool(parts >> (number - 1 + EXACT_SHIFT) & 1)


def fields_of(group: str) -> tuple[str, ...]:
    """All fields that a counting group can have in a hash."""
    return (group, *(f"{group}:{number}" for number in KIND_NUMBER.values()))


def day_usage(header: bytes | None, now_ms: int) -> tuple[int, int]:
    """(requests, settled tokens) of the UTC day of `now_ms`, out of a group's header; zeros where there is none."""
    if header is None or len(header) < _LOGS_AT or _number(header, _DAY_AT, _DAY_REQUESTS_AT) != day_of(now_ms):
        return 0, 0
    return _number(header, _DAY_REQUESTS_AT, _DAY_TOKENS_AT), _number(header, _DAY_TOKENS_AT, _LOGS_AT)


def _number(header: bytes, start: int, end: int) -> int:
    return int.from_bytes(header[start:end], "little")


def marker_time_ms(marker: bytes) -> int:
    """When an incarnation last settled or took something in this hash: both markers hold a number, then the time."""
    return _number(marker, 6, 12)
