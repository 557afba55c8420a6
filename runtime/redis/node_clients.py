"""A redis-py client for each server, with the login and the TLS options of the URL, and the deadlines of its user."""

import time
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError

from runtime.redis.slot_map import ONLY
from runtime.redis.slots import Place
from runtime.redis.url import RedisAddress, TlsOptions

_RETRY_AFTER_S = 0.05
_CONNECTING_S = 10.0
"""A time longer than a command may take to connect."""


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """The ways in which a part of the product uses Redis.

    `socket_timeout_s`: of each read and write. With one, redis-py sends in `asyncio.wait_for`, which before Python 3.12
    may swallow a cancellation: who cancels the sender would wait for ever. None: the user has deadlines.
    `retries`: after a lost connection. A command whose reply is lost may have taken effect.
    `connections`: the most to one server; a command waits for a free one as long as `wait_s`. None: no bound.
    """

    socket_timeout_s: float | None = None
    connect_timeout_s: float = 2.0
    retries: int = 0
    connections: int | None = None
    wait_s: float = 5.0

    def client(self, url: str) -> Redis:
        """Make the client of the one server of the URL. Raises ValueError."""
        pool, options = self._pool()
        return Redis.from_pool(pool.from_url(url, **options))

    def client_at(self, address: RedisAddress) -> Redis:
        pool, options = self._pool()
        options |= {"host": address.host, "port": address.port, "db": address.db}
        options |= {"username": address.username or None, "password": address.password or None}
        if address.tls is not None:
            options |= _tls(address.tls)
        return Redis.from_pool(pool(**options))

    def _pool(self) -> tuple[type[ConnectionPool], dict[str, Any]]:
        """Return the pool's class, and its options and those of its connections."""
        options: dict[str, Any] = {"retry": Retry(ConstantBackoff(_RETRY_AFTER_S), self.retries), "protocol": 2}
        options |= {"socket_timeout": self.socket_timeout_s, "socket_connect_timeout": self.connect_timeout_s}
        if self.connections is None:
            return ConnectionPool, options
        return BlockingConnectionPool, {**options, "max_connections": self.connections, "timeout": self.wait_s}


class NodeClients:
    """The clients of the servers of one Redis, by their hosts. They connect on use.

    `login`: at each of them. `url`: of the server `ONLY`.
    """

    def __init__(self, login: RedisAddress, options: RedisOptions, url: str = "") -> None:
        self._login = login
        self._options = options
        self._clients = {ONLY: options.client(url)} if url else {}
        self._old_clients: list[tuple[float, Redis]] = []
        """The closed clients, with the time. A command that was connecting then gives them an open connection later."""

    def at(self, host: Place) -> Redis:
        if host not in self._clients:
            self._clients[host] = self._options.client_at(self._login.at(*host))
        return self._clients[host]

    async def close(self, but: AbstractSet[Place] = frozenset()) -> None:
        """Close all, `but` those named. A command that is under way there fails."""
        for host in [host for host in self._clients if host not in but]:
            self._old_clients.append((time.monotonic(), self._clients.pop(host)))
            await _close(self._old_clients[-1][1])
        now = time.monotonic()
        over = [client for closed_at, client in self._old_clients if not but or now - closed_at > _CONNECTING_S]
        self._old_clients = [(closed_at, client) for closed_at, client in self._old_clients if client not in over]
        for client in over:
            await _close(client)


async def _close(client: Redis) -> None:
    """Close a client's connections. One that a stalled server or machine holds up closes itself when that goes on."""
    with suppress(RedisTimeoutError):
        await client.aclose()


async def ask(redis: Redis, *words: str) -> Any:
    """The reply to a command for which redis-py has no method, or one with needs of its own."""
    return await redis.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py has no types here


def _tls(options: TlsOptions) -> dict[str, Any]:
    return {
        "connection_class": SSLConnection,
        "ssl_ca_certs": options.ca_file,
        "ssl_cert_reqs": "required" if options.verifies else "none",
        "ssl_check_hostname": options.verifies and options.checks_host_name,
        "ssl_certfile": options.certificate_file,
        "ssl_keyfile": options.key_file,
    }
