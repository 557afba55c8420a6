"""Iterates over the items of a list, page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pagination(Protocol):
    """The end of a page: `cursor` leads to the next one."""

    has_more: bool

    @property
    def cursor(self) -> object: ...


class Page(Protocol[T_co]):
    """The answer of any list."""

    @property
    def items(self) -> Sequence[T_co]: ...

    @property
    def pagination(self) -> Pagination: ...


def iterate(operation: Callable[P, Page[T]], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
    """Yield every item that `operation(*args, **kwargs)` lists, and read the next page when the last one is used up.

    `limit` sets the size of a page, not the number of items.
    """
    page = operation(*args, **kwargs)
    yield from page.items
    while page.pagination.has_more:
        page = operation(*args, **_after(page.pagination, kwargs))
        yield from page.items


async def iterate_async(
    operation: Callable[P, Awaitable[Page[T]]], *args: P.args, **kwargs: P.kwargs
) -> AsyncIterator[T]:
    """Yield every item that `await operation(*args, **kwargs)` lists, as `iterate` does."""
    page = await operation(*args, **kwargs)
    for item in page.items:
        yield item
    while page.pagination.has_more:
        page = await operation(*args, **_after(page.pagination, kwargs))
        for item in page.items:
            yield item


def _after(pagination: Pagination, query: dict[str, Any]) -> Any:
    """Return the query of the next page."""
    return query | {"cursor": pagination.cursor}
