"""The days of event keys: a ULID's first ten characters are its time, so a day is a range of keys."""

from datetime import UTC, datetime

from control.edges.sql.events.partitions import Partition

DAY_MS = 86_400_000
LATE_MS = 6 * 3_600_000
"""The time after its day in which a key's event usually still ends. Later ones are noted one by one."""
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def first_key_of(day_ms: int) -> str:
    """The first ten characters of a ULID of that millisecond: all its ULIDs, and later ones, are greater."""
    return "".join(_ALPHABET[day_ms >> shift & 31] for shift in range(45, -1, -5))


def time_of(first_key: str) -> int:
    """The inverse: milliseconds."""
    ms = 0
    for char in first_key[:10]:
        ms = ms * 32 + _ALPHABET.index(char)
    return ms


def partition_of(day_ms: int) -> Partition:
    """The partition of the day that begins then, as it is when it is created."""
    name = f"events_{datetime.fromtimestamp(day_ms / 1000, UTC):%Y%m%d}"
    keys = (first_key_of(day_ms), first_key_of(day_ms + DAY_MS))
    return Partition(name, *keys, day_ms, day_ms + DAY_MS + LATE_MS)
