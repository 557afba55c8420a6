"""Pages of every list: keyset paging, encoded item by item, bounded in bytes as well as in items (decision 0064).

A page that exceeds `PAGE_BYTES` ends early: with fewer items than `limit`, but one at least, `has_more` and a cursor.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1
from control.long_work import beside

R = TypeVar("R")
PAGE_BYTES = 4 * 1024 * 1024
_MOST_AT_ONCE = 250
"""Rows that one query fetches."""


@dataclass(frozen=True, slots=True)
class Position(Generic[R]):
    """The start of a page, and its number of items. `filters` are those of the first page's query."""

    after: Any
    limit: int
    filters: dict[str, Any]


def _one(_item: Any) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """One kind of list. `fetch` returns up to `limit` items behind `after`; `position_of` says where an item is.

    `encode` writes an item as JSON, beside the loop (see `encoder`). `first`: how many items are fetched before their
    size is known. `weight`: how many items of long work an item is.
    """

    kind: str
    fetch: Callable[[Position[R]], Awaitable[Sequence[R]]]
    position_of: Callable[[R], Any]
    encode: Callable[[R], Pieces]
    filters: tuple[str, ...] = ()
    first: int = _MOST_AT_ONCE
    weight: Callable[[R], int] = _one


def encoder(show: Callable[[R], BaseModel]) -> Callable[[R], Pieces]:
    """Return the encoder of small items: `show` makes the model of one."""

    def encode(record: R) -> Pieces:
        return (show(record).model_dump_json(by_alias=True).encode(),)

    return encode


async def list_page(request: ApiRequest, listing: Listing[R]) -> Encoded:
    """The page that the request asks for."""
    query = request.query_as(PageQueryV1)
    cursors = request.dependencies.cursors
    workspace_id = request.caller.workspace_id
    if query.cursor is None:
        at: Position[R] = Position(None, query.limit, {name: getattr(query, name) for name in listing.filters})
    else:
        at = Position(*cursors.open(workspace_id, listing.kind, query.cursor)["at"])
    items, last = await _items(workspace_id, listing, at)
    if last is None:
        return encoded_page(items, PaginationResponseV1(has_more=False))
    cursor = cursors.sign(workspace_id, listing.kind, {"at": [last, at.limit, at.filters]})
    return encoded_page(items, PaginationResponseV1(has_more=True, cursor=cursor))


def encoded_page(items: Sequence[Pieces], pagination: PaginationResponseV1, **more: BaseModel) -> Encoded:
    rest = {name: value.model_dump() for name, value in more.items()}
    return Encoded(encode_object({"items": Array(items), "pagination": pagination.model_dump(), **rest}))


async def _items(workspace_id: str, listing: Listing[R], at: Position[R]) -> tuple[list[Pieces], Any]:
    """The page's items, and the position of the last one when more follow."""
    page = _PageInProgress(listing, at)
    batch = listing.first
    while True:
        most = min(batch, at.limit + 1 - len(page.items))
        records = await listing.fetch(Position(page.position, most, at.filters))
        if await beside(workspace_id, sum(map(listing.weight, records)), partial(page.add, records)):
            return page.items, page.position
        if len(records) < most:
            return page.items, None
        batch = max(1, min(_MOST_AT_ONCE, (PAGE_BYTES - page.size) * len(page.items) // page.size + 1))


class _PageInProgress(Generic[R]):
    """A page that is being filled. `position`: of its last item, or of the one before its first."""

    def __init__(self, listing: Listing[R], at: Position[R]) -> None:
        self.items: list[Pieces] = []
        self.size = 0
        self.position = at.after
        self._listing = listing
        self._limit = at.limit

    def add(self, records: Sequence[R]) -> bool:
        """Add those that the page has room for. Returns whether more follow behind its end."""
        for record in records:
            if len(self.items) == self._limit:
                return True
            item = self._listing.encode(record)
            size = sum(map(len, item))
            if self.items and self.size + size > PAGE_BYTES:
                return True
            self.items.append(item)
            self.size += size
            self.position = self._listing.position_of(record)
        return False
