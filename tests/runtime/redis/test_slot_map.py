"""A slot that no node serves, as in the middle of a fail-over, is an error of Redis that callers expect."""

import pytest
from redis.exceptions import RedisError

from runtime.redis.slot_map import SlotMap
from runtime.redis.slots import Place, slot_of

NODE = Place("10.0.0.1", 6379)
FIRST_HALF = [[0, 8191, [b"10.0.0.1", 6379, b"id"]]]


def test_owner_of_a_slot_that_nobody_serves_is_an_error_of_redis() -> None:
    slot_map = SlotMap.of_cluster(FIRST_HALF, NODE)
    keys = [f"key-{number}" for number in range(100)]
    unserved = [key for key in keys if slot_of(key.encode()) > 8191]
    assert [slot_map.owner(key) for key in keys if key not in unserved] == [NODE] * (100 - len(unserved))
    for key in unserved:
        with pytest.raises(RedisError, match="serves slot"):
            slot_map.owner(key)
