"""The clients: the generated operations at one URL with one key. No redirect takes the key along."""

import ssl
from types import TracebackType
from typing import Any, Self

import httpx

from tollgate_client.api import AsyncResources, Resources
from tollgate_client.retries import Retries
from tollgate_client.transport import AsyncTransport, Transport


class Tollgate(Resources):
    """The management API at `base_url`, with a workspace key.

    `timeout_s`: of one attempt. `verify`: the authorities to trust, if not the usual ones. Threads may share it.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_s: float = 30.0,
        retries: Retries = Retries(),  # noqa: B008 (frozen)
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._transport = Transport(httpx.Client(**_settings(base_url, api_key, timeout_s), verify=verify), retries)

    def close(self) -> None:
        """Close its connections."""
        self._transport.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTollgate(AsyncResources):
    """The management API at `base_url`, with a workspace key, on asyncio. The parameters are those of `Tollgate`."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_s: float = 30.0,
        retries: Retries = Retries(),  # noqa: B008 (frozen)
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        client = httpx.AsyncClient(**_settings(base_url, api_key, timeout_s), verify=verify)
        self._transport = AsyncTransport(client, retries)

    async def close(self) -> None:
        """Close its connections."""
        await self._transport.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _settings(base_url: str, api_key: str, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of either HTTP client. ValueError for a key that no header could carry."""
    if not api_key or not all("!" <= character <= "~" for character in api_key):
        raise ValueError("api_key is empty or has a character that no key has: is there a line break at its end?")
    headers = {"Authorization": f"Bearer {api_key}"}
    return {"base_url": base_url, "headers": headers, "timeout": timeout_s, "follow_redirects": False}
