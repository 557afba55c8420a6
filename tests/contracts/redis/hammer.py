"""One process of `test_counters_processes.py`: takes as much as it can, and prints the times of its admissions.

`python -m tests.contracts.redis.hammer REDIS_URL NAME SECONDS`: prints a line when it is connected, and begins when the
key `go` appears.
"""

import asyncio
import json
import sys

import uvloop

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.nodes.redis_node import execute
from tests.contracts.redis.counters_world import RPD, RPM, RPS, TPM, group, plan_of

PER_SECOND = 60
PER_MINUTE = 100
AT_ONCE = 8


def plan_for_process(name: str) -> Plan:
    """A leaf of this process below a shared parent. The TOKEN limit never binds; it makes each take report its time."""
    root = group("root", {RPS: PER_SECOND, RPM: PER_MINUTE, RPD: 1_000_000, TPM: 10**9})
    return plan_of(group(f"leaf-{name}", {RPM: 10_000}, "root"), root)


async def hammer(url: str, name: str, seconds: float) -> list[int]:
    patient = CountersOptions(
        client=RedisClientOptions(deadline_s=10)
    )  # it is exactness that is tested, however busy the machine
    counters = RedisCounters(url, name, options=patient)
    await counters.start()
    print("connected", flush=True)
    while await execute(counters._nodes, b"go", b"GET", b"go") is None:
        await asyncio.sleep(0.005)
    plan = plan_for_process(name)
    admitted_at = list[int]()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def press() -> None:
        while loop.time() < end:
            answer = await counters.take(plan, Estimate(10))
            if isinstance(answer, Taken):
                admitted_at.append(answer.reservations[0].admitted_at_ms)
                counters.settle(answer.reservations[0], number=next(counters.numbers), actual_tokens=7)
            else:
                await asyncio.sleep(0.001)

    await asyncio.gather(*(press() for _ in range(AT_ONCE)))
    await counters.close()
    return admitted_at


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(hammer(sys.argv[1], sys.argv[2], float(sys.argv[3])))))
