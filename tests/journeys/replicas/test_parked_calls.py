"""Calls that arrive while a deployment has no replica: parked, woken once, fair between groups, each answered once."""

from collections import Counter
from typing import Any

from tests.journeys.replicas.crowd import GROUPS, MAX_CONCURRENCY, QUIET, TOTAL, Crowd, WakeHook
from tests.journeys.replicas.model_servers import ModelServers


async def test_parked_calls_are_woken_once_start_in_turn_and_are_each_answered_and_billed_once(
    crowd: Crowd, servers: ModelServers, hook: WakeHook
) -> None:
    stage = crowd.stage
    crowd.arrive()
    await crowd.until_parked(TOTAL)
    await stage.until(lambda: _value(hook.requests), "the hook is asked")

    async def wakes_up() -> bool:
        return bool((await stage.operator.call("GET", crowd.deployment))["status"] == "WAKING_UP")

    await stage.until(wakes_up, "control has noted the hook's answer")
    server = servers.start(healthy=False, delay_s=0.02)
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert (await stage.operator.call("GET", crowd.deployment))["status"] == "LOADING_MODEL"
    assert not server.received()
    server.become_healthy()
    assert await crowd.all_ended() == {200: TOTAL}

    assert len(hook.requests) == 1, "asked for once per need, not per call and not per worker"
    assert hook.requests[0]["reason"] == "request"
    received = [id.partition(".")[0] for id in server.received()]
    assert Counter(servers.received().values()) == {1: TOTAL}, "no call was sent twice"
    quiet_ended = max(place for place, group in enumerate(received) if group != "noisy")
    noisy_before = received[:quiet_ended].count("noisy")
    assert noisy_before <= 2 * QUIET, f"{noisy_before} noisy calls came before the last quiet one"
    for group, count in GROUPS.items():
        entity = f"{stage.name}-{group}"
        events = await stage.events_of(entity, count)
        assert Counter(event["requestId"] for event in events) == Counter(
            f"{group}.{number}" for number in range(count)
        )

    async def active() -> bool:
        return bool((await stage.operator.call("GET", crowd.deployment))["status"] == "ACTIVE")

    await stage.until(active, "the deployment is ACTIVE")


async def test_callers_who_leave_while_parked_free_their_places_and_reach_no_replica(
    crowd: Crowd, servers: ModelServers
) -> None:
    stage = crowd.stage
    crowd.arrive()
    await crowd.until_parked(TOTAL)
    leaving = [id for id in crowd.tasks if id.startswith(("noisy", "direct"))]
    for id in leaving:
        crowd.tasks.pop(id).cancel()
    await crowd.until_parked(3 * QUIET)

    server = servers.start()
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert await crowd.all_ended() == {200: 3 * QUIET}
    assert not set(server.received()) & set(leaving)
    assert len(await stage.events_of(f"{stage.name}-quiet-1", QUIET)) == QUIET
    assert await stage.operator.events(f"{stage.name}-noisy", stage.began) == []


async def test_five_replicas_come_and_go_under_parked_calls_and_every_call_has_its_documented_end(
    crowd: Crowd, servers: ModelServers
) -> None:
    """Some are delisted while they work, some are killed: only calls that a killed one had may fail, and with 502."""
    stage = crowd.stage
    operator = crowd.stage.operator
    crowd.arrive()
    await crowd.until_parked(TOTAL)
    killed: list[Any] = []
    coming = [servers.start(delay_s=0.2) for _ in range(5)]  # ahead: a start may outlast all the calls
    listed = [coming.pop()]

    async def put() -> None:
        urls = [server.url for server in listed]
        await operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": urls})

    async def some_reach(server: Any) -> None:
        await stage.until(lambda: _value(server.received()), "calls reach the new replica")

    await put()
    for step in range(4):
        await some_reach(listed[-1])
        listed.append(coming.pop())
        if step in (1, 3):
            killed.append(listed.pop(0))
            killed[-1].kill()
        elif step == 2:
            listed.pop(0)  # it finishes what it has
        await put()
    statuses = await crowd.all_ended()
    ran = servers.received()
    assert set(statuses) <= {200, 502}, statuses
    # What it had, and what its listener still took until the breaker opened: the kernel closes that one last.
    assert statuses[502] <= 2 * MAX_CONCURRENCY * len(killed), "only what a killed replica had may fail"
    assert set(ran.values()) == {1}, "no call was sent twice"
    assert set(ran) >= {id for id, status in crowd.answers.items() if status == 200}
    for group, count in GROUPS.items():
        events = await stage.events_of(f"{stage.name}-{group}", count)
        assert len({event["requestId"] for event in events}) == len(events) == count


async def _value(value: Any) -> Any:
    return value
