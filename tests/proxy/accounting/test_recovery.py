"""Billing events and settlements from a journal, at whichever record the worker died."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import COUNTED, REPORTED, BillingEvent, Details, Tokens
from policy.limits.settlement import Reservation
from proxy.accounting.journal_records import HEAD_BYTES, Kind, frame
from proxy.accounting.recovery import (
    ORPHAN_STATUS,
    WITHDRAWN_STATUS,
    Halves,
    Ledger,
    join_events,
    settlements_of,
)
from tests.fakes.journal import progress_of
from tests.proxy.edges.journal.journals import ESTIMATE, OPENED_AT_MS, call, end, key, reservation


def read(ledger: Ledger, *records: bytes) -> list[Halves]:
    ended: list[Halves] = []
    data = b"".join(records)
    assert ledger.feed(data, ended, 1000) == (len(data), False)
    return ended


def event_of(call: Halves) -> BillingEvent:
    return BillingEvent.from_wire(wire_of(call))


def wire_of(call: Halves) -> dict[str, Any]:
    (encoded,) = join_events([call])
    wire: dict[str, Any] = orjson.loads(encoded)
    return wire


def test_closed_call_is_billed_and_settled() -> None:
    ledger = Ledger()
    (ended,) = read(ledger, call(4, metadata={"trace": "é\n"}).record, end(4).record)
    event = event_of(ended)
    assert (event.idempotency_key, event.request_id, event.model_slug) == (key(4), "req-4", "acme/chat")
    assert (event.workspace_id, event.group_id, event.external_entity_id) == ("ws_1", "grp_a", "customer-7")
    assert (event.api_key_prefix, event.status, event.tokens) == (
        "tg_abcdefghijkl",
        200,
        Tokens(input=11, output=7, cached_input=3),
    )
    assert (event.request_metadata, event.ended_at_ms) == ({"trace": "é\n"}, OPENED_AT_MS + 1004)
    (settlement,) = settlements_of([ended])
    assert (settlement.reservation, settlement.number, settlement.actual_tokens) == (reservation(4), 5, 18)
    assert ledger.orphans() == []


def test_withdrawn_call_has_no_event_and_settles_nothing() -> None:
    withdrawn = replace(end(1), status=WITHDRAWN_STATUS, tokens=Tokens(), numbers=())
    ended = read(Ledger(), call(1).record, withdrawn.record, call(2).record, end(2).record)
    (event,) = join_events(ended)
    assert orjson.loads(event)["idempotency_key"] == key(2)
    assert [settlement.reservation for settlement in settlements_of(ended)] == [reservation(2)]


OLDER_ESTIMATE = Tokens(input=120, output=340)
TWO_RESERVATIONS = (
    Reservation(
        key="tg:{root|a/b}",
        buckets=(("kid", 0b110), ("root", 0b100000)),
        admitted_at_ms=1_700_000_000_123,
        reserved_tokens=512,
        margin_tokens=ESTIMATE.margin,
    ),
    Reservation(
        key="tg:{g|a/b}",
        buckets=(),
        admitted_at_ms=5,
        reserved_tokens=2**53 - 1,
        local=True,
        margin_tokens=ESTIMATE.margin,
    ),
)


def test_settlements_have_the_whole_reservations_of_their_call() -> None:
    ended = read(Ledger(), call(1, reservations=TWO_RESERVATIONS).record, replace(end(1), numbers=(4, 9)).record)
    assert tuple(settlement.reservation for settlement in settlements_of(ended)) == TWO_RESERVATIONS


def test_open_record_with_margins_is_read_by_a_version_without_them() -> None:
    """The older version expects three members, five per reservation, and reads only the estimate's first figure."""
    record = call(1, reservations=TWO_RESERVATIONS).record
    _, estimate, reservations = orjson.loads(record[HEAD_BYTES:].partition(b"\n")[2])
    assert estimate[0] == ESTIMATE.expected
    assert {len(reservation) for reservation in reservations} == {5}


def opened_by_an_older_worker(number: int) -> bytes:
    """The payload of its OPEN record, whose estimate is of input, output and cached input."""
    start, _, line = call(number, reservations=TWO_RESERVATIONS).record[HEAD_BYTES:].partition(b"\n")
    time, _, reservations = orjson.loads(line)
    return start + b"\n" + orjson.dumps([time, [*OLDER_ESTIMATE], reservations])


def test_open_record_of_a_version_without_margins_is_read() -> None:
    older = frame(Kind.OPEN, opened_by_an_older_worker(1))
    settlements = settlements_of(read(Ledger(), older, replace(end(1), numbers=(4, 9)).record))
    assert [settlement.reservation.margin_tokens for settlement in settlements] == [0, 0]


def test_call_without_reservations_settles_nothing() -> None:
    ended = read(Ledger(), call(1, reservations=()).record, replace(end(1), numbers=()).record)
    assert len(ended) == 1
    assert settlements_of(ended) == []


@pytest.mark.parametrize(
    ("progress", "tokens", "ended_at_ms"),
    [
        ([], Tokens(), OPENED_AT_MS + 1),
        ([Tokens(input=90)], Tokens(input=90), OPENED_AT_MS + 2000),
        (
            [Tokens(input=90), Tokens(input=90, output=40), Tokens(input=90, output=75)],
            Tokens(input=90, output=75),
            OPENED_AT_MS + 4000,
        ),
        (
            [Tokens(input=90), Tokens(input=120, output=40, cached_input=7)],
            Tokens(input=120, output=40, cached_input=7),
            OPENED_AT_MS + 3000,
        ),
    ],
)
def test_orphan_is_billed_by_its_last_progress(progress: list[Tokens], tokens: Tokens, ended_at_ms: int) -> None:
    ledger = Ledger()
    records = [progress_of(key(1), figures, OPENED_AT_MS + 2000 + 1000 * n) for n, figures in enumerate(progress)]
    read(ledger, call(1).record, *records)
    (orphan,) = ledger.orphans()
    event = event_of(orphan)
    assert (event.tokens, event.status, event.ended_at_ms) == (tokens, ORPHAN_STATUS, ended_at_ms)
    assert settlements_of([orphan])[0].actual_tokens == tokens.total


def test_closed_call_has_its_details_and_source() -> None:
    closed = replace(end(1), details=Details(cache_write=5, reasoning=3, service_tier="flex"), source=REPORTED)
    (ended,) = read(Ledger(), replace(call(1), group_path="root/grp_a/").record, closed.record)
    wire = wire_of(ended)
    assert (wire["source"], wire["service_tier"], wire["group_path"]) == (REPORTED, "flex", "root/grp_a/")
    assert wire["details"] == [5, 0, 3, 0, 0, 0, 0, 0]
    assert "is_count" not in wire


def test_orphan_has_the_details_of_its_last_progress() -> None:
    ledger = Ledger()
    details = Details(cache_write=50, cache_write_1h=20, service_tier="priority")
    read(ledger, call(1).record, progress_of(key(1), Tokens(input=90, output=4), OPENED_AT_MS, details))
    (orphan,) = Ledger.from_wire(orjson.loads(orjson.dumps(ledger.to_wire()))).orphans()
    wire = wire_of(orphan)
    assert (wire["tokens"], wire["status"], wire["source"]) == ([90, 4, 0], ORPHAN_STATUS, COUNTED)
    assert (wire["details"], wire["service_tier"]) == ([50, 20, 0, 0, 0, 0, 0, 0], "priority")


def test_ended_and_dead_workers_calls_draw_from_the_balance_that_they_reserved_in() -> None:
    ledger = Ledger()
    records = [replace(call(number), balance_group="grp_top").record for number in (1, 2)]
    (ended,) = read(ledger, *records, call(3).record, end(1).record)
    orphans = Ledger.from_wire(orjson.loads(orjson.dumps(ledger.to_wire()))).orphans()
    assert [wire_of(each).get("balance_group") for each in (ended, *orphans)] == ["grp_top", "grp_top", None]
    assert event_of(orphans[0]).balance_group == "grp_top"


def test_records_of_a_worker_without_details_are_read() -> None:
    """Events of such a worker have no source. It wrote the ends of calls and their progress without further members."""
    ledger = Ledger()
    closed = key(1).encode() + b'\n"ended_at_ms":1795000001004,"status":200,"tokens":[11,7,3]}\n[2]'
    progress = key(2).encode() + b'\n"ended_at_ms":1795000001005,"tokens":[90,4,0]}'
    records = [call(1).record, call(2).record, frame(Kind.CLOSE, closed), frame(Kind.PROGRESS, progress)]
    (ended,) = read(ledger, *records)
    (orphan,) = ledger.orphans()
    assert [wire_of(each)["tokens"] for each in (ended, orphan)] == [[11, 7, 3], [90, 4, 0]]
    assert [wire_of(each).get("source") for each in (ended, orphan)] == [None, None]
    assert [wire_of(each)["status"] for each in (ended, orphan)] == [200, ORPHAN_STATUS]


def test_journal_of_an_older_worker_is_read() -> None:
    """ANSWERED records of the older worker carry no token counts: the estimated input is billed, and no output."""
    ledger = Ledger()
    first, second = (frame(Kind.OPEN, opened_by_an_older_worker(number)) for number in (1, 2))
    read(ledger, first, frame(Kind.ANSWERED, key(1).encode()), second)
    assert [event_of(orphan).tokens for orphan in ledger.orphans()] == [Tokens(input=OLDER_ESTIMATE.input), Tokens()]


def test_ledger_state_of_an_older_shipper_is_read() -> None:
    opened = [opened_by_an_older_worker(number).decode() for number in (1, 2)]
    ledger = Ledger.from_wire({"open": [[opened[0], True], [opened[1], False]], "latest_ms": 5})
    assert [event_of(orphan).tokens for orphan in ledger.orphans()] == [Tokens(input=OLDER_ESTIMATE.input), Tokens()]


def test_orphans_get_the_next_settlement_numbers_on_every_replay() -> None:
    shared = (reservation(1), reservation(2, "tg:{ws_1|tier}"))
    records = [call(n, reservations=shared).record for n in (3, 1, 2)] + [
        call(9).record,
        end(9).record,
    ]
    ledger = Ledger()
    again = Ledger()
    live = read(ledger, *records)
    read(again, *records)
    orphans = ledger.orphans()
    assert orphans == again.orphans()
    numbers: dict[str, list[int]] = {name: [] for name in (shared[0].key, shared[1].key)}
    for settlement in settlements_of(orphans):
        numbers[settlement.reservation.key].append(settlement.number)
    for settlement_numbers in numbers.values():
        assert settlement_numbers == sorted(set(settlement_numbers))
        assert min(settlement_numbers) > settlements_of(live)[0].number


def test_close_without_an_open_is_counted_and_not_billed() -> None:
    ledger = Ledger()
    assert read(ledger, end(1).record) == []
    assert ledger.unmatched == 1


@given(st.lists(st.sampled_from("oamc"), max_size=30), st.integers(0, 30))
def test_restored_ledger_continues_like_the_original(moves: list[str], cut: int) -> None:
    makers = {
        "o": lambda n: call(n).record,
        "a": lambda n: progress_of(key(n), Tokens(input=90, output=n), OPENED_AT_MS),
        "m": lambda n: frame(Kind.ANSWERED, key(n).encode()),
        "c": lambda n: end(n).record,
    }
    records = [makers[move](index % 5) for index, move in enumerate(moves)]
    straight = Ledger()
    first = Ledger()
    ended = read(straight, *records)
    before = read(first, *records[:cut])
    second = Ledger.from_wire(orjson.loads(orjson.dumps(first.to_wire())))
    after = read(second, *records[cut:])
    assert before + after == ended
    assert second.orphans() == straight.orphans()


def test_ledger_stops_at_the_requested_number_of_calls() -> None:
    records = [record for n in range(5) for record in (call(n).record, end(n).record)]
    ledger = Ledger()
    data = b"".join(records) + frame(Kind.END, b"")
    ended = list[Halves]()
    byte_count, over = ledger.feed(data, ended, 2)
    assert (data[:byte_count], over, ledger.last_number) == (b"".join(records[:4]), False, 2)
    assert ledger.feed(data[byte_count:], ended, 100) == (len(b"".join(records[4:])), True)
    assert [event_of(one).idempotency_key for one in ended] == [key(n) for n in range(5)]
    assert ledger.last_number == 5


def test_last_number_is_that_of_the_last_numbered_close() -> None:
    ledger = Ledger()
    read(ledger, call(1).record, replace(end(1), numbers=(7, 8)).record)
    read(ledger, call(2, reservations=()).record, replace(end(2), numbers=()).record)
    assert ledger.last_number == 8


def test_events_of_different_keys_have_their_own_fields() -> None:
    """Fields shared by the calls of one key are encoded once and reused."""
    calls = [
        call(1),
        replace(call(2), api_key_prefix='tg_"é'),
        replace(call(3), model_slug="acme/other", external_entity_id="customer-8"),
        call(4),
    ]
    records = [record for one in calls for record in (one.record, end(int(one.event_key[4:])).record)]
    for one, ended in zip(calls, read(Ledger(), *records), strict=True):
        event = event_of(ended)
        assert (event.workspace_id, event.group_id) == (one.workspace_id, one.group_id)
        assert (event.external_entity_id, event.model_slug) == (one.external_entity_id, one.model_slug)
        assert (event.api_key_prefix, event.request_id) == (one.api_key_prefix, one.request_id)
