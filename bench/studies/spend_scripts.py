"""Redis' CPU for what a spend limit adds to a call, beside that of the limits' own step at the same depth, in one run.

`python -m bench.studies.spend_scripts`. As Redis counts it itself (`commandstats`): take and settlement of REQUEST and
TOKEN limits, take and end of SOFT and HARD spend limits and of a balance, at three and five levels with limits on each.
Their slices of 100 calls take turns; the lower quartile of each is printed, one call a command, and 16.
"""

import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import count
from typing import Any

import hiredis
import redis

from bench.studies.limits import FOUR, LEASE_MS, ROOMY, STAMP, TWO, settling
from policy.limits.effective import Plan, limit_set
from policy.limits.groups import Enforcement
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.spend.balances import Balance
from policy.spend.effective import SpendPlan, spend_plan
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_book import SpendBook
from proxy.edges.redis.scripts import Scripts
from proxy.edges.redis.spend.scripts import (
    Arguments,
    SpendScripts,
    call_arguments,
    encoded,
    given_back_arguments,
    hard_call_arguments,
    take_template,
)
from tests.redis_counters import take_arguments
from tests.redis_server import private_redis

SLICE = 100
SLICES = 60
PICOS = 500_000_000
INCARNATION = "0123456789abcdef"
EPOCH = "f" * 40


def groups_of(levels: int) -> list[str]:
    return [f"grp_01JD0000000000000000000{level}" for level in range(levels)]


def plan_of(levels: int, kinds: Sequence[tuple[LimitType, Unit]]) -> Plan:
    groups = groups_of(levels)
    limits = limit_set(tuple(Limit(type, unit, ROOMY) for type, unit in kinds))
    key = f"tg:{{{groups[-1]}|acme/chat-{len(kinds)}}}"
    return Plan("acme/chat", groups[0], key, tuple(groups), (limits,) * levels)


def spend_plan_of(levels: int, *, is_hard: bool = False, has_balance: bool = False) -> SpendPlan:
    """A limit of a day on each level; or only a balance, of the root."""
    groups = groups_of(levels)
    mode = SpendEnforcement.HARD if is_hard else SpendEnforcement.SOFT
    limit = SpendLimit(Unit.DAY, Decimal(10**9), "EUR", mode)
    balances = [None] * (levels - 1) + [Balance("EUR", Decimal(10**9)) if has_balance else None]
    plan = spend_plan(groups, Enforcement.CASCADING, [() if has_balance else (limit,)] * levels, balances)
    assert plan is not None
    return plan


def us_of(client: Any, sha: str, key: str, calls: list[list[Any]], batch: int) -> float:
    """CPU µs per call of these commands, each of which has `batch` calls."""
    client.config_resetstat()
    pipeline = client.pipeline(transaction=False)
    for arguments in calls:
        pipeline.execute_command("EVALSHA", sha, 1, key, *arguments)
    pipeline.execute()
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]) / batch


def decoded(calls: list[Arguments]) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(b"*%d\r\n%b" % (2 * len(calls), encoded(calls)))
    arguments: list[bytes] = reader.gets()
    return arguments


def first_step(client: Any, plan: Plan, batch: int) -> Iterator[tuple[float, float]]:
    """CPU µs of a take, and of a settlement, slice by slice."""
    scripts = Scripts.load()
    take = client.script_load(scripts.take.text.decode())
    settle = client.script_load(scripts.settle.text.decode())
    settlement = settling(plan, batch)
    numbers = count()
    while True:
        first = [next(numbers) for _ in range(SLICE)]
        stamps = [STAMP._replace(number=number + 1, answered_through=number) for number in first]
        takes = [[*take_arguments(plan, LEASE_MS, stamp), *(600, 8000) * batch] for stamp in stamps]
        taken_us = us_of(client, take, plan.key, takes, batch)
        yield taken_us, us_of(client, settle, plan.key, [settlement(number) for number in first], batch)


def spend_step(client: Any, plan: SpendPlan, batch: int) -> Iterator[tuple[float, float]]:
    """CPU µs of a take by spend limits, and of an end, slice by slice. What a slice reserves is gone after it."""
    scripts = SpendScripts.load()
    take = client.script_load(scripts.take.text.decode())
    end = client.script_load(scripts.end.text.decode())
    template = take_template(plan, INCARNATION)
    numbers = count()
    while True:
        book = SpendBook()
        book.build(f"{EPOCH} EUR +", time.time_ns() // 1_000_000, {})
        book.complete(EPOCH, {})
        client.delete(plan.key)
        for name, value in book.fields().items():
            client.hset(plan.key, name, value)
        keys = [[f"{next(numbers):026}" for _ in range(batch)] for _ in range(SLICE)]
        takes = []
        for some in keys:
            if plan.is_hard:
                takes.append([*template, *decoded([hard_call_arguments(key, PICOS, PICOS // 8) for key in some])])
            else:
                takes.append([*template, *decoded([call_arguments(key, PICOS) for key in some])])
        taken_us = us_of(client, take, plan.key, takes, batch)
        assert client.hlen(plan.key) > SLICE * batch, "the calls were admitted"
        ends = [decoded([call_arguments(key, PICOS // 3) for key in some]) for some in keys]
        yield taken_us, us_of(client, end, plan.key, ends, batch)
        for some in keys:
            client.evalsha(end, 1, plan.key, *decoded([given_back_arguments(key) for key in some]))


def report(client: Any, levels: int, batch: int) -> None:
    steps = {
        "REQUEST and TOKEN a minute": first_step(client, plan_of(levels, TWO), batch),
        "the same, and a day": first_step(client, plan_of(levels, FOUR), batch),
        "SOFT": spend_step(client, spend_plan_of(levels), batch),
        "HARD": spend_step(client, spend_plan_of(levels, is_hard=True), batch),
        "a balance": spend_step(client, spend_plan_of(levels, has_balance=True), batch),
    }
    slices: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(SLICES):
        for name, step in steps.items():
            slices[name].append(next(step))
    print(f"\n{levels} levels, {batch} calls a command: CPU µs of a call's take and of its end, and of both")
    for name, pairs in slices.items():
        takes, ends = (sorted(side)[len(pairs) // 4] for side in zip(*pairs, strict=True))
        print(f"{name:>28} {takes:8.2f} {ends:8.2f} {takes + ends:8.2f}")


def main() -> None:
    with private_redis() as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        print(f"Redis {client.info()['redis_version']}")
        for levels in (3, 5):
            for batch in (1, 16):
                report(client, levels, batch)


if __name__ == "__main__":
    main()
