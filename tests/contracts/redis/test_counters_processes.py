"""Several processes on one Redis: no window admits too many, the threshold is used up, and the counters agree."""

import asyncio
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Callable

import pytest
import redis
from redis.crc import key_slot

from tests.contracts.redis.counters_world import day_usage
from tests.contracts.redis.hammer import PER_MINUTE, PER_SECOND, plan_for_process
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, running_cluster
from tests.redis_sentinel import running_sentinels
from tests.redis_server import REDIS_BINARIES, private_redis

PROCESSES = 4
KEY = plan_for_process("any").key


def most_in_any(window_ms: int, instants: list[int]) -> int:
    """The largest number of instants within one window, including both ends."""
    return max(bisect_right(instants, start + window_ms) - place for place, start in enumerate(instants))


async def hammered(
    url: str, go: Callable[[], object], seconds: float, disturb: Callable[[], None] = lambda: None
) -> dict[str, list[int]]:
    """The admission times of each process. `go`: sets the key. `disturb`: called in a thread meanwhile."""
    names = [f"process-{number}" for number in range(PROCESSES)]
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.contracts.redis.hammer", url, name, str(seconds)),
            stdout=asyncio.subprocess.PIPE,
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"connected\n"
    go()
    await asyncio.to_thread(disturb)
    outputs = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    return dict(zip(names, map(json.loads, outputs), strict=True))


def assert_exactly_shared(admitted: dict[str, list[int]], header: object) -> int:
    """Check the limits; returns the number of admissions. `header`: of the shared group."""
    assert isinstance(header, bytes)
    instants = sorted(at for one in admitted.values() for at in one)
    assert most_in_any(1000, instants) == PER_SECOND
    assert most_in_any(60_000, instants) == PER_MINUTE
    requests, _ = day_usage(header, time.time_ns() // 1_000_000)
    assert requests == len(instants)
    return len(instants)


async def exactly_shared(binary: str, seconds: float) -> int:
    with private_redis(binary=binary) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        admitted = await hammered(server.url, lambda: client.set("go", 1), seconds)
        return assert_exactly_shared(admitted, client.hget(KEY, "root"))


@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_processes_share_exact_limits(binary: str) -> None:
    assert await exactly_shared(binary, 2.5) == PER_MINUTE


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_processes_share_exact_limits_while_a_cluster_is_rebuilt() -> None:
    """The counters move from node to node, and a replica takes the place of its primary."""
    with running_cluster(node_timeout_ms=PATIENT_MS) as cluster:

        def rebuild() -> None:
            for target in cluster.primaries:
                if cluster.owner_of(KEY) is not target:
                    cluster.move(key_slot(KEY.encode()), target)
                time.sleep(0.2)
            cluster.fail_over(cluster.replicas[2])

        admitted = await hammered(cluster.url, lambda: cluster.owner_of("go").run("SET", "go", 1), 2.5, rebuild)
        assert cluster.owner_of(KEY) is cluster.replicas[2]
        assert assert_exactly_shared(admitted, cluster.owner_of(KEY).run("HGET", KEY, "root")) == PER_MINUTE


@pytest.mark.soak
async def test_processes_share_exact_limits_on_the_primary_that_sentinels_name() -> None:
    with running_sentinels() as sentinels, redis.Redis(port=sentinels.primary_port) as client:
        admitted = await hammered(sentinels.url, lambda: client.set("go", 1), 2.5)
        assert assert_exactly_shared(admitted, client.hget(KEY, "root")) == PER_MINUTE


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_processes_share_exact_limits_over_minutes(binary: str) -> None:
    assert await exactly_shared(binary, 190) >= 3 * PER_MINUTE
