"""Listening sockets of aiohttp applications."""

import socket
from contextlib import ExitStack

from aiohttp import ClientSession, web

from runtime.http.listening import ACCEPTED_AT_ONCE, listen


async def test_newcomers_wait_in_the_kernel_while_the_event_loop_is_busy() -> None:
    """More of them than it accepts in one turn, and than a queue of asyncio's own length holds."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await listen(runner, "127.0.0.1", 0)
    port = runner.addresses[0][1]
    try:
        with ExitStack() as stack:
            for _ in range(20 * ACCEPTED_AT_ONCE):  # this thread runs the loop, which accepts nothing meanwhile
                caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with ClientSession() as client, client.get(f"http://127.0.0.1:{port}/") as answer:
                assert answer.status == 404
    finally:
        await runner.cleanup()
