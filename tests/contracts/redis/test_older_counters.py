"""Counters across versions: what a version without margins wrote still counts, and it finds its logs first."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from tests.contracts.redis.counters_world import START_MS, World, redis_world, simple
from tests.redis_server import REDIS_BINARIES, private_redis

BEFORE_LOGS = 23
LOG_BYTES = 29
OLDER_LOGS = 5
"""Scripts of the version before know headers of at most five logs, one for each kind but REQUEST DAY."""


@pytest.fixture(params=REDIS_BINARIES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    with private_redis(binary=request.param) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        new_world = redis_world(server.url, client)
        await new_world.counters.start()
        yield new_world
        await new_world.counters.close()


def packed(*figures: tuple[int, int]) -> bytes:
    """Numbers, each with its width in bytes."""
    return b"".join(number.to_bytes(width, "little") for number, width in figures)


def older_header(*logs: tuple[int, int]) -> bytes:
    """A header of the version before: of each log its kind, and the count of its open entry."""
    day = START_MS // 86_400_000
    header = packed((START_MS, 6), (day, 3), (0, 7), (700, 7))
    for kind, count in logs:
        header += packed((kind, 1), (count, 7), (0, 6), (START_MS, 6), (0, 2), (count, 7))
    return header


async def test_counts_of_the_version_before_are_kept(world: World) -> None:
    plan = simple(rpm=100, tpm=1_000, tpd=10_000)
    assert world.redis is not None
    world.redis.hset(plan.key, plan.group_id, older_header((2, 40), (4, 600), (6, 300)))
    admission = await world.admit(plan, 100, margin=50)
    assert admission.requests is not None
    assert admission.tokens is not None
    assert (admission.requests.remaining, admission.tokens.remaining) == (59, 300)
    await world.settle(admission, 20)
    assert (await world.admit(plan, 0)).tokens == admission.tokens.__class__(1_000, 380, admission.tokens.reset_ms)


async def test_logs_of_all_kinds_come_before_the_margins(world: World) -> None:
    """A limit that is added later comes before the margins too."""
    few = simple(tpm=1_000)
    all_kinds = simple(rps=9, rpm=9, tps=900, tpm=1_000, rpd=9, tpd=9_000)
    await world.admit(few, 10, margin=10)
    await world.settle(await world.admit(all_kinds, 10, margin=10), 5)
    assert world.redis is not None
    header: Any = world.redis.hget(few.key, few.group_id)
    kinds = [header[at] for at in range(BEFORE_LOGS, len(header), LOG_BYTES)]
    assert sorted(kinds[:OLDER_LOGS]) == [1, 2, 3, 4, 6]
    assert sorted(kinds[OLDER_LOGS:]) == [67, 68, 70]


async def test_margins_that_are_lost_hold_nothing_back(world: World) -> None:
    """Scripts of the version before drop what they do not know of a header with more than five logs."""
    plan = simple(rps=9, rpm=9, tps=900, tpm=1_000, tpd=9_000)
    admission = await world.admit(plan, 10, margin=800)
    assert world.redis is not None
    header: Any = world.redis.hget(plan.key, plan.group_id)
    world.redis.hset(plan.key, plan.group_id, header[: BEFORE_LOGS + OLDER_LOGS * LOG_BYTES])
    await world.settle(admission, 10)
    again = await world.admit(plan, 10, margin=800)
    assert again.tokens is not None
    assert again.tokens.remaining == 900 - 20
