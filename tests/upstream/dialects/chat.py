"""The Chat Completions dialect of the scripted vendors: reads requests, writes whole and streamed answers.

Reasoning is told as `reasoning_content`, as servers compatible with the dialect do; the SDK's types lack it.
"""

import json
from collections.abc import Iterator
from typing import Any

from tests.upstream.dialects.refusing import decoded_data_url, json_object
from tests.upstream.dialects.scenarios import (
    Answer,
    Document,
    Failure,
    Image,
    Json,
    Part,
    Prompt,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    digest,
    json_pieces,
    pieces,
)

CREATED = 1_700_000_000
FINISH_REASONS = {"end": "stop", "tools": "tool_calls", "length": "length", "stop": "stop", "refusal": "stop"}


# --- requests -------------------------------------------------------------------------------------------------------


def read(body: Json) -> Prompt:
    """The prompt of a request that `chat_checks` passed."""
    format = body.get("response_format") or {}
    stop = body.get("stop")
    limits = {
        "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens"),
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "stop": [stop] if isinstance(stop, str) else stop,
    }
    return Prompt(
        model=body["model"],
        stream=bool(body.get("stream")),
        parts=tuple(part for message in body["messages"] for part in _parts(message)),
        tools=tuple(_tool(tool) for tool in body.get("tools") or ()),
        tool_choice=_tool_choice(body.get("tool_choice")),
        parallel=body.get("parallel_tool_calls") is not False,
        schema=format["json_schema"].get("schema") if format.get("type") == "json_schema" else None,
        thinks=(body.get("reasoning_effort") or "none") != "none",
        limits={name: value for name, value in limits.items() if value is not None},
    )


def _parts(message: Json) -> Iterator[tuple[str, Part]]:
    role = "system" if message["role"] == "developer" else message["role"]
    content = list(_content(message.get("content")))
    if role == "tool":
        yield role, ToolResult(message["tool_call_id"], tuple(_as_result(content)))
        return
    if message.get("reasoning_content"):
        yield role, Thinking(message["reasoning_content"])
    yield from ((role, part) for part in content)
    if message.get("refusal"):
        yield role, Refusal(message["refusal"])
    for call in message.get("tool_calls") or ():
        if call["type"] == "custom":
            yield role, ToolCall(call["id"], call["custom"]["name"], {"input": call["custom"]["input"]}, custom=True)
            continue
        function = call["function"]
        yield role, ToolCall(call["id"], function["name"], json_object(function["arguments"], "arguments"))


def _as_result(content: list[Part]) -> Iterator[Text | Image | Document]:
    yield from (part for part in content if isinstance(part, Text | Image | Document))


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for part in content or ():
        match part["type"]:
            case "text" if part["text"]:
                yield Text(part["text"])
            case "refusal":
                yield Refusal(part["refusal"])
            case "image_url":
                yield Image(_named(part["image_url"]["url"]))
            case "file":
                yield Document(_named(part["file"].get("file_data") or part["file"].get("file_id")))


def _named(url: str) -> str:
    return digest(*decoded_data_url(url, "url")) if url.startswith("data:") else url


def _tool(tool: Json) -> Tool:
    if tool["type"] == "custom":
        return Tool(tool["custom"]["name"], tool["custom"].get("description"), {}, strict=False, custom=True)
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(function["name"], function.get("description"), schema, bool(function.get("strict")))


def _tool_choice(choice: Any) -> str:
    if isinstance(choice, dict):
        return str(choice[choice["type"]]["name"])
    return choice or "auto"


# --- answers --------------------------------------------------------------------------------------------------------


def whole(_: Json, prompt: Prompt, answer: Answer) -> Json:
    return {
        "id": f"chatcmpl-{prompt.answer_id}",
        "object": "chat.completion",
        "created": CREATED,
        "model": prompt.model,
        "choices": [
            {
                "index": 0,
                "message": _message(answer),
                "logprobs": None,
                "finish_reason": FINISH_REASONS[answer.stop],
            }
        ],
        "usage": usage(answer),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def usage(answer: Answer) -> Json:
    tokens = answer.tokens
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached_input, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": answer.thinking_tokens, "audio_tokens": 0},
    }


def _message(answer: Answer) -> Json:
    text = "".join(part.text for part in answer.parts if isinstance(part, Text))
    thoughts = "".join(part.text for part in answer.parts if isinstance(part, Thinking))
    refusal = next((part.text for part in answer.parts if isinstance(part, Refusal)), None)
    calls = [_call(part, _given(part)) for part in answer.parts if isinstance(part, ToolCall)]
    message: Json = {"role": "assistant", "content": text or (None if calls or refusal else "")}
    message |= {"refusal": refusal, "annotations": []}
    return message | ({"reasoning_content": thoughts} if thoughts else {}) | ({"tool_calls": calls} if calls else {})


def _given(call: ToolCall) -> str:
    return call.arguments["input"] if call.custom else json.dumps(call.arguments)


def _call(call: ToolCall, arguments: str) -> Json:
    if call.custom:
        return {"id": f"call_{call.id}", "type": "custom", "custom": {"name": call.name, "input": arguments}}
    return {"id": f"call_{call.id}", "type": "function", "function": {"name": call.name, "arguments": arguments}}


def frames(body: Json, prompt: Prompt, answer: Answer) -> Iterator[bytes]:
    """The SSE frames of a streamed answer."""
    for chunk in chunks(body, prompt, answer):
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    if not answer.cut_by:
        yield b"data: [DONE]\n\n"


def chunks(body: Json, prompt: Prompt, answer: Answer) -> Iterator[Json]:
    asks_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    common: Json = {
        "id": f"chatcmpl-{prompt.answer_id}",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": prompt.model,
    }
    common |= {"service_tier": "default", "system_fingerprint": None} | ({"usage": None} if asks_usage else {})
    for delta in deltas(answer):
        yield common | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
    if answer.cut_by:
        yield {"error": {"message": "Overloaded.", "type": "server_error", "param": None, "code": None}}
        return
    ending = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": FINISH_REASONS[answer.stop]}
    yield common | {"choices": [ending]}
    if asks_usage:
        yield common | {"choices": [], "usage": usage(answer)}


def deltas(answer: Answer) -> Iterator[Json]:
    yield {"role": "assistant", "content": "", "refusal": None}
    number = 0
    for part in answer.parts:
        match part:
            case Text(text):
                yield from ({"content": piece} for piece in pieces(text))
            case Refusal(text):
                yield from ({"refusal": piece} for piece in pieces(text))
            case Thinking(text):
                yield from ({"reasoning_content": piece} for piece in pieces(text))
            case ToolCall():
                yield {"tool_calls": [{"index": number} | _call(part, "")]}
                for piece in pieces(_given(part)) if part.custom else json_pieces(part.arguments):
                    input_delta = {"custom": {"input": piece}} if part.custom else {"function": {"arguments": piece}}
                    yield {"tool_calls": [{"index": number} | input_delta]}
                number += 1


def failed(failure: Failure) -> tuple[int, Json]:
    return failure.openai_status, error(failure.message, failure.openai_type, failure.openai_code)


def error(message: str, type: str = "invalid_request_error", code: str | None = None, param: str | None = None) -> Json:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
