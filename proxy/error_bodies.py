"""Reads an upstream's error body: bounded, and once, though two stages look at it.

Dispatch reads it where it may ask again in another dialect; relay reads it for the caller.
"""

from collections.abc import Callable
from time import perf_counter

import orjson

from proxy.exchange import Headers, RequestContext, UpstreamAnswer, UpstreamCutError
from proxy.json_text.json_bounds import is_surely_within_bounds

MAX_ERROR_BYTES = 1 << 20
"""Bytes of an upstream's error body to read."""
LACKS_PATH = (404, 405)
"""What a server answers for a path that it does not have; without an error of its own, see `has_nested_error`."""


class HeldAnswer:
    """An upstream's response whose body was read already."""

    __slots__ = ("_body", "_upstream", "ended", "fields", "headers", "status", "taking_s", "whole")

    def __init__(self, upstream: UpstreamAnswer, body: bytes) -> None:
        self._upstream = upstream
        self._body = body
        self.status = upstream.status
        self.fields = upstream.fields
        self.headers: Headers = upstream.headers
        self.ended = not body
        self.whole: bytes | None = body
        self.taking_s = 0.0

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        self.ended = True
        return body

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        body = await self.read()
        return not body or take(body)

    def interrupt(self) -> None:
        """Nothing is waited for."""

    def let_end(self) -> None:
        self._upstream.let_end()

    def close(self) -> None:
        self._upstream.close()


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


def has_nested_error(body: bytes) -> bool:
    """Whether a body is a model server's own error: a JSON object whose `error` is an object, as for an unknown model.

    A server that lacks a path answers with something else, as its framework does.
    """
    if not is_surely_within_bounds(body):
        return False
    try:
        error = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(error, dict) and isinstance(error.get("error"), dict)


async def _read(context: RequestContext, upstream: UpstreamAnswer) -> bytes:
    started = perf_counter()
    try:
        return await upstream.read()
    finally:
        context.upstream_s += perf_counter() - started
