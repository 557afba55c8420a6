"""Opens connections to Redis and logs in.

Must not retry: `pipelined_client.py` does.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis

from proxy.edges.redis.nodes.connection import AwaitedCommand, RedisConnection, encode
from runtime.redis.url import RedisAddress, TlsOptions


class LoginRefusedError(Exception):
    """Redis refuses the login. The message is its error code, such as NOAUTH."""


class Dialer:
    """Opens connections to the servers of one URL. Reads its certificates once; raises OSError if it cannot."""

    def __init__(self, tls: TlsOptions | None) -> None:
        self._tls = tls.context() if tls else None

    async def open(self, address: RedisAddress, on_idle: Callable[[], None] = lambda: None) -> RedisConnection:
        """A connection that is logged in. `on_idle`: see `RedisConnection`. Raises OSError and `LoginRefusedError`."""
        connection = RedisConnection(on_idle)
        try:
            await self._dial(address, connection)
            await _ask_all(connection, [*address.handshake(), ("PING",)])
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _dial(self, address: RedisAddress, connection: RedisConnection) -> None:
        loop = asyncio.get_running_loop()
        if address.path:
            await loop.create_unix_connection(lambda: connection, address.path)
        else:
            await loop.create_connection(lambda: connection, address.host, address.port, ssl=self._tls)


async def ask(connection: RedisConnection, *command: str) -> Any:
    """The reply to a command on a connection that nobody else uses yet. Raises ConnectionError if it is lost."""
    request = AwaitedCommand(encode(*(part.encode() for part in command)), asyncio.get_running_loop().create_future())
    connection.send([request])
    waited: list[asyncio.Future[Any]] = [request.reply, connection.loss]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if not request.reply.done():
        raise ConnectionError("the connection was lost during the login")
    return request.reply.result()


async def _ask_all(connection: RedisConnection, commands: list[tuple[str, ...]]) -> None:
    for command in commands:
        reply = await ask(connection, *command)
        if isinstance(reply, hiredis.ReplyError):
            raise LoginRefusedError(str(reply).split(" ", 1)[0])
