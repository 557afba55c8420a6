"""The HTTP session of one of our processes with control."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from runtime.tls.pinned import PeerTls


class ControlSession:
    """Requests to control with one bearer token. It opens with the first of them, as that needs a running loop.

    Redirects are not followed: they would take the token along. Raises what aiohttp raises.
    """

    def __init__(self, token: str, timeout: aiohttp.ClientTimeout, tls: PeerTls) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    def request(self, method: str, url: str, **options: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Begin a request; the answer is released with the context. `options`: as aiohttp's."""
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
        return self._session.request(method, url, allow_redirects=False, **options)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
