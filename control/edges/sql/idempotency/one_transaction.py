"""A view of a store whose transactions are one, so that an answer that is made after a change commits together with it.

It begins with the first write, not before: what a handler does until then (resolving names) must hold no lock.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from control.edges.sql.database import database_errors, is_retryable
from control.edges.sql.store import Store, WriteTx
from control.errors import DatabaseUnavailableError


class OneTransaction(Store):
    """`begin` runs first in the transaction. It commits when the block of `async with` ends, or is rolled back.

    A first write that fails is rolled back, and the next one begins again; after a later one that fails the block must
    end. Reads see what was written. The task must not write through another store meanwhile: it would wait for ever.
    """

    def __init__(self, store: Store, begin: Callable[[WriteTx], Awaitable[None]]) -> None:
        vars(self).update(vars(store))
        self._begin = begin
        self._tx: WriteTx | None = None
        self._rest = AsyncExitStack()
        """The end of the transaction."""

    @property
    def has_written(self) -> bool:
        return self._tx is not None

    async def __aenter__(self) -> "OneTransaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tx is not None:
            with self._writability.noting(), database_errors(), _conflicts():
                await self._rest.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        if self._tx is None:
            async with super().read() as conn:
                yield conn
        else:
            with database_errors():
                yield self._tx.conn

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[WriteTx]:
        if self._tx is not None:
            with _conflicts():
                yield self._tx
            return
        async with AsyncExitStack() as stack:
            tx = await stack.enter_async_context(super()._write())
            await self._begin(tx)
            yield tx
            self._tx = tx
            self._rest = stack.pop_all()


@contextmanager
def _conflicts() -> Iterator[None]:
    """Raise `DatabaseUnavailableError` for a conflict after the first write: a retry would leave that out."""
    try:
        yield
    except DBAPIError as error:
        if is_retryable(error):
            raise DatabaseUnavailableError("another transaction was in conflict with it") from error
        raise
