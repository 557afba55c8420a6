"""The Responses dialect of the scripted vendors: reads requests, writes whole and streamed answers. Stores nothing."""

import base64
import json
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any

from tests.upstream.dialects.chat import error, failed
from tests.upstream.dialects.refusing import RefusedError, decoded, decoded_data_url, json_object
from tests.upstream.dialects.scenarios import (
    FAILURES,
    Answer,
    Document,
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
    signed,
)

__all__ = ["error", "events", "failed", "frames", "read", "whole"]
CREATED = 1_700_000_000
ENCRYPTED = "reasoning.encrypted_content"
ECHOED: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""The members of a request that its answer repeats, with their values for a request that lacks them."""


# --- requests -------------------------------------------------------------------------------------------------------


def read(body: Json) -> Prompt:
    """The prompt of a request that `responses_checks` passed."""
    format = (body.get("text") or {}).get("format") or {}
    limits = {name: body.get(member) for name, member in _LIMITS.items()}
    items = body["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    system = [("system", Text(body["instructions"]))] if body.get("instructions") else []
    return Prompt(
        model=body["model"],
        stream=bool(body.get("stream")),
        parts=(*system, *(part for item in items for part in _parts(item))),
        tools=tuple(_tool(tool) for tool, _ in _functions(body)),
        tool_choice=_tool_choice(body.get("tool_choice")),
        parallel=body.get("parallel_tool_calls") is not False,
        schema=format.get("schema") if format.get("type") == "json_schema" else None,
        thinks=bool(body.get("reasoning")) and (body["reasoning"].get("effort") or "medium") != "none",
        limits={name: value for name, value in limits.items() if value is not None},
    )


_LIMITS = {"max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}


def _parts(item: Json) -> Iterator[tuple[str, Part]]:
    match item.get("type", "message"):
        case "message":
            role = "system" if item["role"] == "developer" else item["role"]
            yield from ((role, part) for part in _content(item["content"]))
        case "function_call":
            yield "assistant", ToolCall(item["call_id"], item["name"], json_object(item["arguments"], "arguments"))
        case "custom_tool_call":
            yield "assistant", ToolCall(item["call_id"], item["name"], {"input": item["input"]}, custom=True)
        case "function_call_output" | "custom_tool_call_output":
            outputs = (part for part in _content(item["output"]) if isinstance(part, Text | Image | Document))
            yield "tool", ToolResult(item["call_id"], tuple(outputs))
        case "reasoning" if item.get("encrypted_content"):
            yield "assistant", decrypted(item["encrypted_content"])


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    for part in content:
        match part["type"]:
            case "input_text" | "output_text" if part["text"]:
                yield Text(part["text"])
            case "refusal":
                yield Refusal(part["refusal"])
            case "input_image":
                yield Image(_named(part.get("image_url") or part.get("file_id")))
            case "input_file":
                yield Document(_named(part.get("file_data") or part.get("file_url") or part.get("file_id")))


def _named(url: str) -> str:
    return digest(*decoded_data_url(url, "url")) if url.startswith("data:") else url


def _functions(body: Json) -> Iterator[tuple[Json, str]]:
    """The functions that are offered, each with its namespace."""
    items = body.get("input")
    added = (
        [item["tools"] for item in items if item.get("type") == "additional_tools"] if isinstance(items, list) else []
    )
    for tool in [*(body.get("tools") or ()), *chain.from_iterable(added)]:
        for function in tool["tools"] if tool["type"] == "namespace" else [tool]:
            if function["type"] in ("function", "custom"):
                yield function, tool["name"] if tool["type"] == "namespace" else ""


def _tool(tool: Json) -> Tool:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return Tool(tool["name"], tool.get("description"), schema, bool(tool.get("strict")), tool["type"] == "custom")


def _tool_choice(choice: Any) -> str:
    return str(choice["name"]) if isinstance(choice, dict) else choice or "auto"


def encrypted(part: Thinking | RedactedThinking) -> str:
    """Encode the thought and its signature in a form that only the vendor reads."""
    if isinstance(part, RedactedThinking):
        return part.data
    return base64.b64encode(json.dumps([part.text, part.signature]).encode()).decode()


def decrypted(data: str) -> Thinking | RedactedThinking:
    """Raises `RefusedError` for what the vendor did not encrypt."""
    if data == RedactedThinking().data:
        return RedactedThinking()
    try:
        text, signature = json.loads(decoded(data, ENCRYPTED))
    except ValueError as problem:
        raise RefusedError("The encrypted content could not be verified", ENCRYPTED) from problem
    if signature != signed(text):
        raise RefusedError("The encrypted content could not be verified", ENCRYPTED)
    return Thinking(text)


# --- answers --------------------------------------------------------------------------------------------------------


def whole(body: Json, prompt: Prompt, answer: Answer) -> Json:
    cut = answer.stop == "length"
    ended = {"status": "incomplete" if cut else "completed", "completed_at": None if cut else CREATED + 1}
    details = {"reason": "max_output_tokens"} if cut else None
    items = list(_items(body, answer))
    return _begun(body, prompt) | ended | {"incomplete_details": details, "output": items, "usage": usage(answer)}


def usage(answer: Answer) -> Json:
    tokens = answer.tokens
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached_input, "cache_write_tokens": 0},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
        "total_tokens": tokens.input + tokens.output,
    }


def _begun(body: Json, prompt: Prompt) -> Json:
    """The response as its first event has it."""
    echoed = {name: body.get(name) if body.get(name) is not None else value for name, value in ECHOED.items()}
    reasoning = body.get("reasoning") or {}
    return echoed | {
        "id": f"resp_{prompt.answer_id}",
        "object": "response",
        "created_at": CREATED,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": prompt.model,
        "output": [],
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "text": {"format": {"type": "text"}} | (body.get("text") or {}),
        "top_logprobs": 0,
        "usage": None,
    }


def _items(body: Json, answer: Answer) -> Iterator[Json]:
    """The output items. The texts of one answer are parts of one message."""
    texts = [part for part in answer.parts if isinstance(part, Text | Refusal)]
    for number, part in enumerate(answer.parts):
        match part:
            case Thinking() | RedactedThinking():
                yield _reasoning(body, number, part)
            case ToolCall(id, name, arguments, True):
                details = {"call_id": f"call_{id}", "name": name, "input": arguments["input"]}
                yield {"type": "custom_tool_call", "id": f"ctc_{id}"} | details | _space(body, name)
            case ToolCall(id, name, arguments):
                details = {"call_id": f"call_{id}", "name": name, "arguments": json.dumps(arguments)}
                yield {"type": "function_call", "id": f"fc_{id}", "status": "completed"} | details | _space(body, name)
            case Text() | Refusal() if part is texts[0]:
                status = "incomplete" if answer.stop == "length" else "completed"
                content = [_part(one) for one in texts]
                yield {"type": "message", "id": "msg_Ab9", "status": status, "role": "assistant", "content": content}


def _space(body: Json, name: str) -> Json:
    """The namespace of a tool, as calls name it."""
    spaces = {function["name"]: space for function, space in _functions(body) if space}
    return {"namespace": spaces[name]} if name in spaces else {}


def _reasoning(body: Json, number: int, part: Thinking | RedactedThinking) -> Json:
    wants_summary = (body.get("reasoning") or {}).get("summary") is not None
    summary = [{"type": "summary_text", "text": part.text}] if isinstance(part, Thinking) and wants_summary else []
    item: Json = {"type": "reasoning", "id": f"rs_{number}Ab9", "summary": summary}
    return item | ({"encrypted_content": encrypted(part)} if ENCRYPTED in (body.get("include") or ()) else {})


def _part(part: Text | Refusal) -> Json:
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


def frames(body: Json, prompt: Prompt, answer: Answer) -> Iterator[bytes]:
    """The SSE frames of a streamed answer."""
    for event in events(body, prompt, answer):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def events(body: Json, prompt: Prompt, answer: Answer) -> Iterator[Json]:
    numbers = count()
    for event in _unnumbered(body, prompt, answer):
        yield event | {"sequence_number": next(numbers)}


def _unnumbered(body: Json, prompt: Prompt, answer: Answer) -> Iterator[Json]:
    head = _begun(body, prompt)
    yield {"type": "response.created", "response": head}
    yield {"type": "response.in_progress", "response": head}
    for index, item in enumerate(_items(body, answer)):
        start, between = _EVENTS[item["type"]](item)
        yield {"type": "response.output_item.added", "output_index": index, "item": start}
        complete_events = [event for event in between if not (answer.cut_by and event["type"].endswith(".done"))]
        yield from (event | {"output_index": index, "item_id": item["id"]} for event in complete_events)
        if not answer.cut_by:
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
    if answer.cut_by:
        message = FAILURES[answer.cut_by].message
        yield {"type": "error", "code": "server_error", "message": message, "param": None}
        reason = {"code": "server_error", "message": message}
        yield {"type": "response.failed", "response": head | {"status": "failed", "error": reason}}
        return
    ending = "incomplete" if answer.stop == "length" else "completed"
    yield {"type": f"response.{ending}", "response": whole(body, prompt, answer)}


def _message_events(item: Json) -> tuple[Json, list[Json]]:
    events: list[Json] = []
    for index, part in enumerate(item["content"]):
        at = {"content_index": index}
        kind, member = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
        extra: Json = {} if kind == "refusal" else {"logprobs": []}
        events.append(at | {"type": "response.content_part.added", "part": part | {member: ""}})
        deltas = pieces(part[member])
        events += [at | extra | {"type": f"response.{kind}.delta", "delta": piece} for piece in deltas]
        events.append(at | extra | {"type": f"response.{kind}.done", member: part[member]})
        events.append(at | {"type": "response.content_part.done", "part": part})
    return item | {"content": [], "status": "in_progress"}, events


def _call_events(item: Json) -> tuple[Json, list[Json]]:
    deltas = json_pieces(json.loads(item["arguments"]))
    events: list[Json] = [{"type": "response.function_call_arguments.delta", "delta": piece} for piece in deltas]
    events.append({"type": "response.function_call_arguments.done", "arguments": item["arguments"]})
    return item | {"arguments": "", "status": "in_progress"}, events


def _custom_events(item: Json) -> tuple[Json, list[Json]]:
    deltas = pieces(item["input"])
    events: list[Json] = [{"type": "response.custom_tool_call_input.delta", "delta": piece} for piece in deltas]
    events.append({"type": "response.custom_tool_call_input.done", "input": item["input"]})
    return item | {"input": ""}, events


def _reasoning_events(item: Json) -> tuple[Json, list[Json]]:
    events: list[Json] = []
    for index, part in enumerate(item["summary"]):
        at = {"summary_index": index}
        events.append(at | {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}})
        deltas = pieces(part["text"])
        events += [at | {"type": "response.reasoning_summary_text.delta", "delta": piece} for piece in deltas]
        events.append(at | {"type": "response.reasoning_summary_text.done", "text": part["text"]})
        events.append(at | {"type": "response.reasoning_summary_part.done", "part": part})
    return item | {"summary": []}, events


_EVENTS: dict[str, Callable[[Json], tuple[Json, list[Json]]]] = {
    "message": _message_events,
    "function_call": _call_events,
    "custom_tool_call": _custom_events,
    "reasoning": _reasoning_events,
}
