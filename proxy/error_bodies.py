"""Reads an upstream's error body: bounded, and once, though two stages look at it.

Dispatch reads it where it may ask again; relay reads it for the caller.
"""

from collections.abc import Callable
from time import perf_counter

from proxy.answers import Headers
from proxy.errors import UpstreamCutError
from proxy.exchange import RequestContext
from proxy.http_rules.refused_requests import is_page, is_success, may_be_refusal
from proxy.records.messages import UpstreamAnswer

MAX_ERROR_BYTES = 1 << 20
"""Bytes of an upstream's error body to read."""
MAX_REFUSAL_BYTES = 8 << 10
"""Bytes of a success that are read to see whether it is an error: a longer one is an answer."""
EVENTS = "text/event-stream"


class HeldAnswer:
    """An upstream's response whose body, or the beginning of it, was read already."""

    __slots__ = ("_body", "_upstream", "ended", "fields", "headers", "status", "taking_s", "whole")

    def __init__(self, upstream: UpstreamAnswer, body: bytes, *, complete: bool) -> None:
        self._upstream = upstream
        self._body = body
        self.status = upstream.status
        self.fields = upstream.fields
        self.headers: Headers = upstream.headers
        self.whole: bytes | None = body if complete else None
        self.ended = complete and not body
        self.taking_s = upstream.taking_s

    async def read(self) -> bytes:
        if self._body or self.whole is not None:
            return self._pop_body()
        data = await self._upstream.read()
        self.ended = self._upstream.ended
        return data

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        if self._body and not take(self._pop_body()):
            return False
        if self.whole is not None:
            return True
        try:
            return await self._upstream.pour(take)
        finally:
            self.ended = self._upstream.ended
            self.taking_s = self._upstream.taking_s

    def interrupt(self) -> None:
        """Do nothing: no read is in progress."""

    def let_end(self) -> None:
        self._upstream.let_end()

    def close(self) -> None:
        self._upstream.close()

    def _pop_body(self) -> bytes:
        body = self._body
        self._body = b""
        self.ended = self.whole is not None
        return body


async def read_error(context: RequestContext, upstream: UpstreamAnswer) -> bytes:
    """The error's body, as far as it arrived: a body that breaks off does not change the status."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < MAX_ERROR_BYTES and (data := await _read(context, upstream)):
            parts.append(data)
            size += len(data)
    except UpstreamCutError:
        pass
    return b"".join(parts)[:MAX_ERROR_BYTES]


async def read_refusal(context: RequestContext, upstream: UpstreamAnswer) -> tuple[UpstreamAnswer, bytes]:
    """An answer to be read in place of `upstream`, and what it may refuse the request with.

    That is empty for a success that is clearly no error, of which no more than its beginning was read.
    """
    if not is_success(upstream.status):
        error = await read_error(context, upstream)
        upstream.close()
        return HeldAnswer(upstream, error, complete=True), error
    if upstream.fields.content_type.lower().startswith(EVENTS) or upstream.fields.encoded:
        return upstream, b""
    if upstream.whole is not None:
        is_short = len(upstream.whole) <= MAX_REFUSAL_BYTES
        return upstream, upstream.whole if is_short and may_be_refusal(upstream.whole) else b""
    return await _read_beginning(context, upstream)


async def _read_beginning(context: RequestContext, upstream: UpstreamAnswer) -> tuple[UpstreamAnswer, bytes]:
    beginning = b""
    complete = False
    try:
        while not complete and len(beginning) <= MAX_REFUSAL_BYTES:
            data = await _read(context, upstream)
            beginning += data
            complete = not data
            if is_page(beginning) or not may_be_refusal(beginning):
                break
    except UpstreamCutError:
        pass  # whoever reads on gets it again
    answer = HeldAnswer(upstream, beginning, complete=complete)
    return answer, beginning if complete or is_page(beginning) else b""


async def _read(context: RequestContext, upstream: UpstreamAnswer) -> bytes:
    start_s = perf_counter()
    try:
        return await upstream.read()
    finally:
        context.upstream_s += perf_counter() - start_s
