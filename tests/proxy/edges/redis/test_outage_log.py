"""The log while Redis cannot be reached."""

import asyncio
from typing import Any

import pytest

from proxy.edges.redis.nodes.connection import RedisConnection
from proxy.edges.redis.nodes.pipelined_client import RedisClient, RedisClientOptions


class SilentServer:
    """Redis that fails each connection by an error without a text, as a time-out or a closed TLS handshake does."""

    name = "Redis"

    def __init__(self, error: OSError) -> None:
        self._error = error
        self.tried = asyncio.Event()

    async def open(self, _on_idle: Any) -> RedisConnection:
        self.tried.set()
        raise self._error


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), OSError()])
async def test_unreachable_redis_is_logged_with_a_cause(error: OSError, caplog: pytest.LogCaptureFixture) -> None:
    server = SilentServer(error)
    client = RedisClient(server, RedisClientOptions(connect_timeout_s=0.2))
    connected = client.open()
    await server.tried.wait()
    await asyncio.sleep(0)
    await client.close()
    connected.cancel()
    assert f"is unreachable ({type(error).__name__});" in caplog.text
