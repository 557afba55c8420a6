"""Delivered output is billed, even if the stream is cut off or its reported usage is invalid."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import kill, models
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.dictation import answer_as_dictated

LEAST = 0.6
MOST = 1.7
SENTENCE = "The quick brown fox jumps over the lazy dog. "
IN_SENTENCE = 10
"""Tokens that `o200k_base` counts in the sentence."""


@pytest.fixture
async def dictating_upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_as_dictated, port=own_port()) as upstream:
        upstream.gate.close()
        yield upstream


async def key_for(stage: Stage, upstream: ScriptedUpstream, *limits: tuple[str, str, int]) -> tuple[str, str]:
    """Create a group that may call the slug. Return its id and a key."""
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, upstream.url))
    group = await stage.operator.group(stage.name, models(stage.slug, *limits))
    return group, await stage.operator.key(group)


def post_call(stage: Stage, key: str, dictation: dict[str, Any], **more: Any) -> Any:
    body = {"model": stage.slug, "messages": [{"role": "user", "content": "Hi"}], "user": json.dumps(dictation), **more}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=30)
    url = stage.product.proxy + "/v1/chat/completions"
    return stage.session.post(url, data=json.dumps(body).encode(), headers=headers, timeout=timeout)


async def status_of(stage: Stage, key: str, dictation: dict[str, Any], **more: Any) -> int:
    async with post_call(stage, key, dictation, **more) as answer:
        await answer.read()
        return int(answer.status)


async def read_sentences(answer: aiohttp.ClientResponse, sentences: int) -> None:
    """Read until this many sentences have arrived."""
    count = 0
    while count < sentences:
        line = await answer.content.readline()
        assert line, "the stream ended"
        count += line.count(SENTENCE.encode())


async def disconnect_after(stage: Stage, key: str, sentences: int, **more: Any) -> None:
    """Read all of the answer's text, and disconnect before its usage arrives."""
    dictation = {
        "text": SENTENCE,
        "times": sentences,
        "stop": True,
        "usage": '{"prompt_tokens":1,"completion_tokens":1}',
    }
    async with post_call(stage, key, dictation, stream=True, **more) as answer:
        assert answer.status == 200
        await read_sentences(answer, sentences)
        answer.close()


async def test_disconnecting_before_usage_is_billed_by_delivered_text(
    stage: Stage, dictating_upstream: ScriptedUpstream
) -> None:
    """Answers with few tokens per byte must not lower the estimate: 5 000 tokens buy about 5 000 words, not 150 000."""
    group, key = await key_for(stage, dictating_upstream, ("TOKEN", "DAY", 5000))
    short_answer = {"text": "a", "times": 1, "usage": '{"prompt_tokens":1,"completion_tokens":1}'}
    for _ in range(40):  # probably more than 16 in each of the two workers
        assert await status_of(stage, key, short_answer) == 200
    sentences = 300
    await disconnect_after(stage, key, sentences)
    *_, billed = sorted(await stage.events_of(stage.name, 41), key=lambda event: event["tokens"]["outputTokens"])
    assert LEAST <= billed["tokens"]["outputTokens"] / (sentences * IN_SENTENCE) <= MOST
    disconnects = 0
    while True:
        async with post_call(stage, key, {"text": SENTENCE, "times": sentences, "stop": True}, stream=True) as answer:
            if answer.status == 429:
                break
            await read_sentences(answer, sentences)
            answer.close()
        disconnects += 1
        events = await stage.events_of(stage.name, 41 + disconnects)
        assert disconnects < 4, "the day's limit was never reached"
        spent = sum(event["tokens"]["inputTokens"] + event["tokens"]["outputTokens"] for event in events)

        async def usage_is_settled(due: int = spent) -> bool:
            (item,) = (await stage.operator.call("GET", f"/v1/gateway/groups/{group}/usage"))["items"]
            return bool(item["current_usage"] == due)

        await stage.until(usage_is_settled, f"{spent} tokens are used")
    assert disconnects >= 1


async def test_first_stream_of_a_group_is_billed_by_delivered_text(
    stage: Stage, dictating_upstream: ScriptedUpstream
) -> None:
    _, key = await key_for(stage, dictating_upstream, ("TOKEN", "DAY", 100_000))
    await disconnect_after(stage, key, 2, max_tokens=32_000)
    (event,) = await stage.events_of(stage.name, 1)
    assert LEAST <= event["tokens"]["outputTokens"] / (2 * IN_SENTENCE) <= MOST
    assert event["tokens"]["inputTokens"] == 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
async def test_invalid_usage_figure_is_replaced_by_the_estimate(
    stage: Stage, dictating_upstream: ScriptedUpstream, stream: bool
) -> None:
    _, key = await key_for(stage, dictating_upstream)
    invalid_figures = ["28000000000000", "9007199254740992", "1e3", "-100", '"12"', "true"]
    for figure in invalid_figures:
        usage = f'{{"prompt_tokens": 3, "completion_tokens": {figure}}}'
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        assert await status_of(stage, key, {"text": SENTENCE, "times": 5, "usage": usage}, **more) == 200
    assert await status_of(stage, key, {"text": SENTENCE, "times": 5}) == 200
    events = await stage.events_of(stage.name, len(invalid_figures) + 1)
    assert len(events) == len(invalid_figures) + 1
    for event in events:
        assert LEAST <= event["tokens"]["outputTokens"] / (5 * IN_SENTENCE) <= MOST
        assert event["tokens"]["inputTokens"] == 1

    async def counted() -> bool:
        async with stage.session.get(f"{stage.product.admin}/metrics") as answer:
            return 'tollgate_usage_not_reported_total{reason="rejected"}' in await answer.text()

    await stage.until(counted, "the rejected reports in the metrics")


async def test_stream_of_a_killed_worker_is_billed_by_its_last_progress(
    killable_stage: Stage, dictating_upstream: ScriptedUpstream
) -> None:
    stage = killable_stage
    sentences = 200
    _, key = await key_for(stage, dictating_upstream)
    dictation = {"text": SENTENCE, "times": sentences, "stop": True}
    async with post_call(stage, key, dictation, stream=True) as answer:
        await read_sentences(answer, sentences)
        await asyncio.sleep(2.5)  # progress is journaled every second
        for worker in stage.product.processes("proxy.worker"):
            kill(worker)
    (event,) = await stage.events_of(stage.name, 1)
    assert LEAST <= event["tokens"]["outputTokens"] / (sentences * IN_SENTENCE) <= MOST
    assert event["tokens"]["inputTokens"] == 1
