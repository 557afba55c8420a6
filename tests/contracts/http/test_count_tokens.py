"""The stock SDK counts tokens: at a target that has the path, and where the gateway estimates."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests import upstream as script
from tests.contracts.http.test_path import Wire, wired
from tests.fakes.directory import KEY, SLUG, platform
from tests.fakes.path import PathRig

BOTH_LOOPS = True
TOOL: Any = {"name": "weather", "description": "The weather of a city", "input_schema": {"type": "object"}}
ASKED: dict[str, Any] = {"model": SLUG, "messages": [{"role": "user", "content": "What is the weather in Paris?"}]}


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with wired(PathRig()) as wire:
        yield wire


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base_url = f"http://127.0.0.1:{wire.front.port}"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0, timeout=20) as client:
        yield client


async def test_sdk_gets_an_estimate_that_grows_with_the_request(wire: Wire, client: anthropic.AsyncAnthropic) -> None:
    small = await client.messages.count_tokens(**ASKED)
    large = await client.messages.count_tokens(**ASKED, tools=[TOOL], system="Answer in French. " * 20)
    assert 0 < small.input_tokens < 20
    assert large.input_tokens > small.input_tokens + 50
    assert not wire.upstream.received


async def test_sdk_gets_the_targets_count(wire: Wire, client: anthropic.AsyncAnthropic) -> None:
    wire.rig.directory.add_slug(SLUG, platform())
    wire.rig.directory.deploy("ACTIVE", wire.upstream.url)
    wire.upstream.plan(script.answer_json(200, {"input_tokens": 42}), script.answer_json(404, {"detail": "Not Found"}))
    assert (await client.messages.count_tokens(**ASKED)).input_tokens == 42
    assert wire.upstream.received[0].path == "/v1/messages/count_tokens"
    assert 0 < (await client.messages.count_tokens(**ASKED)).input_tokens < 20
