"""Control's ingest over HTTP: `POST /internal/v1/events`. The shipper's only.

It promises that a return means committed; anything but a clear yes, a clear "malformed"
or a clear "what was committed is gone" is "not confirmed".
"""

import aiohttp

from proxy.edges.journal.supervisor.delivery import EventsMissingError, EventsRejectedError, IngestUnavailableError

PATH = "/internal/v1/events"
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=2)
_MALFORMED = (400, 413, 422)
_LOST = 409


class HttpIngestClient:
    """A client of one control plane."""

    def __init__(self, control_url: str, internal_token: str) -> None:
        self._url = control_url.rstrip("/") + PATH
        self._headers = {"Authorization": f"Bearer {internal_token}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT)
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as answer:
                status, said = answer.status, await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise IngestUnavailableError(type(error).__name__) from None
        if status == _LOST:
            raise EventsMissingError
        if status in _MALFORMED:
            raise EventsRejectedError(said[:500].decode(errors="replace"))
        if status != 200:
            raise IngestUnavailableError(f"control answered {status}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
