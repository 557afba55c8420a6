"""Stock SDKs learn of a failure in a translated stream: they raise, or get the dialect's last event of a failure."""

from typing import Any

import anthropic
import openai
import pytest

from policy.endpoints import CHAT_COMPLETIONS, MESSAGES
from tests.contracts.http.asking import replica
from tests.fakes.directory import KEY, SLUG
from tests.upstream.oddities.row import chat_text, chat_usage, frames, message_text, sends

BOTH_LOOPS = True
ASKED: dict[str, Any] = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}]}
ERROR = {"message": "overloaded", "type": "overloaded_error"}
CHAT_FAILS = {
    "an error": sends(frames(*chat_text("Hello", finish=None), {"error": ERROR}, "[DONE]")),
    "a word": sends(frames(*chat_text("Hello", finish="abort"), chat_usage(), "[DONE]")),
}
FORMS = pytest.mark.parametrize("answer_script", CHAT_FAILS.values(), ids=CHAT_FAILS)


@FORMS
async def test_messages_sdk_raises(answer_script: Any) -> None:
    async with replica(answer_script, (CHAT_COMPLETIONS,)) as wire:
        base_url = f"http://127.0.0.1:{wire.front.port}"
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError):
                async with client.messages.stream(**ASKED, max_tokens=100) as stream:
                    await stream.get_final_message()


@FORMS
async def test_responses_sdk_gets_a_failed_response_and_no_completed_one(answer_script: Any) -> None:
    async with replica(answer_script, (CHAT_COMPLETIONS,)) as wire:
        base_url = f"http://127.0.0.1:{wire.front.port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            stream = await client.responses.create(model=SLUG, input="hi", stream=True)
            kinds = [event.type async for event in stream]
    assert kinds[-2:] == ["error", "response.failed"]
    assert "response.completed" not in kinds


async def test_chat_sdk_raises() -> None:
    events = message_text("Hello")
    answer_script = sends(frames(*events[:3], {"type": "error", "error": ERROR}, *events[3:]))
    async with replica(answer_script, (MESSAGES,)) as wire:
        base_url = f"http://127.0.0.1:{wire.front.port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            stream = await client.chat.completions.create(**ASKED, stream=True)
            with pytest.raises(openai.APIError, match="overloaded"):
                async for _ in stream:
                    pass
