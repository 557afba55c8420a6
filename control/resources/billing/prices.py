"""The operator's price list: a price for each slug and the date from which it is valid.

See docs/reference/usage-reports.md#prices.
"""

from collections.abc import Sequence
from typing import Any

from control.edges.sql.billing import price_rows
from control.edges.sql.billing.long_context import keep_apart
from control.edges.sql.billing.price_rows import Position
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.workspace_rows import lock_workspace, owned_prefixes
from control.errors import InvalidFieldError, PriceNotFoundError, TooManyPricesError
from control.records.audit import Change
from control.resources.billing.published_prices import publish_slug
from control.resources.changes.resource_paths import path_of
from policy.endpoints import EndpointRuleError, check_slug
from policy.price_wire import price_to_wire
from policy.prices import Price

MAX_PRICES = 10_000
"""The most prices of a workspace: each page of a report reads them all."""


async def put_price(store: Store, workspace_id: str, price: Price) -> Price:
    """Store the price. It replaces the slug's price of the same date. The slug need not have an endpoint."""

    async def work(tx: WriteTx) -> Price:
        try:
            check_slug(price.slug, await owned_prefixes(tx.conn, workspace_id))
        except EndpointRuleError as error:
            raise InvalidFieldError("slug", error.message) from None
        await lock_workspace(tx, workspace_id)  # two writers of one slug must each know what the other left
        position = (price.slug, price.valid_from_ms)
        old = await price_rows.find_price(tx.conn, workspace_id, position)
        if old is None and await price_rows.count_prices(tx.conn, workspace_id) >= MAX_PRICES:
            raise TooManyPricesError(MAX_PRICES)
        await keep_apart(tx, workspace_id, price)
        await price_rows.put_price(tx, workspace_id, price)
        if price != old:
            await publish_slug(tx, workspace_id, price.slug)
            before = None if old is None else shown_price(old)
            action = "price.create" if old is None else "price.update"
            tx.audit(workspace_id, Change(action, path_of(price), before, shown_price(price)))
        return price

    return await store.transact(work)


async def remove_price(store: Store, workspace_id: str, position: Position) -> Price:
    """The price that was deleted."""

    async def work(tx: WriteTx) -> Price:
        await lock_workspace(tx, workspace_id)
        old = await price_rows.find_price(tx.conn, workspace_id, position)
        if old is None or not await price_rows.delete_price(tx, workspace_id, position):
            raise PriceNotFoundError
        await publish_slug(tx, workspace_id, old.slug)
        tx.audit(workspace_id, Change("price.delete", path_of(old), shown_price(old), None))
        return old

    return await store.transact(work)


async def read_prices(
    store: Store, workspace_id: str, slug: str | None, after: Position | None, limit: int
) -> Sequence[Price]:
    """Return at most `limit` prices behind `after`, ordered by slug and date."""
    async with store.read() as conn:
        return await price_rows.list_prices(conn, workspace_id, slug, after, limit)


def shown_price(price: Price) -> dict[str, Any]:
    """The price as the API and the audit trail show it."""
    return {"slug": price.slug, **price_to_wire(price)}
