"""Several processes on one Redis: no window admits too many, the threshold is used up, and the counters agree."""

import asyncio
import json
import sys
import time
from bisect import bisect_right

import pytest
import redis

from policy.limits.counter_layout import day_usage
from tests.contracts.redis.hammer import PER_MINUTE, PER_SECOND, plan_for_process
from tests.redis_server import REDIS_BINARIES, private_redis

PROCESSES = 4


def most_in_any(window_ms: int, instants: list[int]) -> int:
    """The largest number of instants within one window, including both ends."""
    return max(bisect_right(instants, start + window_ms) - place for place, start in enumerate(instants))


async def hammered(url: str, client: "redis.Redis", seconds: float) -> dict[str, list[int]]:
    """The admission times of each process."""
    names = [f"process-{number}" for number in range(PROCESSES)]
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.contracts.redis.hammer", url, name, str(seconds)),
            stdout=asyncio.subprocess.PIPE,
        )
        for name in names
    ]
    while client.info("clients")["connected_clients"] < PROCESSES + 1:
        await asyncio.sleep(0.01)
    client.set("go", 1)
    outputs = [(await process.communicate())[0] for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES
    return dict(zip(names, map(json.loads, outputs), strict=True))


async def exactly_shared(binary: str, seconds: float) -> int:
    """Run for some seconds, check the limits; returns the number of admissions."""
    with private_redis(binary=binary) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        admitted = await hammered(server.url, client, seconds)
        header = client.hget(plan_for_process("any").key, "root")
    assert isinstance(header, bytes)
    instants = sorted(at for one in admitted.values() for at in one)
    assert most_in_any(1000, instants) == PER_SECOND
    assert most_in_any(60_000, instants) == PER_MINUTE
    requests, _ = day_usage(header, time.time_ns() // 1_000_000)
    assert requests == len(instants)
    return len(instants)


@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_processes_share_exact_limits(binary: str) -> None:
    assert await exactly_shared(binary, 2.5) == PER_MINUTE


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_processes_share_exact_limits_over_minutes(binary: str) -> None:
    assert await exactly_shared(binary, 190) >= 3 * PER_MINUTE
