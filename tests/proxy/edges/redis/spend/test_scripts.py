"""The packing of the scripts' arguments."""

import pytest

from policy.spend.spend_hash import LIMB, Reserved, pack_amount, pack_reservation
from proxy.edges.redis.spend.scripts import (
    SpendScripts,
    call_arguments,
    given_back_arguments,
    given_up_arguments,
    hard_call_arguments,
    reservation_arguments,
    take_template,
)
from tests.contracts.redis.spend_world import INCARNATION, decoded, hard, limits, plan_of


def test_a_plan_is_packed_once() -> None:
    plan = plan_of(("team", limits(day="2")), ("root", limits(month="1.5")))
    layout, values, *names = take_template(plan, INCARNATION)
    assert layout == b"<BBBI8I8BBI8I8"
    assert values == b"\x02\x01\x00" + pack_amount(2 * LIMB) + b"\x02\x01" + pack_amount(3 * LIMB // 2)
    assert names == [b"team", b"root", b"steam:", b"sroot:", INCARNATION.encode() + b"team/root/"]


def test_a_hard_limit_has_a_flag() -> None:
    plan = plan_of(("team", limits(day="2")), ("root", hard(day="1", month="1")))
    values = take_template(plan, INCARNATION)[1]
    assert values[1::18] == b"\x01\x02\x02"
    assert values[2::18] == b"\x00\x02\x03"


def test_a_balance_is_one_more_group_and_bound() -> None:
    plan = plan_of(("team", limits(day="2")), ("root", ()), deposits={"root": "3"})
    layout, values, *names = take_template(plan, INCARNATION)
    assert layout == b"<BBBI8I8BBI8I8"
    assert values == b"\x03\x01\x00" + pack_amount(2 * LIMB) + b"\x03\x06" + pack_amount(3 * LIMB)
    assert names[:5] == [b"team", b"root", b"root*", b"steam:", b"sroot*:"]
    assert names[5:] == [INCARNATION.encode() + b"team/root/root*/"]


def test_an_incarnation_of_another_length_would_not_be_read_again() -> None:
    with pytest.raises(ValueError, match="16 characters"):
        take_template(plan_of(("root", limits(day="1"))), "worker-1")


@pytest.mark.parametrize("event_key", ["k", "01J" + "0" * 23])
@pytest.mark.parametrize("picos", [0, LIMB - 1, 7 * LIMB + 5])
def test_calls_are_packed_as_the_hash_holds_them(event_key: str, picos: int) -> None:
    field = b"p" + event_key.encode()
    assert decoded(call_arguments(event_key, picos)) == [field, pack_amount(picos)]
    assert decoded(hard_call_arguments(event_key, picos, 3)) == [field, pack_amount(3) + pack_amount(picos)]
    reserved = Reserved(picos, INCARNATION, ("team", "root"))
    assert decoded(reservation_arguments(event_key, reserved)) == [field, pack_reservation(reserved)]
    assert decoded(given_back_arguments(event_key)) == [field, b""]
    assert decoded(given_up_arguments(event_key)) == [field, b"!"]


def test_scripts_are_of_one_layout() -> None:
    scripts = SpendScripts.load()
    assert scripts.take.sha != scripts.end.sha
    assert scripts.take.text.startswith(b"local AMOUNT, SPENT = ")
