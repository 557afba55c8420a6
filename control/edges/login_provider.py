"""HTTP calls to the identity provider of the console's login: its documents, its keys, its tokens.

The operator names the provider in a setting, so it may have any address, also a private one. Follows no redirect, reads
no proxy variable, and reads a bounded answer in a bounded time.

See docs/reference/console.md#people.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from yarl import URL

from control.records.console import LoginProviderError
from runtime.http.checked_dialling import Place, checked_session, describe, resolve_host, trusting

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 20


class LoginProviderClient:
    """Reads JSON objects. `ca_file`: authorities that are trusted besides the system's."""

    def __init__(self, ca_file: str | None, timeout_s: float = TIMEOUT_S) -> None:
        self._tls = trusting(ca_file)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str) -> dict[str, Any]:
        """The JSON object at a URL. Raises `LoginProviderError`."""
        status, body = await self._ask("GET", url, {}, None)
        if status != 200:
            raise LoginProviderError(f"it answered {status}")
        return body

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of the answer to a form. Raises `LoginProviderError`."""
        return await self._ask("POST", url, headers, dict(form))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str], form: dict[str, str] | None
    ) -> tuple[int, dict[str, Any]]:
        if self._session is None:
            self._session = checked_session(_places, self._tls, "Tollgate-Console/1", reuse=False)
        all_headers = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.request(
                    method, URL(url, encoded=True), headers=all_headers, data=form, allow_redirects=False
                ) as answer,
            ):
                return answer.status, _object(answer.status, await _read(answer))
        except TimeoutError:
            raise LoginProviderError(f"no answer within {self._timeout_s:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            raise LoginProviderError(describe(failure)) from None


async def _places(host: str, port: int) -> Sequence[Place]:
    return [(address, port) for address in await resolve_host(host)]


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise LoginProviderError(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
    return body


def _object(status: int, body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise LoginProviderError(f"it answered {status} and no JSON object")
    return value
