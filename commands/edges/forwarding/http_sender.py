"""Posts to a receiver over HTTP, with its key. Follows no redirect, so the key stays with the host that was named.

Each request has a connection of its own: on a reused one, a server that answers twice would answer the next request
with its second answer, and an event that it then refused would be lost.
"""

import email.utils
import time
from collections.abc import Mapping
from contextlib import suppress

import aiohttp

from commands.records.receiver import Answer, ReceiverAwayError, ReceiverError

TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 16 * 1024
_LONGEST_WAIT_S = 3600.0


class HttpSender:
    """A client of one receiver. `close` it in the end."""

    def __init__(self, url: str, key: str | None, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(force_close=True),
            trust_env=False,
        )

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        """The answer, of its body the first 16 KiB. Raises ReceiverAwayError if there is none."""
        url = self._url + path
        headers = {"Content-Type": content_type}
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                reply = await _start_of(answer.content)
                return Answer(answer.status, reply, retry_after_s(answer.headers))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            not_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            why = str(error) or type(error).__name__
            raise ReceiverAwayError(f"the receiver does not answer ({why})", is_in_doubt=not not_sent) from None
        except UnicodeError:
            raise ReceiverError(f"{self._url}: there can be no host of this name. Check --receiver-url") from None

    async def close(self) -> None:
        await self._session.close()


async def _start_of(content: aiohttp.StreamReader) -> bytes:
    start = b""
    while len(start) < _MAX_ANSWER_BYTES and (more := await content.read(_MAX_ANSWER_BYTES)):
        start += more
    return start


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how long `Retry-After` asks to wait (RFC 9110 10.2.3), at most an hour; 0 without it."""
    text = headers.get("Retry-After", "")
    wait_s = 0.0
    if text.isascii() and text.isdecimal():
        wait_s = float(text)
    elif text:
        with suppress(TypeError, ValueError):
            wait_s = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    return min(max(0.0, wait_s), _LONGEST_WAIT_S)
