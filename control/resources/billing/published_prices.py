"""Publishes prices to the proxies: with each change, and again every hour.

The hourly look publishes what an older version of control stored beside this one, and prices that come within the bound
as time passes. See docs/reference/usage-reports.md#prices.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter

import orjson

from control.edges.sql.billing import price_rows
from control.edges.sql.store import Connection, Store, WriteTx, now_ms
from control.edges.sql.workspace_rows import all_workspaces, lock_workspace
from control.errors import DatabaseUnavailableError
from control.long_work import beside
from policy.prices import Price
from policy.snapshot import Wire

log = logging.getLogger(__name__)

LOOK_EVERY_S = 3600.0
MAX_PUBLISHED = 100
"""The most prices of a slug that proxies have: a hundred days at least."""
PRICES_AT_ONCE = 500
_CONSEQUENCE = f"proxies keep the prices that they have. Retrying in {LOOK_EVERY_S:.0f} s."
PricesBySlug = Mapping[str, Sequence[Price]]
"""The prices of each slug by date; none of one that has no price."""


async def publish_slug(tx: WriteTx, workspace_id: str, slug: str) -> None:
    """Publish the slug's prices with the transaction. The caller has locked the workspace."""
    prices = await price_rows.prices_from(tx.conn, workspace_id, slug, tx.now_ms, MAX_PUBLISHED)
    price_rows.publish_prices(tx, workspace_id, slug, prices)


@dataclass(frozen=True, slots=True)
class PricePublisher:
    """Publishes what is stored and not published. Several processes may do so at once."""

    store: Store

    async def publish_for_ever(self) -> None:
        while True:
            try:
                await self.publish()
            except DatabaseUnavailableError as error:
                log.warning("Publishing prices failed (%s); %s Check the database.", error.reason, _CONSEQUENCE)
            except Exception:  # a bug must not end it: new prices would no longer come within the bound
                log.exception("Publishing prices failed; %s Please report this bug.", _CONSEQUENCE)
            await asyncio.sleep(LOOK_EVERY_S)

    async def publish(self) -> None:
        """Publish once. A workspace without a difference is only read."""
        async with self.store.read() as conn:
            workspace_ids = [record.id for record in await all_workspaces(conn)]
        for workspace_id in workspace_ids:
            async with self.store.read() as conn:
                differs = bool(await _differences(conn, workspace_id, now_ms()))
            if differs:
                await self.store.transact(partial(_publish, workspace_id=workspace_id))


async def _publish(tx: WriteTx, workspace_id: str) -> None:
    await lock_workspace(tx, workspace_id)
    for slug, prices in (await _differences(tx.conn, workspace_id, tx.now_ms)).items():
        price_rows.publish_prices(tx, workspace_id, slug, prices)


async def _differences(conn: Connection, workspace_id: str, at_ms: int) -> PricesBySlug:
    """The prices of slugs of which others are published."""
    published = await price_rows.published_prices(conn, workspace_id)
    prices: list[Price] = []
    after = None
    while page := await price_rows.list_prices(conn, workspace_id, None, after, PRICES_AT_ONCE):
        prices += page
        after = (page[-1].slug, page[-1].valid_from_ms)
    return await beside(
        workspace_id, len(prices) + len(published), partial(_compare, workspace_id, prices, published, at_ms)
    )


def _compare(workspace_id: str, prices: Sequence[Price], published: Mapping[str, str], at_ms: int) -> PricesBySlug:
    goal: dict[str, Sequence[Price]] = dict.fromkeys(published, ())
    for slug, of_slug in groupby(prices, key=attrgetter("slug")):
        goal[slug] = _from(list(of_slug), at_ms)
    return {
        slug: dated
        for slug, dated in goal.items()
        if price_rows.published_body(workspace_id, slug, dated) != _decoded(published.get(slug))
    }


def _from(prices: Sequence[Price], at_ms: int) -> Sequence[Price]:
    """The price that is valid at `at_ms` and those after it, as many as are published. `prices`: by date."""
    past = sum(price.valid_from_ms <= at_ms for price in prices)
    first = max(0, past - 1)
    return prices[first : first + MAX_PUBLISHED]


def _decoded(body: str | None) -> Wire | None:
    return None if body is None else orjson.loads(body)
