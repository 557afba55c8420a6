"""Calls the inference API of the proxy, as the console relays it.

Dials the operator's own proxy, at the URL of a setting: no egress rules apply. Follows no redirect, keeps no cookie.

See docs/reference/console.md#calls.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from yarl import URL

from control.errors import AnswerBrokenError, ProxyUnavailableError
from control.records.console import InferenceCall
from runtime.http.console_looks import HEADER as LOOK_HEADER
from runtime.tls.pinned import PeerTls

CONNECT_TIMEOUT_S = 5.0
TIMEOUT_S = 1260.0
"""The time for a whole call: the proxy's own default, and a minute for what it reads and writes besides."""
_OF_THE_CONNECTION = frozenset(("connection", "keep-alive", "transfer-encoding"))
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class InferenceAnswer:
    """An answer whose head has arrived. `headers`: as sent, names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    _answer: aiohttp.ClientResponse

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Whoever reads slowly slows the proxy down. Raises `AnswerBrokenError`."""
        try:
            async for piece in self._answer.content.iter_any():
                yield piece
        except _FAILURES as failure:
            raise AnswerBrokenError(type(failure).__name__) from None


class InferenceClient:
    """`proxy_url`: without a slash at the end. `look_mark`: marks looks. `timeout_s`: for a whole call."""

    def __init__(self, proxy_url: str, look_mark: str, timeout_s: float = TIMEOUT_S, tls: PeerTls = True) -> None:
        self._tls = tls
        self._proxy_url = proxy_url
        self._look_mark = look_mark
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, proxy_url: str | None, look_mark: str, tls: PeerTls) -> "InferenceClient | None":
        """The client of this proxy; None without a URL."""
        return cls(proxy_url, look_mark, tls=tls) if proxy_url else None

    @asynccontextmanager
    async def calling(self, call: InferenceCall) -> AsyncIterator[InferenceAnswer]:
        """The answer to a call that was checked. Leaving early aborts the call. Raises `ProxyUnavailableError`."""
        try:
            answer = await self._open().request(
                call.method,
                URL(self._proxy_url + call.path, encoded=True),
                headers=self._headers(call),
                data=call.body,
                allow_redirects=False,
            )
        except _FAILURES as failure:
            raise ProxyUnavailableError(type(failure).__name__) from None
        try:
            headers = [(name.lower(), value) for name, value in answer.headers.items()]
            yield InferenceAnswer(
                answer.status, [pair for pair in headers if pair[0] not in _OF_THE_CONNECTION], answer
            )
        finally:
            answer.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Calls are rare: a kept connection would be found closed, and a POST is not sent twice.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0, ssl=self._tls),
                timeout=self._timeout,
                trust_env=False,
                headers={"User-Agent": "Tollgate-Console/1", "Accept": "*/*", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    def _headers(self, call: InferenceCall) -> dict[str, str]:
        of_body = {} if call.body is None else {"content-type": "application/json"}
        of_look = {LOOK_HEADER: self._look_mark} if call.is_look else {}
        return {**call.headers, **of_body, **of_look, "authorization": f"Bearer {call.api_key}"}
