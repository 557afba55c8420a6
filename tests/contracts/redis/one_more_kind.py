"""Behaviour of a kind that one more row of the table makes. `test_one_more_kind.py` runs this with such a table.

Arguments: the URL of a Redis, the URL of a database. Prints `ok`; any step that does not know the kind raises.
"""

import asyncio
import json
import re
import sys
from contextlib import aclosing

from sqlalchemy.ext.asyncio import create_async_engine

from commands.editing.limits import parse_limits
from commands.policy_file.schema import SCHEMA
from control.edges.redis.client import connect
from control.edges.redis.usage_counters import UsageCounters
from control.edges.sql.migrations.migrate import migrate
from control.records.usage import Bucket, Meter
from policy.billing import Tokens
from policy.limits.effective import Plan, limit_set, plan_for
from policy.limits.kinds import KIND_NUMBER, KINDS
from policy.limits.settlement import Estimate
from policy.snapshot import group_node_from_wire, limits_from_wire
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.http_rules.limit_refusal import limit_refusal
from tests.control.plane import ControlPlane, running_plane
from tests.redis_counters import pending_settlements

TYPE = "CACHED_INPUT_TOKEN"
UNIT = "HOUR"
LIMIT = {"type": TYPE, "unit": UNIT, "threshold": 50}
ESTIMATE = Estimate(40, 0, output=10)
TOKENS = Tokens(input=60, output=7, cached_input=55)


async def through_the_api(plane: ControlPlane) -> Plan:
    """Store a limit, look at it and at the console's list, and read it as a proxy does."""
    group = await plane.group("customer", models=[{"slug": "acme/chat", "rate_limits": [LIMIT]}])
    [effective] = group["effective_models"]
    assert effective["rate_limits"] == [LIMIT | {"source_group": group["id"]}]
    limits = (await plane.get(f"/v1/gateway/groups/{group['id']}/limits")).ok()["items"]
    assert [(one["type"], one["unit"], one["threshold"]) for one in limits] == [(TYPE, UNIT, 50)]
    tables = (await plane.get("/console/tables.json")).ok()["limits"]
    assert {"type": TYPE, "unit": UNIT} in tables["kinds"]
    assert UNIT in tables["rate_units"]
    wire = {"workspace_id": "ws", "parent_id": None, "external_entity_id": "customer", "enforcement": "INDEPENDENT"}
    node = group_node_from_wire(group["id"], wire)
    [entry] = group["models"]
    own = [limit for limits in limits_from_wire(entry) for limit in limits]
    plan = plan_for((node,), "acme/chat", [limit_set(tuple(own))])
    assert plan is not None
    return plan


async def through_redis(url: str, plan: Plan) -> None:
    """Reserve, settle, refuse; control reads the same use."""
    options = CountersOptions(local_refusals=False, client=RedisClientOptions(deadline_s=10))
    counters = RedisCounters(url, "worker", options=options)
    await counters.start()
    try:
        admission = await counters.take(plan, ESTIMATE)
        assert isinstance(admission, Taken)
        for one in admission.reservations:
            counters.settle(one, number=next(counters.numbers), actual_tokens=one.type.amount(TOKENS))
        while pending_settlements(counters):
            await asyncio.sleep(0.001)
        hit = await counters.take(plan, ESTIMATE)
        assert isinstance(hit, LimitHit)
        assert 3_500_000 < hit.retry_after_ms <= 3_600_001
        assert f"50 {TYPE} per {UNIT}" in limit_refusal(plan, hit, "ws").message
    finally:
        await counters.close()
    kind = hit.bound.limit.type, hit.bound.limit.unit
    async with aclosing(connect(url)) as client:
        [usage] = await UsageCounters(client).used([Meter(Bucket(plan.key, plan.group_id), *kind)])
    assert usage.amount == 55


def elsewhere() -> None:
    """The command line and policy files."""
    [change] = parse_limits(None, None, [f"acme/chat:{TYPE}/{UNIT}=5".lower()])  # type: ignore[arg-type]
    assert (change.type, change.unit, change.list_name) == (TYPE, UNIT, "rate_limits")
    properties = SCHEMA["$defs"]["rate_limit"]["properties"]
    assert TYPE in properties["type"]["enum"]
    assert UNIT in properties["unit"]["enum"]
    assert re.search(TYPE, json.dumps(SCHEMA["$defs"]["usage_limit"]))


async def main(redis_url: str, database_url: str) -> None:
    assert len(KINDS) == max(KIND_NUMBER.values())
    elsewhere()
    engine = create_async_engine(database_url)
    await migrate(engine)
    await engine.dispose()
    async with running_plane(database_url, redis_url=redis_url) as plane:
        plan = await through_the_api(plane)
    await through_redis(redis_url, plan)
    print("ok")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
