"""Draws of calls from balances are priced once, in the transaction that stores their events, on both databases."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from control.edges.sql import group_rows
from control.edges.sql.spend.balance_rows import HOUR_MS, drawn_units, draws_before, keep_groups
from control.edges.sql.store import Store
from control.edges.sql.tables import events
from control.records.spend import HourDraws
from control.resources.billing.prices import put_price
from control.resources.groups import remove_group
from control.resources.spend.draws import MAX_DRAW
from policy.billing import BillingEvent, Tokens
from policy.price_wire import price_from_wire
from policy.prices import parse_amount
from policy.spend.balances import Balance
from tests.control.billing import clock_ms, event, event_key, ingest_and_reader
from tests.control.plane import SLUG, TOKEN, ControlPlane, Json

UNITS = 10**22
"""The units of one of a currency."""


async def set_price(plane: ControlPlane, per_token: str, currency: str = "EUR", slug: str = SLUG) -> None:
    """Let a token of output cost this; others cost nothing."""
    per_million = format(parse_amount(per_token).scaleb(6), "f")
    wire = {
        "valid_from": "2020-01-01",
        "currency": currency,
        "input_per_million": "0",
        "output_per_million": per_million,
    }
    await put_price(plane.store, plane.workspace_id, price_from_wire(slug, wire))


async def paid_in(plane: ControlPlane, entity: str = "one", deposited: str = "10", parent: str | None = None) -> Json:
    group = await plane.group(entity, parent)
    async with plane.store.write() as tx:
        record = await group_rows.find_group(tx.conn, plane.workspace_id, group["id"])
        assert record is not None
        await group_rows.update_group(tx, replace(record, balance=Balance("EUR", parse_amount(deposited))))
    return group


def call(plane: ControlPlane, group: Json, number: int, output: int, **more: Any) -> BillingEvent:
    """A call of the group, which draws from it."""
    payer = {"workspace_id": plane.workspace_id, "group_id": group["id"], "group_path": f"{group['id']}/"}
    return event(number, **{**payer, "tokens": Tokens(output=output), "balance_group": group["id"], **more})


async def told(store: Store) -> Mapping[str, tuple[str | None, str | None]]:
    """The balance group and the draw of each event."""
    async with store.read() as conn:
        rows = await conn.execute(select(events.c.idempotency_key, events.c.balance_group, events.c.draw))
        return {row.idempotency_key: (row.balance_group, row.draw) for row in rows}


async def ledger(store: Store, group: Json) -> list[HourDraws]:
    async with store.read() as conn:
        return list(await draws_before(conn, group["id"], None, 100))


async def test_an_event_draws_what_it_costs_when_it_is_committed(plane: ControlPlane) -> None:
    group = await paid_in(plane)
    await set_price(plane, "0.000000000003")
    ingest, _ = ingest_and_reader(plane.store)
    hour_ms = await clock_ms(plane.store) // HOUR_MS * HOUR_MS + 2 * HOUR_MS  # later than now: it keeps its time
    drawing = [call(plane, group, 1, 5, ended_at_ms=hour_ms), call(plane, group, 2, 7, ended_at_ms=hour_ms + 1)]
    batch = [*drawing, event(3, workspace_id=plane.workspace_id)]
    assert await ingest.commit(batch) == 3
    expected = {event_key(1): (group["id"], "150000000000"), event_key(2): (group["id"], "210000000000")}
    assert await told(plane.store) == expected | {event_key(3): (None, None)}
    (row,) = await ledger(plane.store, group)
    assert (row.slug, row.calls, row.units) == (SLUG, 2, 360_000_000_000)
    assert row.hour_ms == hour_ms
    await set_price(plane, "9")
    assert await ingest.commit([*batch, call(plane, group, 4, 1)]) == 1, "what comes again is not priced again"
    async with plane.store.read() as conn:
        assert await drawn_units(conn, [group["id"]]) == {group["id"]: 360_000_000_000 + 9 * UNITS}


async def test_many_at_once_from_several_sides_draw_once(plane: ControlPlane) -> None:
    await set_price(plane, "1")
    groups = [await paid_in(plane, f"g{number}") for number in range(3)]
    batch = [call(plane, groups[number % 3], number, number) for number in range(60)]
    sides = [ingest_and_reader(plane.store)[0] for _ in range(4)]
    halves = (batch, batch[::-1], batch[:40], batch[20:])
    counts = await asyncio.gather(*(side.commit(half) for side, half in zip(sides, halves, strict=True)))
    assert sum(counts) == 60
    async with plane.store.read() as conn:
        drawn = await drawn_units(conn, [group["id"] for group in groups])
    assert list(map(drawn.get, [group["id"] for group in groups])) == [
        sum(range(first, 60, 3)) * UNITS for first in range(3)
    ]
    assert sum([(await ledger(plane.store, group))[0].calls for group in groups]) == 59, "one draws nothing"


async def test_a_price_is_that_of_the_events_time(plane: ControlPlane) -> None:
    group = await paid_in(plane)
    day_ms = 86_400_000
    await set_price(plane, "1")
    later = {"currency": "EUR", "input_per_million": "0", "output_per_million": "2000000", "valid_from": "2100-01-01"}
    await put_price(plane.store, plane.workspace_id, price_from_wire(SLUG, later))
    ingest, _ = ingest_and_reader(plane.store)
    far_ms = 4_102_444_800_000
    await ingest.commit(
        [call(plane, group, 1, 1, ended_at_ms=far_ms - day_ms), call(plane, group, 2, 1, ended_at_ms=far_ms)]
    )
    assert [draw for _, draw in (await told(plane.store)).values()] == [str(UNITS), str(2 * UNITS)]


async def test_a_call_draws_from_a_group_on_its_path_alone(plane: ControlPlane) -> None:
    await set_price(plane, "1")
    root, other = await paid_in(plane, "root"), await paid_in(plane, "other")
    child = await plane.group("child", root["id"])
    path = f"{root['id']}/{child['id']}/"
    ingest, _ = ingest_and_reader(plane.store)
    await ingest.commit(
        [
            call(plane, child, 1, 1, group_path=path, balance_group=root["id"]),
            call(plane, child, 2, 1, group_path=path, balance_group=other["id"]),
            call(plane, child, 3, 1, group_path=path, balance_group=root["id"][:-1]),
            call(plane, child, 4, 1, group_path=f"{path}grp_gone/", balance_group="grp_gone"),
        ]
    )
    assert [draw for _, draw in (await told(plane.store)).values()] == [str(UNITS), None, None, None]
    assert [row.calls for row in await ledger(plane.store, root)] == [1]
    assert await ledger(plane.store, other) == []


async def test_a_group_whose_first_credit_is_lost_still_counts_what_its_calls_draw(plane: ControlPlane) -> None:
    """A restore of the database does that: the credit is posted again later."""
    await set_price(plane, "2", "USD")
    group = await plane.group("one")
    ingest, _ = ingest_and_reader(plane.store)
    await ingest.commit([call(plane, group, 1, 3)])
    path = f"/v1/gateway/groups/{group['id']}/balance"
    assert (await plane.get(path)).status == 404
    body = {"amount": "5", "currency": "USD", "reference": "again"}
    (await plane.post(f"{path}/credits", body)).ok()
    assert (await plane.get(path)).ok()["available"] == "-1.00"
    (await plane.delete(f"/v1/gateway/groups/{group['id']}")).ok()


@pytest.mark.parametrize("currency", ["", "USD"])
async def test_a_call_without_a_price_draws_nothing_and_is_logged(
    plane: ControlPlane, currency: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = await paid_in(plane)
    if currency:
        await set_price(plane, "1", currency)
    ingest, _ = ingest_and_reader(plane.store)
    await ingest.commit([call(plane, group, number, 1) for number in range(5)])
    assert [draw for _, draw in (await told(plane.store)).values()] == ["0"] * 5
    assert await ledger(plane.store, group) == []
    (record,) = [record for record in caplog.records if "has no price in EUR" in record.getMessage()]
    assert group["id"] in record.getMessage()


async def test_absurd_figures_do_not_stop_ingest(plane: ControlPlane) -> None:
    group = await paid_in(plane)
    await set_price(plane, "999999.999999")
    ingest, _ = ingest_and_reader(plane.store)
    tokens = Tokens(output=2**53 - 1)
    await ingest.commit([call(plane, group, number, 0, tokens=tokens) for number in range(3)])
    async with plane.store.read() as conn:
        assert await drawn_units(conn, [group["id"]]) == {group["id"]: 3 * MAX_DRAW}


async def test_a_group_is_not_deleted_while_its_calls_are_being_committed(plane: ControlPlane) -> None:
    group = await paid_in(plane)
    async with plane.store.write() as tx:
        assert (await keep_groups(tx, [group["id"], "grp_x"])).keys() == {group["id"]}
        removing = asyncio.create_task(remove_group(plane.store, None, plane.workspace_id, group["id"], forfeit=True))
        results, _ = await asyncio.wait([removing], timeout=0.3)
        assert not results
    await removing


async def test_proxies_tell_the_group_whose_balance_a_call_draws_from(plane: ControlPlane) -> None:
    await set_price(plane, "1")
    group = await paid_in(plane)
    wires = [call(plane, group, 1, 2).to_wire(), call(plane, group, 2, 2, balance_group="").to_wire()]
    (await plane.post("/internal/v1/events", {"events": wires}, key=TOKEN)).ok()
    assert list((await told(plane.store)).values()) == [(group["id"], str(2 * UNITS)), (None, None)]
    for malformed in ("x" * 129, "a\0b", 7, None):
        wire = call(plane, group, 3, 1).to_wire() | {"balance_group": malformed}
        refused = await plane.post("/internal/v1/events", {"events": [wire]}, key=TOKEN)
        assert "events.0" in str(refused.refused(400, "INVALID_REQUEST"))
