"""The operator's price list: a price for each slug and the date from which it is valid.

See docs/reference/usage-reports.md#prices.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from control.edges.sql.billing import price_rows
from control.edges.sql.billing.long_context import keep_apart
from control.edges.sql.billing.price_rows import Position
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.workspace_rows import lock_workspace, owned_prefixes
from control.errors import InvalidFieldError, PriceNotFoundError, TooManyPricesError
from control.records.audit import Change
from control.records.policy import PriceRecord
from control.resources.billing.published_prices import publish_slug
from control.resources.changes.ownership import OwnerChange, with_owner
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_owner
from control.resources.changes.tags import price_tag
from policy.endpoints import EndpointRuleError, check_slug
from policy.price_wire import price_to_wire
from policy.prices import Price

MAX_PRICES = 10_000
"""The most prices of a workspace: each page of a report reads them all."""


async def put_price(store: Store, workspace_id: str, price: Price, owner: OwnerChange | None = None) -> PriceRecord:
    """Store the price. It replaces the slug's price of the same date. The slug need not have an endpoint."""

    async def work(tx: WriteTx) -> PriceRecord:
        try:
            check_slug(price.slug, await owned_prefixes(tx.conn, workspace_id))
        except EndpointRuleError as error:
            raise InvalidFieldError("slug", error.message) from None
        await lock_workspace(tx, workspace_id)  # two writers of one slug must each know what the other left
        position = (price.slug, price.valid_from_ms)
        old = await price_rows.find_record(tx.conn, workspace_id, position)
        tx.condition.check(None if old is None else price_tag(old))
        if old is None and await price_rows.count_prices(tx.conn, workspace_id) >= MAX_PRICES:
            raise TooManyPricesError(MAX_PRICES)
        await keep_apart(tx, workspace_id, price)
        record = with_owner(_written(old, price, tx.now_ms), owner)
        await price_rows.put_price(tx, workspace_id, record)
        if old is None or price != old.price:
            await publish_slug(tx, workspace_id, price.slug)
        if old is None or (price, record.managed_by) != (old.price, old.managed_by):
            before = None if old is None else shown_record(old)
            action = "price.create" if old is None else "price.update"
            tx.audit(workspace_id, Change(action, path_of(price), before, shown_record(record)))
        return record

    return await store.transact(work)


async def remove_price(store: Store, workspace_id: str, position: Position) -> PriceRecord:
    """The price that was deleted."""

    async def work(tx: WriteTx) -> PriceRecord:
        await lock_workspace(tx, workspace_id)
        old = await price_rows.find_record(tx.conn, workspace_id, position)
        if old is None:
            raise PriceNotFoundError
        tx.condition.check(price_tag(old))
        await price_rows.delete_price(tx, workspace_id, position)
        await publish_slug(tx, workspace_id, old.price.slug)
        tx.audit(workspace_id, Change("price.delete", path_of(old.price), shown_record(old), None))
        return old

    return await store.transact(work)


async def read_prices(
    store: Store, workspace_id: str, slug: str | None, after: Position | None, limit: int
) -> Sequence[PriceRecord]:
    """Return at most `limit` prices behind `after`, ordered by slug and date."""
    async with store.read() as conn:
        return await price_rows.list_records(conn, workspace_id, slug, after, limit)


def _written(old: PriceRecord | None, price: Price, now_ms: int) -> PriceRecord:
    """The record that this write leaves; each has a later time."""
    if old is None:
        return PriceRecord(price, now_ms)
    return replace(old, price=price, updated_at_ms=max(now_ms, old.updated_at_ms + 1))


def shown_record(record: PriceRecord) -> dict[str, Any]:
    """The price as the API and the audit trail show it, with its owner."""
    return {**shown_price(record.price), **shown_owner(record)}


def shown_price(price: Price) -> dict[str, Any]:
    """The price as reports show it."""
    return {"slug": price.slug, **price_to_wire(price)}
