"""A private Redis of each kind for suites that hold on all of them: one server, a cluster, a set with sentinels."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.ports import HOST, own_port
from tests.redis_cluster import PATIENT_MS, running_cluster, wait_for
from tests.redis_sentinel import running_sentinels
from tests.redis_server import RedisServer, private_redis

Admin = redis.Redis | redis.RedisCluster
"""A client with all permissions, for the test itself."""
SEVERAL = ("cluster", "sentinels")
"""Kinds with several servers."""
_OPERATING = Path(__file__).resolve().parents[1] / "docs/operating.md"
_WHERE = {"cluster": "on a cluster", "sentinels": "behind sentinels"}


def documented_rules(user: str, kind: str = "") -> list[str]:
    """The rules that docs/operating.md grants the user; with a `kind` of `SEVERAL` also those that it needs besides."""
    text = _OPERATING.read_text()
    match = re.search(rf"^ACL SETUSER {user} (.+)$", text, re.MULTILINE)
    more = re.search(f"{_WHERE[kind]} also `(.+?)`" if kind else "()", text)
    assert match is not None
    assert more is not None
    return [*match[1].split(), *more[1].split()]


_SOON = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
"""A replica connects, and has something to acknowledge, at once."""


@contextmanager
def running_pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica."""
    port = str(own_port())
    with (
        private_redis(("--port", port, "--bind", HOST, *_SOON)) as primary,
        private_redis(("--replicaof", HOST, port)) as replica,
    ):
        wait_for(lambda: acknowledging(primary) == 1, "the replica does not connect")
        yield primary, replica


def acknowledging(primary: RedisServer) -> int:
    """The number of replicas that have acknowledged something to it."""
    return sum(int(offset) > 0 for _, _, offset in primary.run("ROLE")[2])


@contextmanager
def running_redis(kind: str) -> Iterator[tuple[str, Admin]]:
    """Yield the URL and a client. `kind`: of `SEVERAL`, or the binary of the only server."""
    if kind == "cluster":
        with (
            running_cluster(node_timeout_ms=PATIENT_MS) as cluster,
            redis.RedisCluster(HOST, cluster.primaries[0].port) as admin,
        ):
            yield cluster.url, admin
    elif kind == "sentinels":
        with running_sentinels() as sentinels, redis.Redis(HOST, sentinels.primary_port) as admin:
            yield sentinels.url, admin
    else:
        with private_redis(binary=kind) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as admin:
            yield server.url, admin
