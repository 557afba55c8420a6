"""A client of the management API, for commands that work over it."""

import asyncio
from typing import Any

import aiohttp

TIMEOUT_S = 30.0
_RETRIES = 3


class ManagementError(Exception):
    """A command over the management API failed; the message says why and what to check."""


class AwayError(ManagementError):
    """The management API cannot be reached or cannot answer now."""


class RefusedError(ManagementError):
    """The management API refused."""


class ManagementClient:
    """The management API at a URL, with one workspace key, which no redirect takes along."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """The answer's JSON. Waits when the key's rate limit says so; AwayError or RefusedError otherwise."""
        for attempt in range(_RETRIES + 1):
            status, answer = await self._ask(method, path, body, query)
            if status == 200:
                return answer
            if status != 429 or attempt == _RETRIES:
                break
            await asyncio.sleep(float(answer.get("retry_after", 1)))
        message = f"{status}: {answer.get('error', 'no reason given')}"
        raise (AwayError if status >= 500 else RefusedError)(message)

    async def _ask(self, method: str, path: str, body: Any, query: dict[str, str]) -> tuple[int, Any]:
        request = self._session.request(method, self._url + path, json=body, params=query, allow_redirects=False)
        try:
            async with request as answer:
                found = await answer.json()
                return answer.status, found if isinstance(found, dict) else {}
        except (aiohttp.ClientError, ValueError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise AwayError(
                f"{self._url} does not answer as the management API ({reason}). Check TOLLGATE_URL"
            ) from None
