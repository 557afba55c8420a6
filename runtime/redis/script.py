"""A Lua script that Redis keeps by its SHA-1. It is sent where Redis does not know it: after a start or a fail-over."""

import hashlib
from collections.abc import Awaitable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from runtime.redis.routed import Keyed, RoutedRedis, WriteResult

Argument = str | bytes | int
_LOADS_MOST = 3
"""A slot may move on, to a server that does not know the script either, before it is sent again."""


class RedisScript:
    """`text`: its Lua. Uses keys of one slot only."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: RoutedRedis, keys: Sequence[str], *arguments: Argument) -> Any:
        """The script's reply, decoded no further than redis-py does."""
        return await redis.at(keys[0], lambda server: self._run(server, keys, arguments))

    async def run_each(self, redis: RoutedRedis, runs: Sequence[tuple[str, Sequence[Argument]]]) -> list[Any]:
        """The replies for each key and its arguments, after a round trip to each server.

        Only for scripts that may run twice: where a server does not know the script, all are sent again.
        """
        commands = [self._command(key, arguments) for key, arguments in runs]
        try:
            return await redis.each(commands)
        except NoScriptError:
            for node in await redis.data_servers():
                await node.redis.script_load(self._text)
            return await redis.each(commands)

    def _command(self, key: str, arguments: Sequence[Argument]) -> Keyed:
        return key, lambda server: server.evalsha(self._sha1, 1, key, *arguments)

    async def write(
        self, redis: RoutedRedis, keys: Sequence[str], arguments: Sequence[Argument], wait_ms: int | None
    ) -> WriteResult:
        """`wait_ms`: how long to wait for a replica; None: not at all."""

        def evalsha(server: Redis) -> Awaitable[Any]:
            return server.evalsha(self._sha1, len(keys), *keys, *arguments)

        for _ in range(_LOADS_MOST):
            try:
                return await redis.write(keys[0], evalsha, wait_ms)
            except NoScriptError:
                await redis.at(keys[0], lambda server: server.script_load(self._text))
        return await redis.write(keys[0], evalsha, wait_ms)

    async def _run(self, server: Redis, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        try:
            return await server.evalsha(self._sha1, len(keys), *keys, *arguments)
        except NoScriptError:  # which follows a check of where the keys are
            await server.script_load(self._text)
            return await server.evalsha(self._sha1, len(keys), *keys, *arguments)
