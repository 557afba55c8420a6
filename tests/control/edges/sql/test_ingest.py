"""Events come in once each, stamped so that no served window changes, on both databases."""

import asyncio
import io
from typing import Any

import orjson
import pytest
from sqlalchemy import insert, select

from control.edges.sql.store import Store, WriteTx
from control.edges.sql.tables import DETAIL_FIGURES, api_keys, events, webhooks, workspaces
from control.errors import IngestTooSlowError
from control.records.events import EventWindow
from policy.billing import Details, Tokens
from tests.control.billing import (
    HOLDBACK_S,
    ShiftedClock,
    clock_ms,
    event,
    event_key,
    ingest_and_reader,
    store_as_an_older_version,
)
from tests.control.plane import TOKEN, ControlPlane


async def rows_of(store: Store) -> dict[str, Any]:
    async with store.read() as conn:
        return {row.idempotency_key: row for row in await conn.execute(select(events))}


async def add_webhook(store: Store, workspace_id: str, enabled: bool = True) -> None:
    workspace = {"name": workspace_id, "tier": "basic", "billing": "active", "onboarded": True, "created_at_ms": 1}
    webhook = {"url": "https://hooks.example.com", "enabled": enabled, "secret": "", "created_at_ms": 1}
    async with store.write() as tx:
        await tx.conn.execute(insert(workspaces).values(id=workspace_id, **workspace))
        await tx.conn.execute(
            insert(webhooks).values(id=f"wh_{workspace_id}", workspace_id=workspace_id, updated_at_ms=1, **webhook)
        )


async def test_an_event_is_stored_as_it_was_told(store: Store) -> None:
    await add_webhook(store, "ws_1")
    ingest, _ = ingest_and_reader(store)
    now_ms = await clock_ms(store)
    original = event(
        1,
        now_ms,
        tokens=Tokens(input=2**53, output=7, cached_input=5),
        request_metadata={"trace": "é\"'\\", "n": [1, None, {"x": "\0"}]},
    )
    assert await ingest.commit([original]) == 1
    (row,) = (await rows_of(store)).values()
    assert (row.workspace_id, row.group_id, row.external_entity_id) == ("ws_1", "grp_1", "customer-1")
    assert (row.input_tokens, row.output_tokens, row.cached_input_tokens, row.status) == (2**53, 7, 5, 200)
    assert row.timestamp_ms == now_ms
    assert orjson.loads(row.request_metadata) == original.request_metadata


DETAILS = ("source", "service_tier", *DETAIL_FIGURES, "charged")


async def test_what_else_a_call_cost_is_stored_and_what_it_did_not_takes_no_room(store: Store) -> None:
    ingest, _ = ingest_and_reader(store)
    whole = Details(1, 2, 3, 4, 5, 6, 7, 8, "flex")
    batch = [
        event(1, source="COUNTED", details=whole),
        event(2, source="REPORTED", details=Details(reasoning=9)),
        event(3, source="REPORTED", status=500),
        event(4, source="REPORTED", is_count=True),
        event(5, status=500),
    ]
    for events_at_once in ([batch[2]], batch):
        await ingest.commit(events_at_once)
    nothing = (None,) * len(DETAIL_FIGURES)
    assert [tuple(getattr(row, name) for name in DETAILS) for _, row in sorted((await rows_of(store)).items())] == [
        ("COUNTED", "flex", 1, 2, 3, 4, 5, 6, 7, 8, 1),
        ("REPORTED", None, None, None, 9, *nothing[3:], 1),
        ("REPORTED", None, *nothing, 0),
        ("REPORTED", None, *nothing, 0),
        (None, None, *nothing, 1),
    ]


async def test_an_event_that_is_told_again_keeps_its_first_details(store: Store) -> None:
    ingest, _ = ingest_and_reader(store)
    assert await ingest.commit([event(1, source="COUNTED", details=Details(reasoning=4), group_path="a/grp_1/")]) == 1
    before = await rows_of(store)
    again = event(1, source="REPORTED", details=Details(9, service_tier="flex"), group_path="b/grp_1/")
    assert await ingest.commit([again, event(1)]) == 0
    assert await rows_of(store) == before


async def test_an_event_of_an_older_version_of_control_has_no_details_and_costs_a_call(store: Store) -> None:
    assert await store_as_an_older_version(store, [event(1, status=500)]) == 1
    (row,) = (await rows_of(store)).values()
    assert [getattr(row, name) for name in DETAILS] == [None] * (len(DETAILS) - 1) + [1]
    assert row.group_path is None


async def test_an_event_has_the_path_that_its_proxy_told_else_that_of_its_group_now(plane: ControlPlane) -> None:
    root = await plane.group("root")
    child = await plane.group("child", root["id"])
    batch = [
        event(1, group_id=child["id"], group_path=f"grp_of_then/{child['id']}/"),
        event(2, group_id=child["id"]),
        event(3, group_id="grp_deleted"),
        event(4, group_id=root["id"]),
    ]
    await ingest_and_reader(plane.store)[0].commit(batch)
    assert [row.group_path for _, row in sorted((await rows_of(plane.store)).items())] == [
        f"grp_of_then/{child['id']}/",
        f"{root['id']}/{child['id']}/",
        "grp_deleted/",
        f"{root['id']}/",
    ]


async def test_metadata_that_no_webhook_is_sent_is_not_stored(store: Store) -> None:
    await add_webhook(store, "ws_on")
    await add_webhook(store, "ws_off", enabled=False)
    ingest, _ = ingest_and_reader(store)
    of = {"ws_on": 1, "ws_off": 2, "ws_none": 3}
    await ingest.commit([event(n, workspace_id=id, request_metadata={"n": n}) for id, n in of.items()])
    rows = await rows_of(store)
    assert {row.workspace_id: row.request_metadata for row in rows.values()} == {
        "ws_on": '{"n":1}',
        "ws_off": None,
        "ws_none": None,
    }


async def test_the_same_events_again_change_nothing_and_new_ones_among_them_count(store: Store) -> None:
    ingest, _ = ingest_and_reader(store)
    assert await ingest.commit([event(n) for n in range(5)]) == 5
    before = await rows_of(store)
    assert await ingest.commit([event(n, tokens=Tokens(input=1, output=1, cached_input=1)) for n in (3, 9, 4, 9)]) == 1
    after = await rows_of(store)
    assert after.keys() == before.keys() | {event_key(9)}
    assert all(after[key] == row for key, row in before.items())


async def test_many_at_once_from_several_sides_are_each_taken_once(store: Store) -> None:
    ingest, _ = ingest_and_reader(store)
    batches = [[event(n) for n in range(start, start + 400)] for start in (0, 200, 100, 0, 300)]
    counts = await asyncio.gather(*(ingest.commit(batch) for batch in batches))
    assert sum(counts) == 700
    assert len(await rows_of(store)) == 700


async def test_an_empty_batch_is_no_fault(store: Store) -> None:
    assert await ingest_and_reader(store)[0].commit([]) == 0


async def test_a_late_event_is_stamped_no_earlier_than_half_the_holdback_ago(store: Store) -> None:
    ingest, _ = ingest_and_reader(store)
    before_ms = await clock_ms(store)
    await ingest.commit([event(1, ended_at_ms=5), event(2, before_ms - 1000)])
    rows = await rows_of(store)
    after_ms = await clock_ms(store)
    half_ms = int(HOLDBACK_S * 500)
    assert before_ms - half_ms <= rows[event_key(1)].timestamp_ms <= after_ms - half_ms
    assert rows[event_key(2)].timestamp_ms == before_ms - 1000


async def test_a_transaction_beyond_a_quarter_of_the_holdback_is_aborted_and_tried_again(store: Store) -> None:
    await add_webhook(store, "ws_1")
    stamps: list[int] = []

    async def slow_at_first(tx: WriteTx, rows: Any, receivers: object) -> None:
        stamps.append(rows[0].timestamp_ms)
        if len(stamps) == 1:
            await asyncio.sleep(1.1)

    ingest, _ = ingest_and_reader(store, 4.0, outbox=slow_at_first)
    assert await ingest.commit([event(1)]) == 1
    assert stamps[1] >= stamps[0] + 1000
    assert (await rows_of(store))[event_key(1)].timestamp_ms == stamps[1]


async def test_a_database_that_is_always_too_slow_takes_nothing(store: Store) -> None:
    await add_webhook(store, "ws_1")

    async def slow(tx: WriteTx, rows: Any, receivers: object) -> None:
        await asyncio.sleep(0.2)

    ingest, _ = ingest_and_reader(store, 0.4, outbox=slow)
    with pytest.raises(IngestTooSlowError):
        await ingest.commit([event(1)])
    assert await rows_of(store) == {}


async def test_the_outbox_is_told_of_new_events_alone_and_shares_their_fate(store: Store) -> None:
    await add_webhook(store, "ws_1")
    batches: list[list[str]] = []

    async def outbox(tx: WriteTx, rows: Any, receivers: object) -> None:
        batches.append(sorted(row.idempotency_key for row in rows))
        if len(batches) == 2:
            raise ZeroDivisionError

    ingest, _ = ingest_and_reader(store, outbox=outbox)
    await ingest.commit([event(1), event(2)])
    with pytest.raises(ZeroDivisionError):
        await ingest.commit([event(2), event(3)])
    await ingest.commit([event(1), event(2)])
    await ingest.commit([event(2), event(3)])
    assert batches == [[event_key(1), event_key(2)], [event_key(3)], [event_key(3)]]


async def test_a_clock_that_was_set_back_stamps_by_the_latest_time_shown(store: Store) -> None:
    clock = ShiftedClock()
    ingest, statements = ingest_and_reader(store, clock=clock)
    page = await statements.first_page(EventWindow("ws_1", 0, 1 << 60), 10)
    clock.offset_ms = -3_600_000
    await ingest.commit([event(1, page.window.end_ms - 1)])
    assert (await rows_of(store))[event_key(1)].timestamp_ms >= page.window.end_ms
    again = await statements.first_page(EventWindow("ws_1", 0, 1 << 60), 10)
    assert again.window.end_ms >= page.window.end_ms - HOLDBACK_S * 1000 / 8


async def test_last_used_at_follows_the_events(plane: ControlPlane) -> None:
    group = await plane.group("customer-1")
    key = (await plane.post(f"/v1/gateway/groups/{group['id']}/api_keys", {})).ok()
    listed = (await plane.get(f"/v1/gateway/groups/{group['id']}/api_keys")).ok()["items"]
    assert listed[0]["last_used_at"] is None
    now_ms = await clock_ms(plane.store)
    await ingest_and_reader(plane.store)[0].commit([event(1, now_ms, api_key_prefix=key["prefix"])])
    async with plane.store.read() as conn:
        query = select(api_keys.c.last_used_at_ms).where(api_keys.c.prefix == key["prefix"])
        assert (await conn.execute(query)).scalar_one() == now_ms


async def post(plane: ControlPlane, body: object, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    async with plane.client.post("/internal/v1/events", data=io.BytesIO(data), headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_batch_behind_an_event_that_is_not_here_is_refused_whole(plane: ControlPlane) -> None:
    """Otherwise, after a restore, the batch itself would count as proof that no event is missing."""
    first, second, third = (event(number).to_wire() for number in range(3))
    assert await post(plane, {"events": [first]}) == (200, {"accepted": 1})
    assert await post(plane, {"after": event_key(0), "events": [second]}) == (200, {"accepted": 1})
    for _ in range(2):
        status, answer = await post(plane, {"after": event_key(2), "events": [third]})
        assert (status, answer["code"]) == (409, "EVENTS_LOST")
    assert await post(plane, {"after": event_key(1), "events": []}) == (200, {"accepted": 0})
    status, _ = await post(plane, {"after": event_key(2), "events": []})
    assert status == 409
    assert await post(plane, {"events": [third]}) == (200, {"accepted": 1})
    for wrong in ("", 7, ["x"], "k" * 65):
        status, answer = await post(plane, {"after": wrong, "events": []})
        assert (status, answer["details"][0]["field"]) == (400, "after")


async def test_proxies_hand_in_batches_and_learn_how_many_were_new(plane: ControlPlane) -> None:
    wires = [event(n).to_wire() for n in range(1000)]
    assert await post(plane, {"events": wires}) == (200, {"accepted": 1000})
    assert await post(plane, {"events": wires[:10]}) == (200, {"accepted": 0})
    status, _ = await post(plane, {"events": wires}, token="wrong-token-of-the-tests")
    assert status == 401


async def test_a_batch_may_be_larger_than_what_the_management_api_takes(sqlite_plane: ControlPlane) -> None:
    wires = [event(n, request_metadata={"m": "x" * 4000}).to_wire() for n in range(1000)]
    assert await post(sqlite_plane, {"events": wires}) == (200, {"accepted": 1000})


async def test_numbers_in_metadata_are_stored_digit_by_digit(plane: ControlPlane) -> None:
    (await plane.post("/v1/gateway/webhooks", {"url": "https://hooks.example.com/"})).ok()
    exact = '{"id":340282366920938463463374607431768211456,"deep":[{"x":0.1234567890123456789,"e":1e-400}]}'
    wires = [orjson.dumps(event(n, workspace_id=plane.workspace_id).to_wire()).decode() for n in range(2)]
    exact_one = wires[1].replace('"request_metadata":null', f'"request_metadata": {exact}')
    status, body = await post(plane, f'{{"events":[{wires[0]},{exact_one}]}}'.encode())
    assert (status, body) == (200, {"accepted": 2})
    rows = await rows_of(plane.store)
    assert [rows[event_key(n)].request_metadata for n in range(2)] == [None, exact]


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [1, 2]},
        {"tokens": [1, 2, -3]},
        {"tokens": None},
        {"idempotency_key": ""},
        {"idempotency_key": 7},
        {"model_slug": "a\0b"},
        {"external_entity_id": "x" * 256},
        {"ended_at_ms": "now"},
        {"ended_at_ms": -1},
        {"status": 1000},
        {"request_metadata": [1]},
        {"group_path": "x" * 1025},
        {"group_path": "a\0b/"},
        {"details": [-1]},
        {"source": "GUESSED"},
    ],
)
async def test_a_malformed_event_is_named_and_nothing_of_its_batch_is_taken(
    sqlite_plane: ControlPlane, change: dict[str, object]
) -> None:
    wires = [event(1).to_wire(), event(2).to_wire() | change]
    status, body = await post(sqlite_plane, {"events": wires})
    assert status == 400
    assert body["details"][0]["field"] == "events.1"
    assert await rows_of(sqlite_plane.store) == {}


async def test_a_malformed_event_is_named_by_its_place_in_the_whole_batch(sqlite_plane: ControlPlane) -> None:
    wires = [event(n).to_wire() for n in range(120)]
    wires[117] |= {"status": 1000}
    status, body = await post(sqlite_plane, {"events": wires})
    assert (status, body["details"][0]["field"]) == (400, "events.117")
    assert await rows_of(sqlite_plane.store) == {}


async def test_no_event_is_refused_for_the_size_of_its_figures(plane: ControlPlane) -> None:
    """A journal of an older proxy may hold sums of figures that nobody had bounded."""
    wires = [event(1).to_wire(), event(2).to_wire() | {"tokens": [3 * (2**53 - 1), 2**53, 2**62]}]
    assert await post(plane, {"events": wires}) == (200, {"accepted": 2})
    rows = await rows_of(plane.store)
    assert (rows[event_key(2)].input_tokens, rows[event_key(2)].output_tokens) == (2**53 - 1, 2**53 - 1)


async def test_no_event_is_refused_for_the_name_of_its_service_tier(plane: ControlPlane) -> None:
    """It is what a provider reported."""
    wire = event(1).to_wire() | {"source": "REPORTED", "service_tier": f"fl\0ex{'x' * 100}"}
    assert await post(plane, {"events": [wire]}) == (200, {"accepted": 1})
    assert (await rows_of(plane.store))[event_key(1)].service_tier == f"flex{'x' * 60}"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"events": 1}', b"\xff", orjson.dumps({"events": [1] * 4001})])
async def test_what_is_no_batch_is_refused(sqlite_plane: ControlPlane, body: bytes) -> None:
    status, _ = await post(sqlite_plane, body)
    assert status == 400


async def test_an_event_that_lacks_a_member_is_malformed(sqlite_plane: ControlPlane) -> None:
    for name in event(1).to_wire():
        wire = event(1).to_wire()
        del wire[name]
        assert (await post(sqlite_plane, {"events": [wire]}))[0] == 400, name
    assert (await post(sqlite_plane, {"events": [7]}))[0] == 400
