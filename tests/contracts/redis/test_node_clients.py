"""The clients of the servers of a Redis, at a server that stalls."""

import asyncio
import socket

import pytest
from redis.exceptions import RedisError

from runtime.redis.node_clients import NodeClients, RedisOptions
from runtime.redis.slot_map import ONLY
from runtime.redis.url import RedisUrl

MORE_THAN_BUFFERS_TAKE = 64 * 1024 * 1024


async def test_connection_to_a_stalled_server_is_closed_without_an_error() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        clients = NodeClients(RedisUrl.parse(url).login, RedisOptions(connect_timeout_s=0.2), url)
        sending = asyncio.ensure_future(clients.at(ONLY).set("k", b"x" * MORE_THAN_BUFFERS_TAKE))
        server, _ = await loop.run_in_executor(None, listener.accept)
        with server:
            server.sendall(b"+OK\r\n" * 2)  # to CLIENT SETINFO
            await loop.run_in_executor(None, server.recv, 1_000_000, socket.MSG_WAITALL)
            await clients.close()
            sending.cancel()
            with pytest.raises((asyncio.CancelledError, RedisError)):
                await sending
