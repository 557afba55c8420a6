"""A reservation survives the way through the journal's JSON."""

import orjson
import pytest

from policy.limits.settlement import Reservation

RESERVATIONS = [
    Reservation("tg:{g|a/b}", (), 0, 0),
    Reservation("tg:{root|a/b}", (("kid", 0b110), ("root", 0b100000)), 1_700_000_000_123, 512),
    Reservation("tg:{g|a/b}", (("g", 1),), 5, 2**53 - 1, local=True),
]


@pytest.mark.parametrize("reservation", RESERVATIONS)
def test_reservation_is_equal_after_a_round_trip_through_json(reservation: Reservation) -> None:
    again = Reservation.from_wire(orjson.loads(orjson.dumps(reservation.to_wire())))
    assert again == reservation
    assert hash(again) == hash(reservation)
