"""Delivered output is billed, whoever cuts the stream and whatever usage is reported."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import kill, models
from tests.upstream import ScriptedUpstream
from tests.upstream.dictation import answer_as_dictated

LEAST, MOST = 0.6, 1.7
SENTENCE, IN_SENTENCE = "The quick brown fox jumps over the lazy dog. ", 10
"""A sentence, and how many tokens `o200k_base` counts in it."""


@pytest.fixture
async def dictated() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_as_dictated) as upstream:
        upstream.gate.close()
        yield upstream


async def key_for(stage: Stage, upstream: ScriptedUpstream, *limits: tuple[str, str, int]) -> tuple[str, str]:
    """Create a group that may call the slug. Its id and a key."""
    await stage.desk.endpoint(stage.slug, await stage.desk.model(stage.name, upstream.url))
    group = await stage.desk.group(stage.name, models(stage.slug, *limits))
    return group, await stage.desk.key(group)


def ask(stage: Stage, key: str, told: dict[str, Any], **more: Any) -> Any:
    body = {"model": stage.slug, "messages": [{"role": "user", "content": "Hi"}], "user": json.dumps(told), **more}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=30)
    url = stage.product.proxy + "/v1/chat/completions"
    return stage.session.post(url, data=json.dumps(body).encode(), headers=headers, timeout=timeout)


async def whole(stage: Stage, key: str, told: dict[str, Any], **more: Any) -> int:
    async with ask(stage, key, told, **more) as answer:
        await answer.read()
        return int(answer.status)


async def heard(answer: aiohttp.ClientResponse, sentences: int) -> None:
    """Read until so many sentences have come."""
    got = 0
    while got < sentences:
        line = await answer.content.readline()
        assert line, "the stream ended"
        got += line.count(SENTENCE.encode())


async def leave_after(stage: Stage, key: str, sentences: int, **more: Any) -> None:
    """Read all of the answer's text, and leave before its usage comes."""
    told = {"text": SENTENCE, "times": sentences, "stop": True, "usage": '{"prompt_tokens":1,"completion_tokens":1}'}
    async with ask(stage, key, told, stream=True, **more) as answer:
        assert answer.status == 200
        await heard(answer, sentences)
        answer.close()


async def test_disconnecting_before_usage_is_billed_by_delivered_text(stage: Stage, dictated: ScriptedUpstream) -> None:
    """A day's 5 000 tokens buy about 5 000, not 150 000 words."""
    group, key = await key_for(stage, dictated, ("TOKEN", "DAY", 5000))
    cheap = {"text": "a", "times": 1, "usage": '{"prompt_tokens":1,"completion_tokens":1}'}
    for _ in range(40):  # more than 16 in each of the two workers, as likely as not
        assert await whole(stage, key, cheap) == 200
    sentences = 300
    await leave_after(stage, key, sentences)
    *_, billed = sorted(await stage.events_of(stage.name, 41), key=lambda event: event["tokens"]["outputTokens"])
    assert LEAST <= billed["tokens"]["outputTokens"] / (sentences * IN_SENTENCE) <= MOST
    left = 0
    while True:
        async with ask(stage, key, {"text": SENTENCE, "times": sentences, "stop": True}, stream=True) as answer:
            if answer.status == 429:
                break
            await heard(answer, sentences)
            answer.close()
        left += 1
        events = await stage.events_of(stage.name, 41 + left)
        assert left < 4, "the day's limit never came"
        spent = sum(event["tokens"]["inputTokens"] + event["tokens"]["outputTokens"] for event in events)

        async def told(due: int = spent) -> bool:
            (item,) = (await stage.desk.call("GET", f"/v1/gateway/groups/{group}/usage"))["items"]
            return bool(item["current_usage"] == due)

        await stage.until(told, f"{spent} tokens are used")
    assert left >= 1


async def test_first_stream_of_a_group_is_billed_by_delivered_text(stage: Stage, dictated: ScriptedUpstream) -> None:
    _, key = await key_for(stage, dictated, ("TOKEN", "DAY", 100_000))
    await leave_after(stage, key, 2, max_tokens=32_000)
    (event,) = await stage.events_of(stage.name, 1)
    assert LEAST <= event["tokens"]["outputTokens"] / (2 * IN_SENTENCE) <= MOST
    assert event["tokens"]["inputTokens"] == 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
async def test_invalid_usage_figure_is_replaced_by_the_estimate(
    stage: Stage, dictated: ScriptedUpstream, stream: bool
) -> None:
    _, key = await key_for(stage, dictated)
    absurd = ["28000000000000", "9007199254740992", "1e3", "-100", '"12"', "true"]
    for figure in absurd:
        usage = f'{{"prompt_tokens": 3, "completion_tokens": {figure}}}'
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        assert await whole(stage, key, {"text": SENTENCE, "times": 5, "usage": usage}, **more) == 200
    assert await whole(stage, key, {"text": SENTENCE, "times": 5}) == 200
    events = await stage.events_of(stage.name, len(absurd) + 1)
    assert len(events) == len(absurd) + 1
    for event in events:
        assert LEAST <= event["tokens"]["outputTokens"] / (5 * IN_SENTENCE) <= MOST
        assert event["tokens"]["inputTokens"] == 1
    async with stage.session.get(f"{stage.product.admin}/metrics") as answer:
        told = await answer.text()
    assert 'tollgate_usage_not_reported_total{reason="rejected"}' in told


async def test_stream_of_a_killed_worker_is_billed_by_its_last_progress(
    killable_stage: Stage, dictated: ScriptedUpstream
) -> None:
    stage, sentences = killable_stage, 200
    _, key = await key_for(stage, dictated)
    told = {"text": SENTENCE, "times": sentences, "stop": True}
    async with ask(stage, key, told, stream=True) as answer:
        await heard(answer, sentences)
        await asyncio.sleep(2.5)  # more than the second after which all of it has been noted
        for worker in stage.product.processes("proxy.worker"):
            kill(worker)
    (event,) = await stage.events_of(stage.name, 1)
    assert LEAST <= event["tokens"]["outputTokens"] / (sentences * IN_SENTENCE) <= MOST
    assert event["tokens"]["inputTokens"] == 1
