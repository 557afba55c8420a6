"""The cost of limits: Redis' CPU per call and Python's CPU per take, each beside the usual alternatives, in one run.

`python -m bench.studies.limits`. Redis, as it counts itself (`commandstats`): an empty script, `take.lua`, plain fixed
windows (a counter per limit and minute) and `settle.lua`, for 2, 4, 10 and 20 limits; settlements alone and, per
settlement, 16 in a batch. Python: process CPU with 16 takes in flight. What the limits admit:
`python -m bench.studies.limits_overload`.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import redis
import redis.asyncio
import uvloop

from bench.usage import cpu_s
from policy.limits.counter_layout import kind_mask
from policy.limits.effective import Plan, limit_set
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate, Reservation, Settlement
from policy.limits.take_numbers import TakeStamp
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.connection import encode
from proxy.edges.redis.nodes.dialing import Dialer
from proxy.edges.redis.nodes.pipelined_client import RedisClient, RedisClientOptions
from proxy.edges.redis.nodes.single import FixedServer
from proxy.edges.redis.scripts import Scripts, settle_arguments
from runtime.redis.url import RedisUrl
from tests.redis_counters import pending_settlements, take_arguments
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.waiting import eventually

CALLS = 20_000
SLICE = 100
ROUNDS = 3
IN_FLIGHT = 16
LEASE_MS = 1_240_000
ROOMY = 10**12
PATIENT = RedisClientOptions(deadline_s=5)
"""A busy machine must not fail the benchmark."""
STAMP = TakeStamp("0123456789abcdef", 1, 0)
TWO = ((LimitType.REQUEST, Unit.MINUTE), (LimitType.TOKEN, Unit.MINUTE))
FOUR = (*TWO, (LimitType.REQUEST, Unit.DAY), (LimitType.TOKEN, Unit.DAY))
SHAPES = {"2": (1, TWO), "4": (1, FOUR), "10": (5, TWO), "20": (5, FOUR)}

EMPTY = "return 0"
FIXED_WINDOWS = """
local time = redis.call('TIME')
local window = math.floor(time[1] / 60)
local limits = #ARGV / 3
for i = 1, limits do
  local used = redis.call('HGET', KEYS[1], ARGV[i] .. ':' .. window)
  if used and tonumber(used) >= tonumber(ARGV[limits + i]) then return 0 end
end
for i = 1, limits do
  redis.call('HINCRBY', KEYS[1], ARGV[i] .. ':' .. window, ARGV[2 * limits + i])
end
return 1
"""


def plan_of(shape: str) -> Plan:
    """Limits that refuse nothing: one level for 2 and 4 limits, five levels for 10 and 20."""
    levels, kinds = SHAPES[shape]
    groups = [f"grp_01JD0000000000000000000{level}" for level in range(levels)]
    limits = limit_set(tuple(Limit(*kind, ROOMY) for kind in kinds))
    return Plan("acme/chat", groups[0], f"tg:{{{groups[-1]}|acme/chat-{shape}}}", tuple(groups), (limits,) * levels)


def settling(plan: Plan, batch: int) -> Callable[[int], list[Any]]:
    """Makes the arguments of the n-th batch of settlements, each for 100 tokens less than reserved."""
    limits_by_group = {bound.counting_group: [b.limit for b in plan.bounds if b.counting_group == bound.counting_group]
            for bound in plan.bounds}  # fmt: skip
    tokens = [
        (group, [limit for limit in limits if limit.type is LimitType.TOKEN])
        for group, limits in limits_by_group.items()
    ]
    buckets = tuple((group, kind_mask(limits)) for group, limits in tokens)

    def arguments(call: int) -> list[Any]:
        reservation = Reservation(
            key=plan.key,
            buckets=buckets,
            admitted_at_ms=time.time_ns() // 1_000_000,
            reserved_tokens=600,
            margin_tokens=8000,
        )
        numbers = range(call * batch + 1, call * batch + batch + 1)
        return list(
            settle_arguments(
                [Settlement(reservation=reservation, number=number, actual_tokens=500) for number in numbers],
                f"b{batch}",
                LEASE_MS,
            )
        )

    return arguments


def taking(plan: Plan) -> Callable[[int], list[Any]]:
    """Makes the arguments of the n-th take; all earlier ones are answered."""

    def arguments(call: int) -> list[Any]:
        stamp = STAMP._replace(number=call + 1, answered_through=call)
        return [*take_arguments(plan, LEASE_MS, stamp), 600, 8000]

    return arguments


def always(arguments: list[Any]) -> Callable[[int], list[Any]]:
    return lambda _: arguments


def redis_us(client: "redis.Redis", script: str, key: str, arguments: Callable[[int], list[Any]]) -> float:
    """CPU µs per call as Redis counts it: the lower quartile of many short slices, so that preemptions by other
    programs are left out, while the dearer first call of each second counts."""
    raw: Any = client
    sha = raw.script_load(script)
    slices = []
    for start in range(0, CALLS, SLICE):
        raw.config_resetstat()
        pipeline = raw.pipeline(transaction=False)
        for call in range(start, start + SLICE):
            pipeline.execute_command("EVALSHA", sha, 1, key, *arguments(call))
        pipeline.execute()
        slices.append(float(raw.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]))
    return sorted(slices)[len(slices) // 4]


def report_redis(server: RedisServer) -> None:
    scripts = Scripts.load()
    take = scripts.take.text.decode()
    settle = scripts.settle.text.decode()
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        print(f"\nRedis {client.info()['redis_version']}: CPU µs per call")
        print(
            f"{'limits':>8} {'empty script':>14} {'take.lua':>10} {'fixed windows':>14} {'settle.lua':>11} {'of 16':>6}"
        )
        for shape in SHAPES:
            plan = plan_of(shape)
            ours: list[Any] = [*take_arguments(plan, LEASE_MS, STAMP), 600, 8000]
            names = [f"{bound.counting_group}:{bound.limit.type[0]}{bound.limit.unit[0]}" for bound in plan.bounds]
            costs = [1 if bound.limit.type is LimitType.REQUEST else 600 for bound in plan.bounds]
            fixed: list[Any] = [*names, *[ROOMY] * len(names), *costs]
            figures = (
                redis_us(client, EMPTY, plan.key, always(ours)),
                redis_us(client, take, plan.key, taking(plan)),
                redis_us(client, FIXED_WINDOWS, plan.key + ":fixed", always(fixed)),
                redis_us(client, settle, plan.key, settling(plan, 1)),
                redis_us(client, settle, plan.key, settling(plan, 16)) / 16,
            )
            widths = zip(figures, (14, 10, 14, 11, 6), strict=True)
            print(f"{shape:>8} " + " ".join(f"{figure:>{width}.2f}" for figure, width in widths))


async def python_us(check: Callable[[], Awaitable[Any]]) -> float:
    """CPU µs of this process per take, `IN_FLIGHT` at a time: the best of the rounds."""

    async def caller(times: int) -> None:
        for _ in range(times):
            await check()

    best = float("inf")
    for _ in range(ROUNDS):
        start_s = time.process_time()
        await asyncio.gather(*(caller(CALLS // IN_FLIGHT) for _ in range(IN_FLIGHT)))
        best = min(best, (time.process_time() - start_s) / CALLS * 1e6)
    return best


async def report_python(server: RedisServer) -> None:
    plans = [plan_of("4") for _ in range(IN_FLIGHT)]
    arguments = [*take_arguments(plans[0], LEASE_MS, STAMP), b"600", b"8000"]
    path = str(server.socket_path)
    scripts = Scripts.load()
    print(f"\nPython: CPU µs per check of 4 limits, {IN_FLIGHT} in flight, uvloop")

    address = RedisUrl.parse(server.url).login
    pipelined = RedisClient(FixedServer(address, Dialer(address.tls)), PATIENT)
    await pipelined.start()
    request = (b"EVALSHA", scripts.take.sha, b"1", plans[0].key.encode(), *arguments)
    await pipelined.execute(b"SCRIPT", b"LOAD", scripts.take.text)
    print(
        f"{'thin client, command encoded each time':>44} {await python_us(lambda: pipelined.execute(*request)):>8.1f}"
    )
    print(f"{'(of which encoding)':>44} {_encoding_us(request):>8.1f}")
    await pipelined.close()

    counters = RedisCounters(server.url, "bench", options=CountersOptions(client=PATIENT))
    await counters.start()
    turn = iter(range(10**9))
    apart = await python_us(lambda: counters.take(plans[next(turn) % IN_FLIGHT], Estimate(600, 8000)))
    print(f"{'counters.take, each plan alone':>44} {apart:>8.1f}")
    merged = await python_us(lambda: counters.take(plans[0], Estimate(600, 8000)))
    print(f"{'counters.take, one hot plan (merged)':>44} {merged:>8.1f}")
    await counters.close()

    async with redis.asyncio.Redis(unix_socket_path=path) as own:
        client: Any = own
        sha = scripts.take.sha.decode()
        key = plans[0].key
        alone = await python_us(lambda: client.evalsha(sha, 1, key, *arguments))
        print(f"{'redis-py asyncio':>44} {alone:>8.1f}")

        async def tick() -> None:
            pipeline = client.pipeline(transaction=False)
            for _ in range(IN_FLIGHT):
                pipeline.evalsha(sha, 1, key, *arguments)
            await pipeline.execute()

        print(f"{'redis-py asyncio, a pipeline per tick':>44} {await _per_tick_us(tick):>8.1f}")


async def _per_tick_us(tick: Callable[[], Awaitable[None]]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start_s = time.process_time()
        for _ in range(CALLS // IN_FLIGHT):
            await tick()
        best = min(best, (time.process_time() - start_s) / CALLS * 1e6)
    return best


def _encoding_us(request: tuple[bytes, ...]) -> float:
    start_s = time.process_time()
    for _ in range(CALLS):
        encode(*request)
    return (time.process_time() - start_s) / CALLS * 1e6


async def report_calls(server: RedisServer) -> None:
    """All that Redis spends on a governed call: sockets, parsing, take and settlement, on the levels of the bench."""
    print("\nRedis: CPU µs per governed call, 4 limits on 3 levels, on a unix socket: median (least to most)")
    plan = bench_plan()  # one value, as a worker keeps it: takes of the same plan are merged
    for in_flight in (1, 16, 64):
        counters = RedisCounters(server.url, f"bench{in_flight}", options=CountersOptions(client=PATIENT))
        await counters.start()
        spent = []
        for _ in range(ROUNDS + 3):
            before = cpu_s([server.pid]) * 1e6
            turn = iter(range(CALLS))
            await asyncio.gather(*(_call_in_turn(counters, plan, turn) for _ in range(in_flight)))
            await eventually(lambda: not pending_settlements(counters))  # noqa: B023 (awaited here)
            spent.append((cpu_s([server.pid]) * 1e6 - before) / CALLS)
        await counters.close()
        spent = sorted(spent[1:])
        print(f"{in_flight:>8} in flight {statistics.median(spent):>8.1f} ({spent[0]:.1f} to {spent[-1]:.1f})")


async def _call_in_turn(counters: RedisCounters, plan: Plan, turn: Iterator[int]) -> None:
    for _ in turn:
        answer = await counters.take(plan, Estimate(600, 8000))
        if not isinstance(answer, Taken):
            raise TypeError("these limits refuse nothing")
        for reservation in answer.reservations:
            counters.settle(reservation, number=next(counters.numbers), actual_tokens=500)


def bench_plan() -> Plan:
    """The limits of the governed call of `make bench`."""
    levels = (
        ((LimitType.REQUEST, Unit.SECOND), (LimitType.REQUEST, Unit.DAY)),
        ((LimitType.TOKEN, Unit.MINUTE),),
        ((LimitType.REQUEST, Unit.MINUTE),),
    )
    groups = [f"grp_01JD0000000000000000000{level}" for level in range(3)]
    limits = tuple(limit_set(tuple(Limit(*kind, ROOMY) for kind in kinds)) for kinds in levels)
    return Plan("acme/chat", groups[0], f"tg:{{{groups[-1]}|acme/chat-bench}}", tuple(groups), limits)


def main() -> None:
    for binary in REDIS_BINARIES:
        with private_redis(binary=binary) as server:
            report_redis(server)
    with private_redis() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(report_python(server))
        runner.run(report_calls(server))


if __name__ == "__main__":
    main()
