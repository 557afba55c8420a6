"""Slots, maps and redirects, by the examples of the Redis Cluster specification and of real replies."""

import pytest

from runtime.redis.slots import SLOTS, Place, Redirect, SlotRange, redirect, slot_of, slot_ranges

ASKED = Place("10.0.0.1", 6379)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3 % SLOTS),
        (b"{user1000}.following", slot_of(b"user1000")),
        (b"{user1000}.followers", slot_of(b"user1000")),
        (b"foo{}{bar}", 8363),
        (b"foo{{bar}}zap", slot_of(b"{bar")),
        (b"foo{bar}{zap}", slot_of(b"bar")),
        (b"tg:{root|acme/chat}", slot_of(b"root|acme/chat")),
        (b"open{", slot_of(b"open{")),
    ],
)
def test_slot_of_a_key(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


def test_map_lists_primaries() -> None:
    reply = [
        [0, 5460, [b"10.0.0.1", 7000, b"id1", []], [b"10.0.0.4", 7003, b"id4", []]],
        [5461, 5461, [b"", 7001, b"id2", []]],
        [5462, 16383, [None, 7002, b"id3", []]],
    ]
    assert list(slot_ranges(reply, ASKED)) == [
        SlotRange(0, 5460, (Place("10.0.0.1", 7000), Place("10.0.0.4", 7003))),
        SlotRange(5461, 5461, (Place("10.0.0.1", 7001),)),
        SlotRange(5462, 16383, (Place("10.0.0.1", 7002),)),
    ]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("MOVED 3999 10.0.0.2:6381", Redirect(True, 3999, Place("10.0.0.2", 6381))),
        ("ASK 3999 redis-2.example:6381", Redirect(False, 3999, Place("redis-2.example", 6381))),
        ("MOVED 1 2001:db8::2:6381", Redirect(True, 1, Place("2001:db8::2", 6381))),
        ("MOVED 1 :6381", Redirect(True, 1, Place("10.0.0.1", 6381))),
        ("MOVED 1 ?:6381", Redirect(True, 1, Place("10.0.0.1", 6381))),
        ("CLUSTERDOWN The cluster is down", None),
        ("ERR MOVED 1 x:1", None),
    ],
)
def test_redirects(error: str, expected: Redirect | None) -> None:
    assert redirect(error, ASKED) == expected
