"""Slow receivers hold up only their own deliveries."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.async_requests.requests import Delivery
from proxy.async_worker.delivery_slots import MAX_HELD, SLOTS, DeliverySlots
from tests.proxy.async_worker.deliveries import delivery

OTHER_URL = "https://other.example.com/in"


def hang(slots: DeliverySlots, workspace_id: str, url: str = "https://hangs.example.com/") -> list[Delivery]:
    """Take deliveries for a receiver that never answers, as long as they may be taken. Returns those under way."""
    under_way: list[Delivery] = []
    for number in range(10 * SLOTS):
        if not slots.may_take(workspace_id):
            return under_way
        one = delivery(f"{workspace_id}-{url}-{number}", url, workspace_id)
        if slots.begin(one):
            under_way.append(one)
    raise AssertionError("without end")


@pytest.mark.parametrize("hanging", [0, 1, 5, 20])
def test_a_workspace_finds_a_slot_however_many_others_hang(hanging: int) -> None:
    slots = DeliverySlots()
    for number in range(hanging):
        hang(slots, f"ws_{number}")
    assert slots.may_take("ws_new")
    assert slots.begin(delivery(workspace_id="ws_new"))


def test_one_receiver_alone_gets_many_slots_but_not_all_of_its_workspace() -> None:
    slots = DeliverySlots()
    under_way = hang(slots, "ws_1")
    assert 8 <= len(under_way) <= SLOTS // 4
    slots.drop(slots.held()[0])  # one of the deliveries that wait for the hanging receiver
    assert slots.may_take("ws_1")
    assert slots.begin(delivery("other", OTHER_URL))


def test_deliveries_that_wait_for_their_receiver_are_bounded() -> None:
    slots = DeliverySlots()
    hang(slots, "ws_1")
    assert len(slots.held()) == MAX_HELD
    assert not slots.may_take("ws_1")
    assert slots.may_take("ws_2")


def test_the_oldest_waiting_delivery_begins_when_its_receiver_answers() -> None:
    slots = DeliverySlots()
    under_way = hang(slots, "ws_1")
    first = slots.held()[0]
    assert list(slots.released()) == []
    slots.end(under_way[0])
    assert list(slots.released()) == [first]
    assert first not in slots.held()


def test_the_same_host_in_another_workspace_is_another_receiver() -> None:
    slots = DeliverySlots()
    under_way = hang(slots, "ws_1")
    elsewhere = replace(under_way[0], deployment=replace(under_way[0].deployment, workspace_id="ws_2"))
    assert slots.begin(elsewhere)


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_no_order_of_events_exceeds_the_slots_or_loses_one(seed: int, total: int) -> None:
    dice = random.Random(seed)
    slots = DeliverySlots(total)
    under_way: list[Delivery] = []
    takes = 0
    for step in range(300):
        workspace_id = f"ws_{dice.randrange(4)}"
        if dice.random() < 0.6 and slots.may_take(workspace_id):
            one = delivery(f"r{step}", f"https://h{dice.randrange(3)}.example.com/", workspace_id)
            takes += 1
            if slots.begin(one):
                under_way.append(one)
        elif under_way:
            slots.end(under_way.pop(dice.randrange(len(under_way))))
            under_way += slots.released()
        assert len(under_way) <= total
    while under_way:
        slots.end(under_way.pop())
        under_way += slots.released()
    assert slots.held() == []
    assert takes > 0
    assert slots.may_take("ws_0")
