"""A private Redis of each kind for suites that hold on all of them: one server, a cluster, a set with sentinels."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tests.ports import HOST
from tests.redis_cluster import PATIENT_MS, running_cluster
from tests.redis_sentinel import running_sentinels
from tests.redis_server import private_redis

Admin = redis.Redis | redis.RedisCluster
"""A client with all permissions, for the test itself."""
SEVERAL = ("cluster", "sentinels")
"""Kinds with several servers."""


@contextmanager
def running_redis(kind: str) -> Iterator[tuple[str, Admin]]:
    """Its URL, and a client. `kind`: of `SEVERAL`, or the binary of the only server."""
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
