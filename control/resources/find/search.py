"""One search over a workspace: groups, slugs, keys and requests that a text may mean.

See docs/reference/management-api.md#search.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql.find import rows
from control.edges.sql.store import Store
from control.edges.sql.traffic.requests import page_of_requests
from control.records.console import KeyFilter, ListedKey, NamedEndpoint, NamedGroup
from control.records.traffic import RequestFilter
from policy.traffic import ListedRequest

MOST_NAMES = 100_000
"""The number of keys, newest first, whose names are looked through."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The meanings that a text may have: at most one more than asked for of each, which tells that there are more."""

    groups: Sequence[NamedGroup]
    slugs: Sequence[NamedEndpoint]
    keys: Sequence[ListedKey]
    requests: Sequence[ListedRequest]


async def search(store: Store, workspace_id: str, text: str, limit: int) -> Matches:
    """Look for `text` in the workspace. A request is meant by its whole id, all else by a part."""
    most = limit + 1
    async with store.read() as conn:
        groups = await rows.groups_like(conn, workspace_id, text, most)
        slugs = await rows.endpoints_like(conn, workspace_id, text, most)
        keys = await rows.list_all_keys(conn, workspace_id, KeyFilter(part=text, newest=MOST_NAMES), None, most)
        requests, _ = await page_of_requests(conn, RequestFilter(workspace_id, request_id=text), None, most)
    return Matches(groups, slugs, keys, requests)


async def read_all_keys(
    store: Store, workspace_id: str, selection: KeyFilter, after: rows.KeyPosition | None, limit: int
) -> Sequence[ListedKey]:
    """Return at most `limit` keys of the workspace and of its groups, newest first, behind `after`."""
    async with store.read() as conn:
        return await rows.list_all_keys(conn, workspace_id, selection, after, limit)
