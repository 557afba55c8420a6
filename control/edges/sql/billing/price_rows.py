"""Queries on `prices`. Amounts are decimal text in the database, because SQLite has no exact numbers."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson
from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import prices, published
from control.edges.sql.workspace_rows import owned_prefixes
from control.long_work import beside
from control.records.policy import PriceRecord
from policy.price_wire import price_from_wire, price_to_wire
from policy.prices import Price, date_text, token_prices
from policy.snapshot import PriceRow, RowKind, Wire

Position = tuple[str, int]
"""Slug and `valid_from_ms`, by which lists are ordered."""
_IDENTITY = (prices.c.slug, prices.c.valid_from_ms)
_AMOUNTS = (
    prices.c.input_per_million,
    prices.c.cached_input_per_million,
    prices.c.output_per_million,
    prices.c.per_call,
)
_AMOUNT_NAMES = tuple(column.name for column in _AMOUNTS)
_NEEDED = ("valid_from", "currency", *_AMOUNT_NAMES)
_OWNERSHIP = (prices.c.updated_at_ms, prices.c.managed_by, prices.c.managed_at_ms)
_PRICE = (*_IDENTITY, prices.c.currency, prices.c.other_members, *_AMOUNTS)


async def put_price(tx: WriteTx, workspace_id: str, record: PriceRecord) -> None:
    """Insert the price, or replace the slug's price of the same date."""
    price = record.price
    values = {**_columns(price), **{column.name: getattr(record, column.name) for column in _OWNERSHIP}}
    dialect: Any = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    row = {"workspace_id": workspace_id, "slug": price.slug, "valid_from_ms": price.valid_from_ms, **values}
    statement = dialect.insert(prices).values(row)
    identity = ["workspace_id", "slug", "valid_from_ms"]
    await tx.conn.execute(statement.on_conflict_do_update(index_elements=identity, set_=values))


async def find_record(conn: Connection, workspace_id: str, position: Position) -> PriceRecord | None:
    slug, valid_from_ms = position
    query = select(*_OWNERSHIP, *_PRICE).where(
        prices.c.workspace_id == workspace_id, prices.c.slug == slug, prices.c.valid_from_ms == valid_from_ms
    )
    row = (await conn.execute(query)).first()
    return None if row is None else _record(row)


async def count_prices(conn: Connection, workspace_id: str) -> int:
    query = select(func.count()).where(prices.c.workspace_id == workspace_id)
    return int((await conn.execute(query)).scalar_one())


async def delete_price(tx: WriteTx, workspace_id: str, position: Position) -> None:
    slug, valid_from_ms = position
    statement = delete(prices).where(
        prices.c.workspace_id == workspace_id, prices.c.slug == slug, prices.c.valid_from_ms == valid_from_ms
    )
    await tx.conn.execute(statement)


async def list_prices(
    conn: Connection, workspace_id: str, slug: str | None, after: Position | None, limit: int
) -> Sequence[Price]:
    """Return at most `limit` prices behind `after`, of one slug or of all."""
    query = _page(select(*_PRICE), workspace_id, slug, after)
    return [_price(row) for row in await conn.execute(query.limit(limit))]


async def list_records(
    conn: Connection, workspace_id: str, slug: str | None, after: Position | None, limit: int
) -> Sequence[PriceRecord]:
    """The same with their owners."""
    query = _page(select(*_OWNERSHIP, *_PRICE), workspace_id, slug, after)
    return [_record(row) for row in await conn.execute(query.limit(limit))]


def _page(query: Any, workspace_id: str, slug: str | None, after: Position | None) -> Any:
    query = query.where(prices.c.workspace_id == workspace_id).order_by(*_IDENTITY)
    if slug is not None:
        query = query.where(prices.c.slug == slug)
    return query if after is None else query.where(tuple_(*_IDENTITY) > after)


async def prices_between(
    conn: Connection, workspace_id: str, slugs: Iterable[str], first_ms: int, last_ms: int
) -> Sequence[Price]:
    """The prices of these slugs that are valid at any time from `first_ms` to `last_ms`, both inclusive."""
    earlier = prices.alias("earlier")
    own = (earlier.c.workspace_id == prices.c.workspace_id, earlier.c.slug == prices.c.slug)
    latest = select(func.max(earlier.c.valid_from_ms)).where(*own, earlier.c.valid_from_ms <= first_ms)
    from_ms = func.coalesce(latest.correlate(prices).scalar_subquery(), first_ms)
    query = select(*_PRICE).where(
        prices.c.workspace_id == workspace_id,
        one_of(prices.c.slug, slugs),
        prices.c.valid_from_ms <= last_ms,
        prices.c.valid_from_ms >= from_ms,
    )
    rows = (await conn.execute(query)).all()
    return await beside(workspace_id, len(rows), lambda: list(map(_price, rows)))


async def prices_from(conn: Connection, workspace_id: str, slug: str, from_ms: int, limit: int) -> Sequence[Price]:
    """The slug's price that is valid at `from_ms`, and those after it: at most `limit`, by date."""
    own = (prices.c.workspace_id == workspace_id, prices.c.slug == slug)
    latest = select(func.max(prices.c.valid_from_ms)).where(*own, prices.c.valid_from_ms <= from_ms)
    first_ms = func.coalesce(latest.scalar_subquery(), 0)
    query = select(*_PRICE).where(*own, prices.c.valid_from_ms >= first_ms)
    return [_price(row) for row in await conn.execute(query.order_by(prices.c.valid_from_ms).limit(limit))]


def publish_prices(tx: WriteTx, workspace_id: str, slug: str, dated: Sequence[Price]) -> None:
    """Publish the slug's prices, by date. Without any, proxies forget those that they have."""
    tx.publish(RowKind.PRICE, slug, published_body(workspace_id, slug, dated))


def published_body(workspace_id: str, slug: str, dated: Sequence[Price]) -> Wire | None:
    return PriceRow(slug, workspace_id, tuple(dated)).to_wire() if dated else None


async def published_prices(conn: Connection, workspace_id: str) -> Mapping[str, str]:
    """The bodies of the rows that proxies have of the workspace's slugs, by slug."""
    bodies: dict[str, str] = {}
    for prefix in await owned_prefixes(conn, workspace_id):
        query = select(published.c.id, published.c.body).where(
            published.c.kind == RowKind.PRICE.value,
            published.c.id > f"{prefix}/",
            published.c.id < f"{prefix}0",  # the character after the slash
            published.c.body.is_not(None),
        )
        bodies |= {row.id: row.body for row in await conn.execute(query)}
    return bodies


def _record(row: Any) -> PriceRecord:
    return PriceRecord(_price(row[len(_OWNERSHIP) :]), *row[: len(_OWNERSHIP)])


def _price(row: Any) -> Price:
    """Read the columns by place: a report has thousands of prices, and names take longer than all the rest."""
    slug, valid_from_ms, currency, others, *amounts = row
    if others is not None:
        members = {"valid_from": date_text(valid_from_ms), "currency": currency, **orjson.loads(others)}
        return price_from_wire(slug, members | dict(zip(_AMOUNT_NAMES, amounts, strict=True)))
    input, cached_input, output, per_call = map(Decimal, amounts)
    return Price(slug, valid_from_ms, currency, token_prices(input, output, cached_input=cached_input), per_call)


def _columns(price: Price) -> dict[str, Any]:
    """The price as its columns hold it. Control of before `other_members` reads and writes the other ones alone."""
    members = price_to_wire(price)
    defaults = price_to_wire(price_from_wire(price.slug, {name: members[name] for name in _NEEDED}))
    others = {name: member for name, member in members.items() if member != defaults[name] and name not in _NEEDED}
    columns = {name: members[name] for name in ("currency", *_AMOUNT_NAMES)}
    return {**columns, "other_members": orjson.dumps(others).decode() if others else None}
