"""Pages of every list: keyset paging, encoded item by item, bounded in bytes as well as in items (decision 0064).

A page that exceeds `PAGE_BYTES` ends early: with fewer items than `limit`, but one at least, `has_more` and a cursor.
A list that has the original's name, too, holds its items twice. Both count.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest
from control.api.protocol.schemas import MAX_PAGE, PageQueryV1, PaginationResponseV1
from control.long_work import beside

R = TypeVar("R")
PAGE_BYTES = 4 * 1024 * 1024
_MOST_AT_ONCE = 250
"""Rows that one query fetches of a list whose clients ask page by page."""
_WHOLE_LIST = MAX_PAGE + 1
"""Rows that one query fetches of a list whose clients ask for all at once: a page, and whether more follow."""


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
    size is known. `weight`: how many items of long work an item is. `name`: the original's name of the items.
    """

    kind: str
    fetch: Callable[[Position[R]], Awaitable[Sequence[R]]]
    position_of: Callable[[R], Any]
    encode: Callable[[R], Pieces]
    filters: tuple[str, ...] = ()
    first: int = _WHOLE_LIST
    weight: Callable[[R], int] = _one
    name: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The members that hold the items."""
        return ("items",) if self.name is None else ("items", self.name)

    @property
    def most_at_once(self) -> int:
        """The number of rows that one query may fetch."""
        return _MOST_AT_ONCE if self.name is None else _WHOLE_LIST


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
    pagination = PaginationResponseV1(has_more=False)
    if last is not None:
        cursor = cursors.sign(workspace_id, listing.kind, {"at": [last, at.limit, at.filters]})
        pagination = PaginationResponseV1(has_more=True, cursor=cursor)
    return _encoded(listing.names, items, pagination)


def encoded_page(items: Sequence[Pieces], pagination: PaginationResponseV1, **more: BaseModel | bool) -> Encoded:
    return _encoded(("items",), items, pagination, **more)


def _encoded(
    names: Sequence[str], items: Sequence[Pieces], pagination: PaginationResponseV1, **more: BaseModel | bool
) -> Encoded:
    lists = {name: Array(items) for name in names}
    rest = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in more.items()}
    return Encoded(encode_object({**lists, "pagination": pagination.model_dump(), **rest}))


async def _items(workspace_id: str, listing: Listing[R], at: Position[R]) -> tuple[list[Pieces], Any]:
    """The page's items, and the position of the last one when more follow."""
    page = _PageInProgress(listing, at)
    batch = min(listing.first, listing.most_at_once)
    while True:
        most = min(batch, at.limit + 1 - len(page.items))
        records = await listing.fetch(Position(page.position, most, at.filters))
        if await beside(workspace_id, sum(map(listing.weight, records)), partial(page.add, records)):
            return page.items, page.position
        if len(records) < most:
            return page.items, None
        room = (PAGE_BYTES - page.size) * len(page.items) // page.size + 1
        batch = max(1, min(listing.most_at_once, room))


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
            size = sum(map(len, item)) * len(self._listing.names)
            if self.items and self.size + size > PAGE_BYTES:
                return True
            self.items.append(item)
            self.size += size
            self.position = self._listing.position_of(record)
        return False
