"""Helpers for the suites of counters on clusters and behind sentinels: real scripts and a real clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from policy.limits.effective import Plan
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from tests.contracts.redis.counters_world import RPD, RPM, TPD, day_usage, group, plan_of
from tests.redis_server import RedisServer

OPTIONS = CountersOptions(client=RedisClientOptions(deadline_s=0.5), local_refusals=False)
"""A longer deadline than in production, for a machine that is busy with other tests."""


@asynccontextmanager
async def counters_at(url: str, options: CountersOptions = OPTIONS) -> AsyncIterator[RedisCounters]:
    new_counters = RedisCounters(url, "worker-1", options=options)
    await new_counters.start()
    try:
        yield new_counters
    finally:
        await new_counters.close()


def plan(name: str = "g1", requests: int = 100) -> Plan:
    """Return a plan of `requests` a minute; the day's limits count and do not bind."""
    return plan_of(group(name, {RPM: requests, RPD: 10**6, TPD: 10**6}))


def settle(counters: RedisCounters, admission: Taken, tokens: int) -> None:
    for reservation in admission.reservations:
        counters.settle(reservation, number=next(counters.numbers), actual_tokens=tokens)


def counted(server: RedisServer, plan: Plan) -> tuple[int, int]:
    """Requests and settled tokens of the day, as the server has them."""
    header = server.run("HGET", plan.key, plan.group_id)
    seconds, microseconds = server.run("TIME")
    return day_usage(header, int(seconds) * 1000 + int(microseconds) // 1000)
