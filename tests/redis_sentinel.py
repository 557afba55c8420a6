"""A private Redis with two replicas and three sentinels for tests: real servers, removed when the test ends.

The sentinels replace a primary that has been silent for three seconds. A busy machine keeps none silent for so long.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.ports import HOST, own_port
from tests.redis_cluster import wait_for
from tests.redis_server import RedisServer

SERVICE = "gateway"
_QUORUM = 2
DOWN_AFTER_MS = 3_000
_SENTINEL = f"""
sentinel monitor {SERVICE} {HOST} {{primary}} {_QUORUM}
sentinel down-after-milliseconds {SERVICE} {{down_after_ms}}
sentinel failover-timeout {SERVICE} 3000
"""


@dataclass
class SentinelSet:
    """`servers` by port: the primary and its replicas, as they were started. `sentinels` by port."""

    servers: dict[int, RedisServer]
    sentinels: dict[int, RedisServer]

    @property
    def hosts(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.sentinels)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.hosts}/{SERVICE}"

    @property
    def primary_port(self) -> int:
        """The primary's port, as a living sentinel names it."""
        sentinel = next(sentinel for sentinel in self.sentinels.values() if sentinel.answers)
        return int(sentinel.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    @property
    def primary(self) -> RedisServer:
        return self.servers[self.primary_port]

    def wait_for_new_primary(self, old_port: int) -> RedisServer:
        """Wait until every living sentinel names another primary, which accepts writes."""
        wait_for(lambda: self.primary_port != old_port, "the sentinels replace nobody")
        wait_for(lambda: role_of(self.primary) == b"master", "the new primary is still a replica")
        return self.primary

    def fail_over(self) -> RedisServer:
        """Fail over as an operator asks for it. Returns the new primary."""
        old_port = self.primary_port
        wait_for(self._agrees_to_fail_over, "no replica is good enough")
        return self.wait_for_new_primary(old_port)

    def _agrees_to_fail_over(self) -> bool:
        """A sentinel may not know yet that the replicas are well."""
        try:
            next(iter(self.sentinels.values())).run("SENTINEL", "FAILOVER", SERVICE)
        except redis.ResponseError:
            return False
        return True


@contextmanager
def running_sentinels(
    options: Sequence[str] = (),
    password: str = "",
    primary_environment: Mapping[str, str] | None = None,
    down_after_ms: int = DOWN_AFTER_MS,
) -> Iterator[SentinelSet]:
    """`options`: further options of the three servers, and if they are TLS ones, of the sentinels. `password`: of the
    default user everywhere. `primary_environment`: of the first primary, such as a `SteppedClock`'s."""
    with ExitStack() as stack:
        primary = own_port()
        servers = {primary: _started(stack, primary, options, password, primary_environment)}
        for _ in range(2):
            port = own_port()
            servers[port] = _started(stack, port, [*options, "--replicaof", HOST, str(primary)], password)
        wait_for(lambda: _replicas(servers[primary]) == 2, "the replicas do not connect")
        sentinels = {}
        for _ in range(3):
            port = own_port()
            sentinels[port] = _started_sentinel(stack, port, primary, options, password, down_after_ms)
        wait_for(lambda: all(_is_informed(one) for one in sentinels.values()), "the sentinels do not find each other")
        yield SentinelSet(servers, sentinels)


@contextmanager
def lone_sentinel(primary_port: int) -> Iterator[str]:
    """A sentinel that believes this to be the primary, and knows no other sentinel. Its host and port."""
    with ExitStack() as stack:
        port = own_port()
        _started_sentinel(stack, port, primary_port, (), "")
        yield f"{HOST}:{port}"


def _started(
    stack: ExitStack,
    port: int,
    options: Sequence[str],
    password: str,
    environment: Mapping[str, str] | None = None,
) -> RedisServer:
    login = ["--requirepass", password, "--masterauth", password] if password else []
    tls = "--tls-replication" in options
    listens = ["--tls-port" if tls else "--port", str(port), "--bind", HOST, "--repl-diskless-sync-delay", "0"]
    server = RedisServer(_folder(stack), [*listens, *login, *options], password=password)
    server.environment = environment or {}
    server.start()
    stack.callback(server.kill)
    return server


def _started_sentinel(
    stack: ExitStack,
    port: int,
    primary: int,
    options: Sequence[str],
    password: str,
    down_after_ms: int = DOWN_AFTER_MS,
) -> RedisServer:
    folder = _folder(stack)
    tls = "--tls-replication" in options
    listens = ["--tls-port" if tls else "--port", str(port), "--bind", HOST, *(options if tls else ())]
    login = f"sentinel auth-pass {SERVICE} {password}\nrequirepass {password}\n" if password else ""
    sentinel = RedisServer(folder, ["--sentinel", *listens], password=password)
    sentinel.configuration = folder / "sentinel.conf"
    sentinel.configuration.write_text(_SENTINEL.format(primary=primary, down_after_ms=down_after_ms) + login, "utf-8")
    sentinel.start()
    stack.callback(sentinel.kill)
    return sentinel


def _folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-redis-")))


def role_of(server: RedisServer) -> bytes:
    role: bytes = server.run("ROLE")[0]
    return role


def _replicas(server: RedisServer) -> int:
    return len(server.run("ROLE")[2])


def _is_informed(sentinel: RedisServer) -> bool:
    """Return whether the sentinel knows the two others and the two replicas."""
    with sentinel.client() as client:
        primary = client.sentinel_master(SERVICE)
        return int(primary["num-other-sentinels"]) == 2 and int(primary["num-slaves"]) == 2
