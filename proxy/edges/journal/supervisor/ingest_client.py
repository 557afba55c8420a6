"""Posts events to control's ingest: `POST /internal/v1/events`. Used by the shipper only.

A return means that the events are committed. Every answer but 200, "malformed" and "the event committed last is
missing" raises `IngestUnavailableError`.
"""

import aiohttp

from proxy.edges.journal.supervisor.delivery import EventsMissingError, EventsRejectedError, IngestUnavailableError
from runtime.http.control_session import ControlSession
from runtime.tls.pinned import PeerTls

PATH = "/internal/v1/events"
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=2)
_HEADERS = {"Content-Type": "application/json"}
_MALFORMED = (400, 413, 422)
_MISSING = 409


class HttpIngestClient:
    """A client of one control plane's ingest. `post` raises the three errors of `delivery.py`."""

    def __init__(self, control_url: str, internal_token: str, tls: PeerTls = True) -> None:
        self._url = control_url.rstrip("/") + PATH
        self._session = ControlSession(internal_token, _TIMEOUT, tls)

    async def post(self, body: bytes) -> None:
        try:
            async with self._session.request("POST", self._url, data=body, headers=_HEADERS) as answer:
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
        await self._session.close()
