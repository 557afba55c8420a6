"""Posts events to control's ingest: `POST /internal/v1/events`. Used by the shipper only.

A return means that the events are committed. Every answer but 200, "malformed" and "the event committed last is
missing" raises `IngestUnavailableError`.
"""

import aiohttp

from proxy.edges.journal.supervisor.delivery import EventsMissingError, EventsRejectedError, IngestUnavailableError
from runtime.tls.pinned import PeerTls

PATH = "/internal/v1/events"
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=2)
_MALFORMED = (400, 413, 422)
_MISSING = 409


class HttpIngestClient:
    """A client of one control plane's ingest. `post` raises the three errors of `delivery.py`."""

    def __init__(self, control_url: str, internal_token: str, tls: PeerTls = True) -> None:
        self._tls = tls
        self._url = control_url.rstrip("/") + PATH
        self._headers = {"Authorization": f"Bearer {internal_token}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls), headers=self._headers, timeout=_TIMEOUT
            )
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as answer:
                status = answer.status
                text = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise IngestUnavailableError(f"{type(error).__name__} at {self._url}") from None
        if status == _MISSING:
            raise EventsMissingError
        if status in _MALFORMED:
            raise EventsRejectedError(text[:500].decode(errors="replace") or f"status {status} without a text")
        if status != 200:
            raise IngestUnavailableError(f"control answered {status}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
