"""The cost of many proxies to one control: at rest, with a change a second, events and reports, and after its death.

`python -m bench.studies.many_proxies [--proxies N] [--keys N] [--postgres]`. A real `tollgate control` on a database of
10 000 endpoints, 100 000 groups and N keys, a real Redis, and in this process what the supervisors of all proxies do
at them (`bench/studies/simulated_proxy.py`). CPU is in ms per second: 1000 is a core.
"""

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.programs.control_plane import ControlPlane, policy_database
from bench.programs.gateway import Api
from bench.programs.processes import OTHER_CORE, BenchError, treat_sigterm_as_interrupt
from bench.studies.policy_scale import rows
from bench.studies.simulated_proxy import Log, Reader, SimulatedProxy, current_version
from bench.usage import cpu_s
from runtime.background import running
from tests.redis_server import RedisServer, private_redis

CHANGES = 20
DOWN_S = 20.0
"""The time that control is away: long enough for every proxy to fail several times."""
RETURN_S = 10.0


@dataclass(slots=True)
class Fleet:
    """The proxies, and what they ask."""

    control: ControlPlane
    redis: RedisServer
    proxies: list[SimulatedProxy]
    log: Log
    api: Api

    async def cost(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Run `act`; print the CPU per second meanwhile, in ms. A Redis that restarts counts from its start."""
        self.log.clear()
        before = self._used_s()
        start_s = time.monotonic()
        await act()
        took_s = time.monotonic() - start_s
        control_ms, redis_ms = (
            1000 * (after - (earlier if after >= earlier else 0)) / took_s
            for after, earlier in zip(self._used_s(), before, strict=True)
        )
        rate = sum(self.log.requests.values()) / took_s
        print(
            f"{name}: control {control_ms:.1f} ms/s, Redis {redis_ms:.1f} ms/s, {rate:.1f} requests/s",
            flush=True,
        )

    def _used_s(self) -> tuple[float, float]:
        return cpu_s(self.control.pids()), cpu_s([self.redis.pid])


@dataclass(slots=True)
class Delays:
    """The delays until things reached the proxies, change by change."""

    median_s: list[float] = field(default_factory=list)
    last_s: list[float] = field(default_factory=list)

    def add(self, reached_s: list[float], from_s: float) -> None:
        self.median_s.append(statistics.median(reached_s) - from_s)
        self.last_s.append(max(reached_s) - from_s)

    def __str__(self) -> str:
        typical = 1000 * statistics.median(self.median_s)
        last = 1000 * statistics.median(self.last_s)
        return f"{typical:.0f} ms to the median proxy, {last:.0f} ms to all, at most {1000 * max(self.last_s):.0f} ms"


async def change_often(fleet: Fleet) -> None:
    """Change a secret once a second. Print how long hint and change took to be in the median proxy, and in all."""
    hints = Delays()
    changes = Delays()
    for turn in range(CHANGES):
        began_s = time.monotonic()
        fleet.log.hinted_s = []
        fleet.log.confirmed_s = []
        await asyncio.to_thread(fleet.api.post, "/v1/secrets", {"name": "upstream", "value": f"value {turn}"})
        answered_s = time.monotonic()
        while len(fleet.log.confirmed_s) < len(fleet.proxies):
            await asyncio.sleep(0.01)
            if time.monotonic() - answered_s > 30:
                raise BenchError("a change has not reached all proxies within 30 s")
        hints.add(fleet.log.hinted_s, began_s)
        changes.add(fleet.log.confirmed_s, answered_s)
        await asyncio.sleep(max(0.0, 1 - (time.monotonic() - began_s)))
    print(f"  its hint, from when the change was sent: {hints}", flush=True)
    print(f"  the change itself, from its answer: {changes}", flush=True)


async def fall_and_return(fleet: Fleet) -> None:
    """Kill control, start it after `DOWN_S`, and print how its first requests are spread."""
    fleet.control.kill()
    await asyncio.sleep(DOWN_S)
    print(f"  while control was away for {DOWN_S:.0f} s: {summary(fleet.log.requests)}", flush=True)
    fleet.control.launch()
    await asyncio.to_thread(fleet.control.await_answers)
    fleet.log.clear()
    back_s = time.monotonic()
    used_s = cpu_s(fleet.control.pids())
    for second in range(int(RETURN_S)):
        await asyncio.sleep(max(0.0, back_s + second + 1 - time.monotonic()))
        now_s = cpu_s(fleet.control.pids())
        print(f"  second {second + 1}: control's CPU {1000 * (now_s - used_s):.0f} ms, requests per 100 ms:", end=" ")
        print(*tenths(fleet.log.sent_s, back_s + second), flush=True)
        used_s = now_s
    print(f"  in these {RETURN_S:.0f} s: {summary(fleet.log.requests)}; not answered: {fleet.log.failed}", flush=True)


def summary(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "no requests"


def tenths(times_s: list[float], from_s: float) -> list[int]:
    """Count the times in each tenth of the second that begins at `from_s`."""
    counts = Counter(int((at_s - from_s) * 10) for at_s in times_s if from_s <= at_s < from_s + 1)
    return [counts[tenth] for tenth in range(10)]


async def restart_redis(fleet: Fleet) -> None:
    """Every proxy subscribes again, and refreshes."""
    fleet.redis.kill()
    fleet.redis.start()
    await asyncio.sleep(10)
    worst = max(tenths(fleet.log.sent_s, min(fleet.log.sent_s)))
    print(f"  after a restart of Redis: {summary(fleet.log.requests)}, at most {worst} of them in 100 ms", flush=True)


def make_deployment(api: Api) -> tuple[str, str]:
    """The ids of a model and its deployment."""
    model = api.post("/v1/models", {"name": "bench"})["id"]
    return model, api.post(f"/v1/models/{model}/deployments", {"name": "bench"})["id"]


async def measure(control: ControlPlane, redis: RedisServer, count: int, rest_s: float) -> None:
    api = Api(control.url, control.make_workspace())
    log = Log()
    deployment = await asyncio.to_thread(make_deployment, api)
    reader = Reader(await current_version(control.database), deployment)
    async with AsyncExitStack() as stack:
        proxies = [SimulatedProxy(control.url, redis.url, reader, log) for _ in range(count)]
        for proxy in proxies:
            stack.push_async_callback(proxy.close)
        fleet = Fleet(control, redis, proxies, log, api)
        async with running(*(part for proxy in proxies for part in proxy.policy)):
            await asyncio.sleep(5)
            await fleet.cost(f"{count} proxies at rest", lambda: asyncio.sleep(rest_s))
            await fleet.cost("a change a second", lambda: change_often(fleet))
            await fleet.cost("Redis restarts", lambda: restart_redis(fleet))
            async with running(*(proxy.loads for proxy in proxies)):
                await fleet.cost("with loads, twice a second", lambda: asyncio.sleep(10))
            async with running(*(proxy.events for proxy in proxies)):
                await fleet.cost("with events, twice a second", lambda: asyncio.sleep(10))
            async with running(*(part for proxy in proxies for part in (proxy.loads, proxy.events))):
                await asyncio.sleep(2)
                await fall_and_return(fleet)


def main() -> None:
    treat_sigterm_as_interrupt()
    logging.disable(logging.CRITICAL)  # hundreds of proxies that cannot reach control say so
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxies", type=int, default=200)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rest", type=float, default=60, help="seconds to measure at rest")
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database, count = asyncio.run(policy_database(stack, folder, rows(options.keys), options.postgres))
        print(f"{count:,} rows of policy in {database.partition(':')[0]}", flush=True)
        redis = stack.enter_context(private_redis())
        control = stack.enter_context(ControlPlane(folder, database, redis.url))
        asyncio.run(measure(control, redis, options.proxies, options.rest))


if __name__ == "__main__":
    main()
