"""Pages of every list: keyset paging, encoded item by item, bounded in bytes as well as in items (decision 0018).

A page that exceeds `PAGE_BYTES` ends early: with fewer items than `limit`, but one at least, `has_more` and a cursor.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1
from control.time_slices import pause

R = TypeVar("R")
PAGE_BYTES = 4 * 1024 * 1024
_MOST_AT_ONCE = 250
"""Rows that one query fetches."""


@dataclass(frozen=True, slots=True)
class Position(Generic[R]):
    """Where a page begins and how many items it has. `filters` are those of the first page's query."""

    after: Any
    limit: int
    filters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """One kind of list. `fetch` returns up to `limit` items behind `after`; `position_of` says where an item is.

    `encode` writes an item as JSON (see `encoder`). `first`: how many items are fetched before their size is known.
    """

    kind: str
    fetch: Callable[[Position[R]], Awaitable[Sequence[R]]]
    position_of: Callable[[R], Any]
    encode: Callable[[R], Awaitable[Pieces]]
    filters: tuple[str, ...] = ()
    first: int = _MOST_AT_ONCE


def encoder(show: Callable[[R], BaseModel]) -> Callable[[R], Awaitable[Pieces]]:
    """Encodes small items: `show` makes the model of one."""

    async def encode(record: R) -> Pieces:
        return (show(record).model_dump_json(by_alias=True).encode(),)

    return encode


async def list_page(request: ApiRequest, listing: Listing[R]) -> Encoded:
    """The page that the request asks for."""
    query = request.query_as(PageQueryV1)
    cursors, workspace_id = request.dependencies.cursors, request.caller.workspace_id
    if query.cursor is None:
        at: Position[R] = Position(None, query.limit, {name: getattr(query, name) for name in listing.filters})
    else:
        at = Position(*cursors.open(workspace_id, listing.kind, query.cursor)["at"])
    items, last = await _items(listing, at)
    if last is None:
        return encoded_page(items, PaginationResponseV1(has_more=False))
    cursor = cursors.sign(workspace_id, listing.kind, {"at": [last, at.limit, at.filters]})
    return encoded_page(items, PaginationResponseV1(has_more=True, cursor=cursor))


def encoded_page(items: Sequence[Pieces], pagination: PaginationResponseV1, **more: BaseModel) -> Encoded:
    rest = {name: value.model_dump() for name, value in more.items()}
    return Encoded(encode_object({"items": Array(items), "pagination": pagination.model_dump(), **rest}))


async def _items(listing: Listing[R], at: Position[R]) -> tuple[list[Pieces], Any]:
    """The page's items, and the position of the last one when more follow."""
    items, size, position = list[Pieces](), 0, at.after
    batch = listing.first
    while True:
        wanted = min(batch, at.limit + 1 - len(items))
        found = await listing.fetch(Position(position, wanted, at.filters))
        for record in found:
            if len(items) == at.limit:
                return items, position
            await pause()
            item = await listing.encode(record)
            item_size = sum(map(len, item))
            if items and size + item_size > PAGE_BYTES:
                return items, position
            items.append(item)
            size, position = size + item_size, listing.position_of(record)
        if len(found) < wanted:
            return items, None
        batch = max(1, min(_MOST_AT_ONCE, (PAGE_BYTES - size) * len(items) // size + 1))
