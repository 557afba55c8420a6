"""The counters' client connects and logs in by TCP, TLS, passwords, ACL users, databases. It logs no password."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from policy.limits.settlement import Estimate
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import simple
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import own_port
from tests.redis_server import RedisServer, private_redis

BOTH_LOOPS = True
PASSWORD = "p%ss:w@rd/1"
IN_URL = "p%25ss:w%40rd%2F1"
PLAN = simple(rpm=100, tpm=1000)
NEEDED = ("~tg:*", "+evalsha", "+eval", "+hmget", "+hget", "+hset", "+expire", "+time", "+select", "+ping")


class TcpServer:
    """A Redis that requires a login, on TCP and on its unix socket."""

    def __init__(self, redis_server: RedisServer, port: int) -> None:
        self.unix = redis_server
        self.port = port


@pytest.fixture(scope="module")
def server() -> Iterator[TcpServer]:
    port = own_port()
    with private_redis(["--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD]) as running:
        with redis.Redis(unix_socket_path=str(running.socket_path), password=PASSWORD) as own:
            own.execute_command("ACL", "SETUSER", "limiter", "on", f">{PASSWORD}", *NEEDED)
        yield TcpServer(running, port)


@asynccontextmanager
async def counters_at(url: str) -> AsyncIterator[RedisCounters]:
    counters = RedisCounters(url, "worker-1", options=CountersOptions(client=RedisClientOptions(deadline_s=1)))
    await counters.start()
    yield counters
    await counters.close()


async def works(url: str) -> bool:
    async with counters_at(url) as counters:
        try:
            return isinstance(await counters.take(PLAN, Estimate(1)), Taken)
        except CountersUnavailableError:
            return False


async def test_client_connects_over_tcp_with_password_and_database(server: TcpServer) -> None:
    assert await works(f"redis://:{IN_URL}@127.0.0.1:{server.port}/3")
    with redis.Redis(port=server.port, password=PASSWORD, db=3) as own:
        assert own.exists(PLAN.key)
    with redis.Redis(port=server.port, password=PASSWORD, db=0) as own:
        assert not own.exists(PLAN.key)


async def test_client_connects_over_unix_socket_with_password_and_database(server: TcpServer) -> None:
    assert await works(f"unix://:{IN_URL}@{server.unix.socket_path}?db=2")
    with redis.Redis(port=server.port, password=PASSWORD, db=2) as own:
        assert own.exists(PLAN.key)


async def test_acl_user_with_only_the_documented_commands_suffices(server: TcpServer) -> None:
    assert await works(f"redis://limiter:{IN_URL}@127.0.0.1:{server.port}")


@pytest.mark.parametrize("login", ["", ":wrong@", "limiter:wrong@", f"nobody:{IN_URL}@"])
async def test_failed_login_means_no_counters_and_logs_no_password(
    server: TcpServer, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert not await works(f"redis://{login}127.0.0.1:{server.port}")
    assert caplog.text.count("Redis refuses the login") == 1, "once per cause, not once per try"
    assert "wrong" not in caplog.text
    assert PASSWORD not in caplog.text


@asynccontextmanager
async def tls_front(server: RedisServer, ca: ThrowawayCa, name: str) -> AsyncIterator[int]:
    """TLS in front of the server's unix socket, because not every redis-server is built with TLS."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_unix_connection(str(server.socket_path))
        await asyncio.gather(pipe(reader, redis_writer), pipe(redis_reader, writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ca.server_context(name))
    async with front:
        yield front.sockets[0].getsockname()[1]


async def test_client_connects_over_tls_if_certificate_and_host_match(server: TcpServer, tmp_path: Path) -> None:
    ca = ThrowawayCa(tmp_path)
    async with tls_front(server.unix, ca, "localhost") as port:
        login = f":{IN_URL}@"
        assert await works(f"rediss://{login}localhost:{port}?ssl_ca_certs={ca.ca_file}")
        assert not await works(f"rediss://{login}localhost:{port}")
        assert await works(f"rediss://{login}localhost:{port}?ssl_cert_reqs=none")
        assert not await works(f"redis://{login}localhost:{port}")
    async with tls_front(server.unix, ca, "elsewhere.example") as port:
        assert not await works(f"rediss://{login}localhost:{port}?ssl_ca_certs={ca.ca_file}")
