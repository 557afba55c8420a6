"""The head of a stream leaves before the first event: servers send white space or comments while callers wait."""

import asyncio
import json

import pytest

from policy.endpoints import CHAT_COMPLETIONS
from tests.contracts.http.asking import replica
from tests.fakes.directory import KEY, SLUG
from tests.upstream import Exchange
from tests.upstream.behaviours import chunked, head
from tests.upstream.oddities.reading import PATHS, request_body
from tests.upstream.oddities.row import CALLERS, SSE, chat_text, chat_usage, frames
from tests.waiting import PATIENCE_S

BOTH_LOOPS = True


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("first", [b"\n\n", b" ", b"\xef\xbb\xbf", b": wait\n\n"])
async def test_head_of_a_stream_leaves_before_its_first_event(caller: str, first: bytes) -> None:
    has_head = asyncio.Event()

    async def keeps_alive(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(head(200, {"transfer-encoding": "chunked", "content-type": SSE}))
        await exchange.send(chunked(first, end=False))
        async with asyncio.timeout(PATIENCE_S):
            await has_head.wait()
        await exchange.send(chunked(frames(*chat_text("Hello"), chat_usage(), "[DONE]")))

    async with replica(keeps_alive, (CHAT_COMPLETIONS,)) as wire:
        connection = await wire.front.caller()
        body = json.dumps(request_body(caller, SLUG, stream=True))
        lines = f"POST {PATHS[caller]} HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        connection.send(f"{lines}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        fields = await connection.until(b"\r\n\r\n")
        has_head.set()
        assert fields.startswith(b"HTTP/1.1 200")
        assert b"content-type: text/event-stream" in fields.lower()
        assert b"Hello" in await connection.read_to_end()
        await wire.until_logged()
        assert wire.billed.output == 5
