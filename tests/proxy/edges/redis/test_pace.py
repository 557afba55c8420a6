"""Turns are taken in order, and their bytes stay within the rate."""

import asyncio
import time

from proxy.edges.redis.async_queue.pace import Pace


async def test_no_more_bytes_move_than_the_rate_allows() -> None:
    pace = Pace(1000)
    began = time.monotonic()
    for _ in range(4):
        await pace.wait(20)
    assert time.monotonic() - began >= 0.06


async def test_who_comes_first_is_served_first() -> None:
    pace = Pace(10_000)
    served = []

    async def take(name: str, size_bytes: int) -> None:
        await pace.wait(size_bytes)
        served.append(name)

    await asyncio.gather(take("a", 100), take("b", 300), take("c", 1), take("d", 1))
    assert served == ["a", "b", "c", "d"]


async def test_who_gives_up_takes_nothing_from_those_behind() -> None:
    pace = Pace(10)
    await pace.wait(1)
    impatient = asyncio.create_task(pace.wait(1_000_000))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    async with asyncio.timeout(30):
        await pace.wait(1)
