"""The Messages dialect of the scripted vendors: reads requests, writes whole and streamed answers."""

import json
from collections.abc import Iterator
from typing import Any

from tests.upstream.dialects.refusing import decoded
from tests.upstream.dialects.scenarios import (
    FAILURES,
    STOP_SEQUENCE,
    Answer,
    Document,
    Failure,
    Image,
    Json,
    Part,
    Prompt,
    RedactedThinking,
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

STOP_REASONS = {
    "end": "end_turn",
    "tools": "tool_use",
    "length": "max_tokens",
    "stop": "stop_sequence",
    "refusal": "refusal",
}
TOOL_CHOICES = {"any": "required", "auto": "auto", "none": "none"}


# --- requests -------------------------------------------------------------------------------------------------------


def read(body: Json) -> Prompt:
    """The prompt of a request that `messages_checks` passed."""
    choice = body.get("tool_choice") or {"type": "auto"}
    format = (body.get("output_config") or {}).get("format") or {}
    limits = {name: body.get(name) for name in ("max_tokens", "temperature", "top_p")}
    limits["stop"] = body.get("stop_sequences")
    system = [("system", part) for part in _content(body.get("system"))]
    return Prompt(
        model=body["model"],
        stream=bool(body.get("stream")),
        parts=(*system, *(part for message in body["messages"] for part in _parts(message))),
        tools=tuple(_tool(tool) for tool in body.get("tools") or ()),
        tool_choice=choice["name"] if choice["type"] == "tool" else TOOL_CHOICES[choice["type"]],
        parallel=not choice.get("disable_parallel_tool_use"),
        schema=format.get("schema"),
        thinks=(body.get("thinking") or {}).get("type") in ("enabled", "adaptive"),
        limits={name: value for name, value in limits.items() if value is not None},
    )


def _parts(message: Json) -> Iterator[tuple[str, Part]]:
    for part in _content(message["content"]):
        yield "tool" if isinstance(part, ToolResult) else message["role"], part


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in content or ():
        match block["type"]:
            case "text":
                yield Text(block["text"])
            case "image":
                yield Image(_named(block["source"]))
            case "document":
                yield Document(_named(block["source"]))
            case "thinking":
                yield Thinking(block["thinking"])
            case "redacted_thinking":
                yield RedactedThinking(block["data"])
            case "tool_use":
                yield ToolCall(block["id"], block["name"], block["input"])
            case "tool_result":
                results = (part for part in _content(block.get("content")) if isinstance(part, Text | Image | Document))
                yield ToolResult(block["tool_use_id"], tuple(results), bool(block.get("is_error")))


def _named(source: Json) -> str:
    match source["type"]:
        case "base64":
            return digest(source["media_type"], decoded(source["data"], "source.data"))
        case "text":
            return digest("text/plain", source["data"].encode())
        case "url":
            return str(source["url"])
    return json.dumps(source)


def _tool(tool: Json) -> Tool:
    return Tool(tool["name"], tool.get("description"), tool.get("input_schema") or {}, bool(tool.get("strict")))


# --- answers --------------------------------------------------------------------------------------------------------


def whole(_: Json, prompt: Prompt, answer: Answer) -> Json:
    return _message(prompt) | {"content": list(_blocks(answer)), "usage": usage(answer)} | ending(answer)


def usage(answer: Answer) -> Json:
    tokens = answer.tokens
    return {
        "input_tokens": tokens.input - tokens.cached_input,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached_input,
        "output_tokens": tokens.output,
        "output_tokens_details": {"thinking_tokens": answer.thinking_tokens} if answer.thinking_tokens else None,
        "service_tier": "standard",
    }


def ending(answer: Answer) -> Json:
    refusal = next((part.text for part in answer.parts if isinstance(part, Refusal)), None)
    details = {"type": "refusal", "category": None, "explanation": refusal} if refusal else None
    sequence = STOP_SEQUENCE if answer.stop == "stop" else None
    return {"stop_reason": STOP_REASONS[answer.stop], "stop_sequence": sequence, "stop_details": details}


def _message(prompt: Prompt) -> Json:
    return {"id": f"msg_{prompt.answer_id}", "type": "message", "role": "assistant", "model": prompt.model}


def _blocks(answer: Answer) -> Iterator[Json]:
    for part in answer.parts:
        match part:
            case Text(text):
                yield {"type": "text", "text": text, "citations": None}
            case Thinking(text):
                yield {"type": "thinking", "thinking": text, "signature": part.signature}
            case RedactedThinking(data):
                yield {"type": "redacted_thinking", "data": data}
            case ToolCall(id, name, arguments):
                yield {"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": arguments}


def frames(body: Json, prompt: Prompt, answer: Answer) -> Iterator[bytes]:
    """The SSE frames of a streamed answer."""
    for event in events(body, prompt, answer):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def events(_: Json, prompt: Prompt, answer: Answer) -> Iterator[Json]:
    usage_so_far = usage(answer) | {"output_tokens": 1}
    unended: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
    yield {"type": "message_start", "message": _message(prompt) | unended | {"usage": usage_so_far}}
    yield {"type": "ping"}
    for index, block in enumerate(_blocks(answer)):
        yield from _block_events(index, block)
    if answer.cut_by:
        yield failed(FAILURES[answer.cut_by])[1]
        return
    ended = {name: value for name, value in usage(answer).items() if name != "service_tier"}
    yield {"type": "message_delta", "delta": ending(answer), "usage": ended}
    yield {"type": "message_stop"}


def _block_events(index: int, block: Json) -> Iterator[Json]:
    start, deltas = _begun(block)
    yield {"type": "content_block_start", "index": index, "content_block": start}
    yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
    yield {"type": "content_block_stop", "index": index}


def _begun(block: Json) -> tuple[Json, list[Json]]:
    """A block as it starts, and its deltas."""
    match block["type"]:
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*thoughts, signature]
        case "tool_use":
            arguments = ["", *json_pieces(block["input"])]
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]
    return block, []


def failed(failure: Failure) -> tuple[int, Json]:
    return failure.messages_status, error(failure.message, failure.messages_type)


def error(message: str, type: str = "invalid_request_error", code: str | None = None, param: str | None = None) -> Json:
    """The dialect has neither codes nor names of members."""
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_Ab9"}
