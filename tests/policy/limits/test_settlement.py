"""Holds there and back through the journal's JSON."""

import orjson
import pytest

from policy.limits.settlement import Hold

HOLDS = [
    Hold("tg:{g|a/b}", (), 0, 0),
    Hold("tg:{root|a/b}", (("kid", 0b110), ("root", 0b100000)), 1_700_000_000_123, 512),
    Hold("tg:{g|a/b}", (("g", 1),), 5, 2**53 - 1, local=True),
]


@pytest.mark.parametrize("hold", HOLDS)
def test_there_and_back(hold: Hold) -> None:
    again = Hold.from_wire(orjson.loads(orjson.dumps(hold.to_wire())))
    assert again == hold
    assert hash(again) == hash(hold)
