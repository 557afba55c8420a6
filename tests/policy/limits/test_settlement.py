"""Reservations are unchanged after being written to the journal as JSON and read back."""

import orjson
import pytest

from policy.limits.settlement import Reservation

RESERVATIONS = [
    Reservation(key="tg:{g|a/b}", buckets=(), admitted_at_ms=0, reserved_tokens=0),
    Reservation(
        key="tg:{root|a/b}",
        buckets=(("kid", 0b110), ("root", 0b100000)),
        admitted_at_ms=1_700_000_000_123,
        reserved_tokens=512,
    ),
    Reservation(key="tg:{g|a/b}", buckets=(("g", 1),), admitted_at_ms=5, reserved_tokens=2**53 - 1, local=True),
]


@pytest.mark.parametrize("reservation", RESERVATIONS)
def test_reservation_is_equal_after_a_round_trip_through_json(reservation: Reservation) -> None:
    again = Reservation.from_wire(orjson.loads(orjson.dumps(reservation.to_wire())))
    assert again == reservation
    assert hash(again) == hash(reservation)


def test_reservation_of_a_version_without_margins_is_read() -> None:
    older = ["tg:{g|acme/chat}", [["g", 8]], 1_000, 500, False]
    assert Reservation.from_wire(older).margin_tokens == 0
    assert Reservation.from_wire([*older, 70]).margin_tokens == 70
