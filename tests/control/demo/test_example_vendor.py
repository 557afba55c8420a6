"""The example vendor: what it says, and its answers as the Messages dialect's stock SDK reads them."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import pytest
from aiohttp.test_utils import TestServer

from control.demo.example_vendor.__main__ import application
from control.demo.example_vendor.answer import answer_to
from control.operator.example_part import SETTINGS, example_settings
from control.operator.stack_parts import StackError


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with TestServer(application()) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Hello"},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image_url"}]}]},
    ],
)
def test_answer_repeats_what_was_said_last(body: dict[str, Any]) -> None:
    answer = answer_to({"model": "m", **body})
    assert answer.text.endswith("You said: Hello")
    assert not answer.is_cut


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_cap_of_output_tokens_cuts_the_answer(name: str) -> None:
    answer = answer_to({"model": "m", "input": "Hello", name: 2})
    assert (answer.output_tokens, answer.is_cut) == (2, True)


@pytest.mark.parametrize("body", [{}, {"model": "m"}, {"model": 1, "input": "x"}, {"model": "m", "messages": []}])
async def test_what_asks_nothing_is_refused(body: dict[str, Any], url: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/messages", json=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"].partition(":")[0] in ("model", "messages (or input)")


async def test_rubbish_is_refused(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/responses", data=b"[") as answer:
        assert answer.status == 400


async def test_messages_are_what_the_stock_sdk_reads(url: str) -> None:
    body: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hello"}]}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
        whole = await client.messages.create(**body)
        async with client.messages.stream(**body) as stream:
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="m", messages=body["messages"])
    assert whole.content[0].model_dump()["text"] == streamed.content[0].model_dump()["text"]
    assert whole.usage.output_tokens == streamed.usage.output_tokens
    assert counted.input_tokens > 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_vendor_that_is_elsewhere_already_is_left_there(setting: str) -> None:
    with pytest.raises(StackError, match=f"unset {setting}"):
        example_settings(1, {setting: "http://127.0.0.1:9"})
    assert example_settings(1, {}) == dict.fromkeys(SETTINGS, "http://127.0.0.1:1")
