"""The list of requests: proxies add to it, for eyes that look for a single call. No sum is made of it.

Tokens and cost are the billing event's, by the prices of now, and are read with the page.

See docs/reference/management-api.md#requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.edges.sql.billing import price_rows
from control.edges.sql.events.rows import events_by_key
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.traffic import requests
from control.records.traffic import RequestFilter, RequestPosition
from control.resources.billing.event_costs import EventCosts
from policy.traffic import ListedRequest


@dataclass(frozen=True, slots=True)
class RequestPage:
    """Some rows of the list, newest first. `next`: where it goes on; None at its end."""

    rows: Sequence[ListedRequest]
    next: RequestPosition | None
    events: Mapping[str, Any]
    """The events that these calls have left, by key."""
    costs: EventCosts


async def add_listed(store: Store, rows: Sequence[ListedRequest], most: int) -> None:
    """Add rows, each once; beyond `most` the oldest go."""

    async def add(tx: WriteTx) -> None:
        await requests.add_requests(tx, rows, most)

    if rows:
        await store.transact(add)


async def read_requests(
    store: Store, selection: RequestFilter, before: RequestPosition | None, limit: int
) -> RequestPage:
    """Return at most `limit` rows behind `before`. With several filters a page may have fewer although more follow."""
    async with store.read() as conn:
        rows, position = await requests.page_of_requests(conn, selection, before, limit)
        events = await events_by_key(conn, {row.event_key for row in rows if row.event_key})
        own = {key: event for key, event in events.items() if event.workspace_id == selection.workspace_id}
        costs = await _costs(conn, selection.workspace_id, list(own.values()))
    return RequestPage(rows, position, own, costs)


async def _costs(conn: Connection, workspace_id: str, events: Sequence[Any]) -> EventCosts:
    if not events:
        return EventCosts([])
    slugs = {event.model_slug for event in events}
    times = [event.timestamp_ms for event in events]
    return EventCosts(await price_rows.prices_between(conn, workspace_id, slugs, min(times), max(times)))
