"""Callers of a listener, known again by their credential before anybody looks it up. Bookkeeping of one event loop.

A look-up takes a database's time. So many requests of one caller could wait for theirs that nobody else found a
connection. Known by the credential, each counts in its workspace's share from the beginning; while the first one of a
credential is looked up, the others wait for that.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol, runtime_checkable

from aiohttp import web

MOST = 10_000
"""Credentials that are remembered."""
LOOK_UP_S = 1.0
"""The time that a request waits for the look-up of another one, whose handler may not look anything up."""
_FIELDS = ("Authorization", "x-api-key", "Cookie")


class KnownCallers:
    """The owners of credentials when these were last accepted. Keeps digests, no credentials."""

    def __init__(self) -> None:
        self._workspaces: dict[bytes, str | None] = {}
        self._looked_up: dict[bytes, asyncio.Event] = {}
        """Set when a look-up has ended."""

    def note(self, headers: Mapping[str, str], workspace: str | None) -> None:
        """The credential in these header fields, if any, is of this workspace; None: of the product or an operator."""
        digest = _digest(headers)
        if digest is None:
            return
        self._workspaces.pop(digest, None)
        self._workspaces[digest] = workspace
        if len(self._workspaces) > MOST:
            del self._workspaces[next(iter(self._workspaces))]
        self._end_look_up(digest)

    def knows(self, headers: Mapping[str, str]) -> tuple[str | None] | None:
        """The workspace, if the credential was accepted before."""
        digest = _digest(headers)
        return (self._workspaces[digest],) if digest in self._workspaces else None

    @asynccontextmanager
    async def looking_up(self, headers: Mapping[str, str]) -> AsyncIterator[None]:
        """Enter the block first, or when another request with the same credential has been looked up."""
        digest = _digest(headers)
        if digest is None or digest in self._workspaces:
            yield
        elif (look_up := self._looked_up.get(digest)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_UP_S):
                    await look_up.wait()
            self._end_look_up(digest)
            yield
        else:
            self._looked_up[digest] = asyncio.Event()
            try:
                yield
            finally:
                self._end_look_up(digest)

    def _end_look_up(self, digest: bytes) -> None:
        look_up = self._looked_up.pop(digest, None)
        if look_up is not None:
            look_up.set()


@runtime_checkable
class Recognising(Protocol):
    """A connection that knows callers again."""

    @property
    def callers(self) -> KnownCallers: ...

    def recognise(self) -> None:
        """Keep the connection for the request's caller, if its credential was accepted before.

        Raises `NoPlaceError` if the workspace has its share of connections.
        """
        ...


@web.middleware
async def recognise_callers(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Give a request of a known caller its place before anybody looks its credential up. Raises `NoPlaceError`."""
    connection = request.protocol
    if not isinstance(connection, Recognising):
        return await handler(request)
    async with connection.callers.looking_up(request.headers):
        connection.recognise()
        return await handler(request)


def _digest(headers: Mapping[str, str]) -> bytes | None:
    values = [headers.get(name, "") for name in _FIELDS]
    return hashlib.sha256("\n".join(values).encode("utf-8", "surrogateescape")).digest() if any(values) else None
