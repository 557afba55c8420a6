"""Asks one question in each of the three dialects, with the stock SDKs, whole or streamed."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

ASKED: Any = {"role": "user", "content": "How many hours has a day?"}


@dataclass
class Reply:
    """One answer, told in no dialect."""

    text: str
    thinking: str
    calls: list[tuple[str, Any]]
    input_tokens: int
    """All of them, cached ones too."""
    output_tokens: int
    turn: list[Any]
    """The answer as the caller's dialect returns it with the next turn."""


async def ask_chat(url: str, key: str, model: str, stream: bool, **more: Any) -> Reply:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30) as client:
        request: dict[str, Any] = {"model": model, "messages": [ASKED], "max_tokens": 400, "temperature": 0} | more
        if not stream:
            answer = await client.chat.completions.create(**request)
            message = answer.choices[0].message.model_dump()
            usage = answer.usage
        else:
            chunks = await client.chat.completions.create(
                **request, stream=True, stream_options={"include_usage": True}
            )
            message, usage = await _gathered(chunks)
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"] or ()
    ]
    thinking = message.get("reasoning_content") or ""
    names = ("reasoning_content", "reasoning_details", "tool_calls")
    turn = {"role": "assistant", "content": message["content"]} | {
        name: message[name] for name in names if message.get(name)
    }
    return Reply(message["content"] or "", thinking, calls, usage.prompt_tokens, usage.completion_tokens, [turn])


async def _gathered(chunks: Any) -> tuple[dict[str, Any], Any]:
    """The message of a stream, and its usage. The SDK's own helper refuses answers that reached their limit."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning_details": [], "tool_calls": []}
    usage = None
    async for chunk in chunks:
        usage = chunk.usage or usage
        for delta in [choice.delta.model_dump() for choice in chunk.choices]:
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            message["reasoning_details"] += delta.get("reasoning_details") or []
            for call in delta["tool_calls"] or ():
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call | {"function": call["function"] | {"arguments": ""}})
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"] or ""
    return message, usage


async def ask_messages(url: str, key: str, model: str, stream: bool, **more: Any) -> Reply:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=30) as client:
        request: dict[str, Any] = {"model": model, "messages": [ASKED], "max_tokens": 400, "temperature": 0} | more
        sampling = {"temperature": request.pop("temperature")}  # the SDK's method has no such argument
        if not stream:
            message = await client.messages.create(**request, extra_body=sampling)
        else:
            async with client.messages.stream(**request, extra_body=sampling) as events:
                message = await events.get_final_message()
    usage = message.usage
    input_tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Reply(
        "".join(block.text for block in message.content if block.type == "text"),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
        [(block.name, block.input) for block in message.content if block.type == "tool_use"],
        input_tokens,
        usage.output_tokens,
        [{"role": "assistant", "content": message.content}],
    )


async def ask_responses(url: str, key: str, model: str, stream: bool, **more: Any) -> Reply:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30) as client:
        request: dict[str, Any] = {"model": model, "input": [ASKED], "max_output_tokens": 400, "temperature": 0} | more
        response: Any = await client.responses.create(**request, stream=stream)
        if stream:
            response = [event async for event in response][-1].response
    turn = [item.model_dump(mode="json", exclude_none=True) for item in response.output]
    reply = Reply("", "", [], response.usage.input_tokens, response.usage.output_tokens, turn)
    for item in response.output:
        if item.type == "message":
            reply.text += "".join(part.text for part in item.content)
        elif item.type == "reasoning":
            reply.thinking += "".join(part.text for part in [*(item.content or ()), *item.summary])
        elif item.type == "function_call":
            reply.calls.append((item.name, json.loads(item.arguments)))
    return reply


WAYS: dict[str, Callable[..., Awaitable[Reply]]] = {
    "chat": ask_chat,
    "messages": ask_messages,
    "responses": ask_responses,
}
