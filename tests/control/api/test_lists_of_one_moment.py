"""Lists that are ordered by a time are read to their end, however many of their items have the same one.

Logs and metrics have no cursor; a reader moves a window: `test_log_pages.py`, `training/test_metric_pages.py`.
"""

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import Column, update

from control.edges.sql.tables import api_keys, audit_events
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import ControlPlane, Json

ITEMS = 11


async def of_one_moment(plane: ControlPlane, column: Column[int]) -> None:
    async with plane.store.write() as tx:
        await tx.conn.execute(update(column.table).values({column: 1_700_000_000_000}))


async def workspace_keys(plane: ControlPlane) -> str:
    for _ in range(ITEMS - 1):  # with the plane's own
        (await plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()
    await of_one_moment(plane, api_keys.c.created_at_ms)
    return "/v1/api_keys"


async def federated_keys(plane: ControlPlane) -> str:
    path = f"/v1/gateway/groups/{(await plane.group('customer'))['id']}/api_keys"
    for _ in range(ITEMS):
        (await plane.post(path, {})).ok()
    await of_one_moment(plane, api_keys.c.created_at_ms)
    return path


async def audit_trail(plane: ControlPlane) -> str:
    for n in range(ITEMS - 2):  # with those of the workspace and its key
        await plane.group(f"customer-{n}")
    await of_one_moment(plane, audit_events.c.timestamp_ms)
    return "/v1/audit_events"


async def billing_events(plane: ControlPlane) -> str:
    ended_ms = await clock_ms(plane.store) - 3_600_000
    ingest, _ = ingest_and_reader(plane.store, 1e6)
    await ingest.commit([event(n, ended_ms, workspace_id=plane.workspace_id) for n in range(ITEMS)])
    return "/v1/gateway/events?start_time=2020-01-01T00:00:00Z"


def identity(item: Json) -> str:
    return str(item.get("prefix") or item.get("id") or item["idempotencyKey"])


@pytest.mark.parametrize("make", [workspace_keys, federated_keys, audit_trail, billing_events])
async def test_list_with_a_cursor_shows_each_item_of_one_moment_once(
    plane: ControlPlane, make: Callable[[ControlPlane], Awaitable[str]]
) -> None:
    path = await make(plane)
    identities = list[str]()
    page = (await plane.get(path, params={"limit": "4"})).ok()
    while True:
        identities += map(identity, page["items"])
        if not page["pagination"]["has_more"]:
            break
        page = (await plane.get(path, params={"cursor": page["pagination"]["cursor"]})).ok()
    assert len(identities) == len(set(identities)) == ITEMS
