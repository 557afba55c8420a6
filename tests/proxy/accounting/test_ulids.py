"""ULIDs: the ulid library parses them, they sort by time, and they are unique."""

import secrets
from collections import Counter

from ulid import ULID

from proxy.accounting.ulids import Ulids


def test_library_parses_time_and_randomness() -> None:
    ulid = Ulids(lambda: 1_700_000_000_123_999_999, lambda size: bytes(range(256)) * (size // 256)).make()
    read = ULID.from_str(ulid)
    assert read.milliseconds == 1_700_000_000_123
    assert int.from_bytes(bytes(read)[6:]) == sum(char << 5 * (15 - place) for place, char in enumerate(range(16, 32)))


def test_ulids_sort_by_time() -> None:
    now = iter(range(0, 10_000_000_000_000_000_000, 999_999_999_999_999_999))
    values = [Ulids(lambda: next(now), secrets.token_bytes).make() for _ in range(10)]
    assert values == sorted(values)


def test_ulids_of_one_millisecond_are_unique() -> None:
    ulids = Ulids(lambda: 1, secrets.token_bytes)
    values = [ulids.make() for _ in range(10_000)]
    assert len(set(values)) == 10_000
    assert {len(one) for one in values} == {26}


def test_ulid_characters_are_uniformly_distributed() -> None:
    ulids = Ulids(lambda: 1, lambda size: bytes(range(256)) * (size // 256))
    counts = Counter("".join(ulids.make()[10:] for _ in range(256)))
    assert set(counts) == set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    assert set(counts.values()) == {256 * 16 // 32}
