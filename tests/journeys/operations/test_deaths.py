"""A killed process is restarted or leaves nothing behind, and no call is lost or billed twice."""

import asyncio
import os
import signal

import httpx2
import openai
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import kill
from tests.waiting import eventually


async def test_killed_worker_is_replaced_and_no_event_is_lost_or_duplicated(killable_stage: Stage) -> None:
    stage = killable_stage
    key = await stage.key_without_limits()
    await stage.ask(key)
    answered = 1
    workers = stage.product.processes("proxy.worker")
    assert len(workers) == 2
    kill(workers[0])
    while stage.product.processes("proxy.worker") == [workers[1]] or answered < 10:
        try:
            await stage.ask(key)
            answered += 1
        except openai.APIConnectionError:
            continue  # the killed worker was serving the call or had it queued
    events = await stage.events_of(stage.name, answered)
    assert len({event["idempotencyKey"] for event in events}) == len(events)
    assert answered <= len(events) <= len(stage.upstream.received)
    now = await eventually(lambda: stage.product.processes("proxy.worker"), "two workers again")
    assert workers[0] not in now
    assert workers[1] in now


async def test_open_call_of_a_killed_worker_is_billed_once(killable_stage: Stage) -> None:
    """The caller received part of the answer, which is billed once, by the last journaled progress."""
    stage = killable_stage
    key = await stage.key_without_limits()
    stage.upstream.gate.close()
    async with stage.client(key) as client:
        stream = await client.chat.completions.create(
            model=stage.slug, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        chunks = aiter(stream)
        await anext(chunks)
        for worker in stage.product.processes("proxy.worker"):
            kill(worker)
        with pytest.raises((openai.APIError, httpx2.HTTPError)):
            [chunk async for chunk in chunks]
    stage.upstream.gate.open()
    (event,) = await stage.events_of(stage.name, 1)
    assert event["tokens"]["outputTokens"] > 0
    await asyncio.sleep(1.5)  # longer than the holdback: a duplicate event would be listed by now
    assert await stage.events_of(stage.name, 1) == [event]


async def test_calls_are_served_without_control_and_billed_later(killable_stage: Stage) -> None:
    stage = killable_stage
    key = await stage.key_without_limits()
    await stage.ask(key)
    (control,) = stage.product.processes("-m control")
    kill(control)
    for _ in range(5):
        await stage.ask(key)
    await stage.control_is_back()
    events = await stage.events_of(stage.name, 6)
    assert len(events) == 6


async def test_calls_get_503_until_a_killed_redis_is_back_with_its_counts(killable_stage: Stage) -> None:
    stage = killable_stage
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    limit = {"type": "REQUEST", "unit": "MINUTE", "threshold": 3}
    entry = {"slug": stage.slug, "rate_limits": [limit], "usage_limits": []}
    key = await stage.operator.key(await stage.operator.group(stage.name, [entry]))
    await stage.ask(key)
    await stage.ask(key)
    await asyncio.sleep(1.1)  # appendfsync everysec
    (redis,) = stage.product.processes("redis-server")
    kill(redis)
    statuses = []

    async def used_up() -> bool:
        try:
            await stage.ask(key)
        except openai.APIStatusError as error:
            statuses.append(error.status_code)
        else:
            statuses.append(200)
        return statuses[-1] == 429

    await stage.until(used_up, "the limit's third call and no more")  # one worker may reconnect before the other
    assert set(statuses) <= {200, 429, 503}
    assert statuses.count(200) == 1


async def test_keys_and_events_survive_a_restart(killable_stage: Stage) -> None:
    stage = killable_stage
    key = await stage.key_without_limits()
    await stage.ask(key)
    assert stage.product.stop() == 0
    stage.product.start()
    await stage.ask(key)
    events = await stage.events_of(stage.name, 2)
    assert len({event["idempotencyKey"] for event in events}) == 2


async def test_sigterm_waits_for_an_open_stream(killable_stage: Stage) -> None:
    stage = killable_stage
    key = await stage.key_without_limits()
    stage.upstream.gate.close()
    pieces = []
    async with stage.client(key) as client:
        stream = await client.chat.completions.create(
            model=stage.slug, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        async for chunk in stream:
            pieces.append(chunk.choices[0].delta.content or "")
            if not stage.upstream.gate.is_open:
                stage.product.up.send_signal(signal.SIGTERM)
                await stage.until(stage.refuses_connections, "new connections refused")
                stage.upstream.gate.open()
    assert "".join(pieces) == "This is upstream."
    assert await asyncio.to_thread(stage.product.ended, 30) == 0
    stage.product.start()
    (event,) = await stage.events_of(stage.name, 1)
    assert event["tokens"]["outputTokens"] == 10


@pytest.mark.soak
async def test_drain_is_cut_off_at_its_timeout(killable_stage: Stage) -> None:
    stage = killable_stage
    stage.product.stop()
    stage.product.environment["TOLLGATE_DRAIN_TIMEOUT_S"] = "1"
    stage.product.start()
    key = await stage.key_without_limits()
    stage.upstream.gate.close()
    async with stage.client(key) as client:
        stream = await client.chat.completions.create(
            model=stage.slug, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        await anext(aiter(stream))
        stage.product.up.terminate()
        assert await asyncio.to_thread(stage.product.ended, 15) == 0


@pytest.mark.soak
async def test_sigint_to_the_process_group_stops_in_order(killable_stage: Stage) -> None:
    """A terminal sends SIGINT to the whole group: Redis and control must not stop before the proxy has drained."""
    stage = killable_stage
    key = await stage.key_without_limits()
    stage.upstream.gate.close()
    logged = len(stage.product.log.read_text())
    async with stage.client(key) as client:
        stream = await client.chat.completions.create(
            model=stage.slug, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        chunks = aiter(stream)
        await anext(chunks)
        for pid in stage.product.processes():
            os.kill(pid, signal.SIGINT)
        await stage.until(stage.refuses_connections, "new connections refused")
        stage.upstream.gate.open()
        assert [chunk async for chunk in chunks]
    assert await asyncio.to_thread(stage.product.ended, 30) == 0
    lines = [line for line in stage.product.log.read_text()[logged:].splitlines() if "stopping " in line]
    assert [line.split()[-1] for line in lines] == ["proxy", "control", "redis"]


async def test_sigterm_to_the_process_group_loses_no_event(killable_stage: Stage) -> None:
    """A service manager stops a group of processes: Redis and control may stop while the proxy still drains."""
    stage = killable_stage
    key = await stage.key_without_limits()
    stage.upstream.gate.close()
    async with stage.client(key) as client:
        for _ in range(5):
            await stage.ask(key)
        stream = await client.chat.completions.create(
            model=stage.slug, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        chunks = aiter(stream)
        await anext(chunks)
        for pid in stage.product.processes():
            os.kill(pid, signal.SIGTERM)
        await stage.until(stage.refuses_connections, "new connections refused")
        stage.upstream.gate.open()
        assert [chunk async for chunk in chunks], "the stream did not end well"
    assert await asyncio.to_thread(stage.product.ended, 40) == 0
    assert stage.product.processes() == []
    stage.product.start()
    events = await stage.events_of(stage.name, 6)
    await asyncio.sleep(1.5)  # longer than the holdback: a duplicate event would be listed by now
    assert await stage.events_of(stage.name, 6) == events
    assert len({event["requestId"] for event in events}) == len(events) == 6
    assert all(event["tokens"]["outputTokens"] == 10 for event in events)
