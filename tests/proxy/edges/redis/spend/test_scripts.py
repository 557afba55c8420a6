"""The packing of the scripts' arguments."""

import pytest

from policy.spend.spend_hash import LIMB, pack_amount
from proxy.edges.redis.spend.scripts import (
    SpendScripts,
    call_arguments,
    given_back_arguments,
    given_up_arguments,
    take_template,
)
from tests.contracts.redis.spend_world import INCARNATION, decoded, limits, plan_of


def test_a_plan_is_packed_once() -> None:
    plan = plan_of(("team", limits(day="2")), ("root", limits(month="1.5")))
    layout, values, *names = take_template(plan, INCARNATION)
    assert layout == b"<BBBI8I8BBI8I8"
    assert values == b"\x02\x01\x00" + pack_amount(2 * LIMB) + b"\x02\x01" + pack_amount(3 * LIMB // 2)
    assert names == [b"team", b"root", b"steam:", b"sroot:", INCARNATION.encode() + b"team/root/"]


def test_an_incarnation_of_another_length_would_not_be_read_again() -> None:
    with pytest.raises(ValueError, match="16 characters"):
        take_template(plan_of(("root", limits(day="1"))), "worker-1")


@pytest.mark.parametrize("event_key", ["k", "01J" + "0" * 23])
@pytest.mark.parametrize("picos", [0, LIMB - 1, 7 * LIMB + 5])
def test_calls_are_packed_as_the_hash_holds_them(event_key: str, picos: int) -> None:
    field = b"p" + event_key.encode()
    assert decoded(call_arguments(event_key, picos)) == [field, pack_amount(picos)]
    assert decoded(given_back_arguments(event_key)) == [field, b""]
    assert decoded(given_up_arguments(event_key)) == [field, b"!"]


def test_scripts_are_of_one_layout() -> None:
    scripts = SpendScripts.load()
    assert scripts.take.sha != scripts.end.sha
    assert scripts.take.text.startswith(b"local AMOUNT, SPENT = ")
