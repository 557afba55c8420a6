"""Proxies have the prices of each slug from the one that is valid now on, with the change that sets them."""

from collections.abc import Sequence

import orjson
import pytest
from sqlalchemy import select

from control.edges.sql.billing import price_rows
from control.edges.sql.store import current_revision
from control.edges.sql.tables import published
from control.records.policy import PriceRecord
from control.resources.billing import published_prices
from control.resources.billing.published_prices import PricePublisher
from policy.prices import Price, parse_date
from policy.snapshot import PriceRow, RowKind
from tests.control.plane import ControlPlane
from tests.control.reports import PRICES, price

DAYS = [parse_date(text) for text in ("2020-01-01", "2020-02-01", "2999-01-01", "2999-02-01")]


async def rows(plane: ControlPlane) -> dict[str, PriceRow | None]:
    """The rows of prices that proxies get."""
    query = select(published.c.id, published.c.body).where(published.c.kind == RowKind.PRICE.value)
    async with plane.store.read() as conn:
        bodies = list(await conn.execute(query))
    return {slug: None if body is None else PriceRow.from_wire(slug, orjson.loads(body)) for slug, body in bodies}


async def revision(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        return await current_revision(conn)


def dates(row: PriceRow | None) -> list[int]:
    assert row is not None
    return [one.valid_from_ms for one in row.prices]


async def stored_prices(plane: ControlPlane) -> Sequence[Price]:
    async with plane.store.read() as conn:
        return await price_rows.list_prices(conn, plane.workspace_id, None, None, 100)


async def store_as_older_control(plane: ControlPlane, slug: str, day_ms: int) -> None:
    """Store a price that is not published."""
    template = (await stored_prices(plane))[0]
    async with plane.store.write() as tx:
        await price_rows.put_price(tx, plane.workspace_id, PriceRecord(Price(slug, day_ms, "EUR", template.tokens), 1))


async def test_a_price_is_published_with_its_change_and_removed_with_its_deletion(plane: ControlPlane) -> None:
    await price(plane, "acme/chat", DAYS[0], per_server_tool_call="0.01", cache_write_per_million="9")
    [stored] = await stored_prices(plane)
    assert await rows(plane) == {"acme/chat": PriceRow("acme/chat", plane.workspace_id, (stored,))}
    before = await revision(plane)
    await price(plane, "acme/chat", DAYS[0], per_server_tool_call="0.01", cache_write_per_million="9")
    assert await revision(plane) == before  # it was so already
    (await plane.delete(PRICES, params={"slug": "acme/chat", "valid_from": "2020-01-01"})).ok()
    assert await rows(plane) == {"acme/chat": None}


async def test_proxies_have_the_price_that_is_valid_and_those_after_it(plane: ControlPlane) -> None:
    for day_ms in reversed(DAYS):
        await price(plane, "acme/chat", day_ms)
    await price(plane, "acme/later", DAYS[2])
    published_rows = await rows(plane)
    assert dates(published_rows["acme/chat"]) == DAYS[1:]
    assert dates(published_rows["acme/later"]) == DAYS[2:3]


async def test_a_row_of_prices_is_bounded(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_prices, "MAX_PUBLISHED", 2)
    for day_ms in DAYS:
        await price(plane, "acme/chat", day_ms)
    assert dates((await rows(plane))["acme/chat"]) == DAYS[1:3]
    await PricePublisher(plane.store).publish()
    assert dates((await rows(plane))["acme/chat"]) == DAYS[1:3]


async def test_prices_that_an_older_control_changed_are_published(plane: ControlPlane) -> None:
    other = await plane.another_workspace()
    body = {"slug": "other/chat", "valid_from": "2020-01-01", "currency": "EUR"}
    amounts = {"input_per_million": "1", "output_per_million": "1"}
    (await plane.put(PRICES, {**body, **amounts}, key=other["api_key"])).ok()
    await price(plane, "acme/chat", DAYS[0])
    await price(plane, "acme/old", DAYS[0])
    await store_as_older_control(plane, "acme/chat", DAYS[2])
    await store_as_older_control(plane, "acme/new", DAYS[1])
    async with plane.store.write() as tx:
        await price_rows.delete_price(tx, plane.workspace_id, ("acme/old", DAYS[0]))
    publisher = PricePublisher(plane.store)
    await publisher.publish()
    published_rows = await rows(plane)
    assert dates(published_rows["acme/chat"]) == [DAYS[0], DAYS[2]]
    assert dates(published_rows["acme/new"]) == [DAYS[1]]
    assert published_rows["acme/old"] is None
    assert dates(published_rows["other/chat"]) == [DAYS[0]]
    before = await revision(plane)
    await publisher.publish()
    assert await revision(plane) == before
