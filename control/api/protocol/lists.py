"""Pages of every list: keyset paging, encoded item by item, bounded in bytes as well as in items (decision 0018).

A page that passes `PAGE_BYTES` ends early: with fewer items than `limit`, `has_more` and a cursor. It has one at least.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import Call
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1
from control.time_slices import pause

R = TypeVar("R")
PAGE_BYTES = 4 * 1024 * 1024
_MOST_AT_ONCE = 250
"""Rows that are fetched and decoded in one go."""


@dataclass(frozen=True, slots=True)
class Position(Generic[R]):
    """From where, and how many: what one page of a list needs. `filters` came with the first page's query."""

    after: Any
    limit: int
    filters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """One kind of list. `fetch` gives up to `limit` items from behind `after`; `place_of` says where an item is.

    `encode`: the item as JSON; what `shown` makes is one. `first`: how many are fetched before their size is known.
    """

    kind: str
    fetch: Callable[[Position[R]], Awaitable[Sequence[R]]]
    place_of: Callable[[R], Any]
    encode: Callable[[R], Awaitable[Pieces]]
    filters: tuple[str, ...] = ()
    first: int = _MOST_AT_ONCE


def shown(show: Callable[[R], BaseModel]) -> Callable[[R], Awaitable[Pieces]]:
    """An encoder of items that are small."""

    async def encode(record: R) -> Pieces:
        return (show(record).model_dump_json(by_alias=True).encode(),)

    return encode


async def page_of(call: Call, listing: Listing[R]) -> Encoded:
    """The page that the call asks for."""
    query = call.query_as(PageQueryV1)
    pages, workspace_id = call.parts.pages, call.caller.workspace_id
    if query.cursor is None:
        at: Position[R] = Position(None, query.limit, {name: getattr(query, name) for name in listing.filters})
    else:
        at = Position(*pages.open_cursor(workspace_id, listing.kind, query.cursor)["at"])
    items, last = await _items(listing, at)
    if last is None:
        return encoded_page(items, PaginationResponseV1(has_more=False))
    cursor = pages.sign(workspace_id, listing.kind, {"at": [last, at.limit, at.filters]})
    return encoded_page(items, PaginationResponseV1(has_more=True, cursor=cursor))


def encoded_page(items: Sequence[Pieces], pagination: PaginationResponseV1, **more: BaseModel) -> Encoded:
    rest = {name: value.model_dump() for name, value in more.items()}
    return Encoded(encode_object({"items": Array(items), "pagination": pagination.model_dump(), **rest}))


async def _items(listing: Listing[R], at: Position[R]) -> tuple[list[Pieces], Any]:
    """The page's items, and the place of the last one when more follow."""
    items, size, place = list[Pieces](), 0, at.after
    at_once = listing.first
    while True:
        wanted = min(at_once, at.limit + 1 - len(items))
        found = await listing.fetch(Position(place, wanted, at.filters))
        for record in found:
            if len(items) == at.limit:
                return items, place
            await pause()
            item = await listing.encode(record)
            item_size = sum(map(len, item))
            if items and size + item_size > PAGE_BYTES:
                return items, place
            items.append(item)
            size, place = size + item_size, listing.place_of(record)
        if len(found) < wanted:
            return items, None
        at_once = max(1, min(_MOST_AT_ONCE, (PAGE_BYTES - size) * len(items) // size + 1))
