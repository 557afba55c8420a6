"""The billing event and its wire form."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from policy.billing import (
    MAX_COUNT,
    BillingEvent,
    Payer,
    Tokens,
    columns_from_wires,
    columns_of,
    payer_members,
)

EVENT = BillingEvent(
    idempotency_key="01J",
    workspace_id="w",
    group_id="g",
    external_entity_id="ext",
    api_key_prefix="tg_x",
    request_id="r",
    model_slug="a/b",
    ended_at_ms=1_700_000_000_000,
    status=200,
    tokens=Tokens(input=10, output=3, cached_input=4),
    request_metadata={"team": "ü", "n": [1]},
)
WIRE = EVENT.to_wire()


def read_together(wires: Sequence[Any]) -> list[BillingEvent]:
    """The events that `columns_from_wires` reads."""
    columns = columns_from_wires(wires)
    assert columns is not None
    whole = {**columns, "tokens": [Tokens.from_wire(counts) for counts in columns["tokens"]]}
    events = list(map(BillingEvent._make, zip(*map(whole.__getitem__, BillingEvent._fields), strict=True)))
    assert columns_of(events) == {name: tuple(column) for name, column in whole.items()}
    return events


def test_total_counts_cached_input_at_full_weight() -> None:
    assert Tokens(input=10, output=3, cached_input=4).total == 13


@pytest.mark.parametrize("metadata", [None, {}, {"a": {"b": None}}])
def test_an_event_is_equal_after_a_round_trip_through_json(metadata: Any) -> None:
    wire = orjson.loads(orjson.dumps(WIRE | {"request_metadata": metadata}))
    event = BillingEvent.from_wire(wire)
    assert event.to_wire() == wire
    assert event.tokens == EVENT.tokens


def test_token_counts_above_the_maximum_are_capped() -> None:
    """The journal of an older proxy may hold larger counts, because that proxy did not cap them."""
    event = BillingEvent.from_wire(WIRE | {"tokens": [3 * MAX_COUNT, 2**53, 2**62]})
    assert event.tokens == Tokens(input=MAX_COUNT, output=MAX_COUNT, cached_input=MAX_COUNT)


def test_fields_of_a_newer_proxy_are_ignored() -> None:
    assert BillingEvent.from_wire(WIRE | {"shiny": 1}) == EVENT


FURTHER: list[dict[str, Any]] = [
    {"source": "REPORTED"},
    {"source": "COUNTED", "service_tier": "flex"},
    {"source": "REPORTED", "details": [1, 2, 3, 4, 5, 6, 7, 8], "group_path": "g0/g/", "is_count": True},
    {"source": "REPORTED", "group_path": "g0/g/", "balance_group": "g0"},
]


@pytest.mark.parametrize("further", FURTHER)
def test_what_else_a_call_cost_survives_a_round_trip(further: dict[str, Any]) -> None:
    event = BillingEvent.from_wire(WIRE | further)
    assert orjson.loads(orjson.dumps(event.to_wire())) == WIRE | further
    assert read_together([WIRE, WIRE | further]) == [EVENT, event]


def test_events_of_one_payer_with_and_without_a_balance_differ_in_that_alone() -> None:
    payer = Payer("w", "g", "e", "tg_k", "acme/chat", "g0/g/")
    without = orjson.loads(b"{%b}" % payer_members(payer))
    assert "balance_group" not in without, "an event of a call that draws from none is as before"
    drawing = payer._replace(balance_group="g0")
    assert orjson.loads(b"{%b}" % payer_members(drawing)) == without | {"balance_group": "g0"}


def test_an_event_of_an_older_proxy_has_no_details_and_costs_a_call() -> None:
    assert (EVENT.source, EVENT.balance_group) == (None, "")
    assert EVENT._replace(status=500).is_charged
    assert EVENT._replace(source="REPORTED").is_charged
    assert not EVENT._replace(source="REPORTED", status=400).is_charged
    assert not EVENT._replace(source="REPORTED", is_count=True).is_charged


def test_more_details_than_are_known_are_ignored_and_large_ones_capped() -> None:
    details = BillingEvent.from_wire(WIRE | {"details": [2**60, *range(2, 11)], "service_tier": "x" * 99}).details
    assert details == (MAX_COUNT, 2, 3, 4, 5, 6, 7, 8, "x" * 64)


@pytest.mark.parametrize("field", list(WIRE))
def test_a_missing_field_is_named_in_the_error(field: str) -> None:
    with pytest.raises(KeyError, match=field):
        BillingEvent.from_wire({name: value for name, value in WIRE.items() if name != field})


WRONG: list[tuple[str, Any]] = [
    ("tokens", [1, 2]),
    ("tokens", [1, 2, 3, 4]),
    ("tokens", [1, -1, 0]),
    ("tokens", [1, 1.5, 0]),
    ("tokens", ["1", 2, 3]),
    ("tokens", [True, 2, 3]),
    ("tokens", None),
    ("tokens", "123"),
    ("workspace_id", 1),
    ("idempotency_key", None),
    ("request_id", ["r"]),
    ("ended_at_ms", "1"),
    ("ended_at_ms", -1),
    ("ended_at_ms", 1.0),
    ("status", None),
    ("status", True),
    ("request_metadata", "text"),
    ("request_metadata", [1]),
    ("details", [1, -1]),
    ("details", [1.0]),
    ("details", 7),
    ("service_tier", None),
    ("group_path", 1),
    ("balance_group", None),
    ("balance_group", ["g0"]),
    ("source", "GUESSED"),
    ("source", []),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_field_of_the_wrong_type_is_refused(field: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        BillingEvent.from_wire(WIRE | {field: value})


@pytest.mark.parametrize("metadata", [None, {}, {"a": {"b": None}}])
def test_events_that_are_read_together_equal_those_read_one_by_one(metadata: Any) -> None:
    wires = [WIRE, WIRE | {"request_metadata": metadata, "tokens": [MAX_COUNT, 0, 0], "shiny": 1}]
    assert read_together(wires) == [BillingEvent.from_wire(wire) for wire in wires]


@pytest.mark.parametrize(("field", "value"), [*WRONG, ("tokens", [MAX_COUNT + 1, 0, 0]), ("status", MAX_COUNT + 1)])
def test_events_are_not_read_together_if_one_must_be_looked_at(field: str, value: Any) -> None:
    assert columns_from_wires([WIRE, WIRE | {field: value}]) is None


@pytest.mark.parametrize(
    "wire", [[], None, "x", 1, {}, *({k: v for k, v in WIRE.items() if k != name} for name in WIRE)]
)
def test_events_are_not_read_together_if_one_lacks_a_field(wire: Any) -> None:
    assert columns_from_wires([WIRE, wire]) is None


@pytest.mark.parametrize("wire", [[], None, "x", 1])
def test_json_other_than_an_object_is_refused(wire: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        BillingEvent.from_wire(wire)
