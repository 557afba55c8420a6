"""The scripted vendor over a socket: the stock SDKs read it, and it speaks only the dialects that it was given."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.upstream import ScriptedUpstream
from tests.upstream.dialects.scenarios import PLAIN
from tests.upstream.dialects.vendor import CHAT, INPUT_TOKENS, MODEL, ScriptedVendor


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=ScriptedVendor()) as upstream:
        yield upstream


async def test_stock_sdks_read_whole_and_streamed_answers(upstream: ScriptedUpstream) -> None:
    async with openai.AsyncOpenAI(base_url=upstream.url + "/v1", api_key="k", max_retries=0) as client:
        chat = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
        assert chat.choices[0].message.content == PLAIN
        response = await client.responses.create(model=MODEL, input="Hi")
        assert response.output_text == PLAIN
        async with client.responses.stream(model=MODEL, input="Hi") as stream:
            assert (await stream.get_final_response()).output_text == PLAIN
        assert [model.id async for model in client.models.list()] == [MODEL]
    async with anthropic.AsyncAnthropic(base_url=upstream.url, api_key="k", max_retries=0) as client_a:
        ask: dict[str, Any] = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
        async with client_a.messages.stream(**ask) as messages:
            assert await messages.get_final_text() == PLAIN
        counted = await client_a.messages.count_tokens(model=MODEL, messages=ask["messages"])
        assert counted.input_tokens == INPUT_TOKENS


async def test_a_failure_once_is_a_failure_once(upstream: ScriptedUpstream) -> None:
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "[[scenario:rate-limited-once:a]]"}],
    }
    async with openai.AsyncOpenAI(base_url=upstream.url + "/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(**ask)
        assert await client.chat.completions.create(**ask)


async def test_refusal_is_told_in_the_dialects_error_shape(upstream: ScriptedUpstream) -> None:
    async with anthropic.AsyncAnthropic(base_url=upstream.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await client.messages.create(model=MODEL, max_tokens=-1, messages=[{"role": "user", "content": "Hi"}])


async def test_a_dialect_that_is_not_spoken_is_not_found() -> None:
    vendor = ScriptedVendor(speaks=(CHAT,))
    async with (
        ScriptedUpstream(default=vendor) as upstream,
        openai.AsyncOpenAI(base_url=upstream.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(openai.NotFoundError) as refusal:
            await client.responses.create(model=MODEL, input="Hi")
        assert "error" not in refusal.value.response.json()
        assert vendor.served == []


async def test_member_of_a_beta_needs_its_header(upstream: ScriptedUpstream) -> None:
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
    ask["extra_body"] = {"context_management": keeps}
    async with anthropic.AsyncAnthropic(base_url=upstream.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="context_management"):
            await client.messages.create(**ask)
        await client.messages.create(**ask, extra_headers={"anthropic-beta": "x,context-management-2025-06-27"})
