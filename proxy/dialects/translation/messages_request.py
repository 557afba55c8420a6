"""Translates a Messages request into Chat Completions, in full or not at all.

Pure. Refuses what Chat Completions cannot express. Omits cache marks, service tiers and past thinking.

See docs/reference/inference.md#translation.
"""

import orjson

from proxy.dialects.middle.reading import (
    Json,
    require_choice,
    require_known_members,
    require_list,
    require_object,
    require_text,
)
from proxy.dialects.upstream_request import UntranslatableError

_SAMPLING = ("max_tokens", "temperature", "top_p", "stop_sequences", "stream")
_TRANSLATED = frozenset(("model", "system", "messages", "metadata", "tools", "tool_choice", *_SAMPLING))
_OMITTED = frozenset(("service_tier",))
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "thinking": ({"type": "disabled"},),
    "mcp_servers": ([],),
}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "function"}
_PAST_THINKING = ("thinking", "redacted_thinking")


def to_chat_request(request: Json, model: str, cap: str) -> Json:
    """The Chat Completions request for `model`. `cap`: the target's name for the cap on output tokens.

    Raises `UntranslatableError`.
    """
    require_known_members(request, "", _TRANSLATED | _OMITTED, _NEUTRAL)
    chat: Json = {"model": model, "messages": _system(request.get("system"))}
    for number, entry in enumerate(require_list(request.get("messages"), "messages")):
        chat["messages"] += _turn(require_object(entry, f"messages.{number}"), f"messages.{number}")
    if request.get("max_tokens") is not None:
        chat[cap] = request["max_tokens"]
    chat |= {name: request[name] for name in ("temperature", "top_p") if request.get(name) is not None}
    if request.get("stop_sequences"):
        chat["stop"] = require_list(request["stop_sequences"], "stop_sequences")
    if request.get("stream") is True:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    user = require_object(request.get("metadata") or {}, "metadata").get("user_id")
    if user is not None:
        chat["user"] = require_text(user, "metadata.user_id")
    return chat | _tools(request)


def _system(system: object) -> list[Json]:
    if not system:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    return [{"role": "system", "content": _joined_text(system, "system")}]


def _turn(message: Json, field: str) -> list[Json]:
    """A turn as messages. Results of tools become messages of their own, before the user's message."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise UntranslatableError(f"{field}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = [
        (require_object(block, f"{field}.content.{number}"), f"{field}.content.{number}")
        for number, block in enumerate(require_list(content, f"{field}.content"))
    ]
    return _assistant_messages(blocks) if role == "assistant" else _user_messages(blocks)


def _user_messages(blocks: list[tuple[Json, str]]) -> list[Json]:
    results = [_tool_result(block, field) for block, field in blocks if block.get("type") == "tool_result"]
    parts = [_part(block, field) for block, field in blocks if block.get("type") != "tool_result"]
    if not parts:
        return results
    plain = all(part["type"] == "text" for part in parts)
    content = "\n".join(part["text"] for part in parts) if plain else parts
    return [*results, {"role": "user", "content": content}]


def _assistant_messages(blocks: list[tuple[Json, str]]) -> list[Json]:
    texts: list[str] = []
    calls: list[Json] = []
    for block, field in blocks:
        if block.get("type") == "text":
            texts.append(require_text(block.get("text"), f"{field}.text"))
        elif block.get("type") == "tool_use":
            calls.append(_tool_call(block, field))
        elif block.get("type") not in _PAST_THINKING:
            raise UntranslatableError(f"{field}.type")
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None}
    return [message | {"tool_calls": calls}] if calls else [message] if texts else []


def _tool_call(block: Json, field: str) -> Json:
    try:
        arguments = orjson.dumps(require_object(block.get("input"), f"{field}.input")).decode()
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
        raise UntranslatableError(f"{field}.input", "nested too deeply to be written anew") from None
    function = {"name": require_text(block.get("name"), f"{field}.name"), "arguments": arguments}
    return {"id": require_text(block.get("id"), f"{field}.id"), "type": "function", "function": function}


def _tool_result(block: Json, field: str) -> Json:
    content = block.get("content") or ""
    text = content if isinstance(content, str) else _joined_text(content, f"{field}.content")
    return {
        "role": "tool",
        "tool_call_id": require_text(block.get("tool_use_id"), f"{field}.tool_use_id"),
        "content": text,
    }


def _joined_text(blocks: object, field: str) -> str:
    """Join text blocks into one text. Raises for a block of another type, which this member cannot hold."""
    texts: list[str] = []
    for number, entry in enumerate(require_list(blocks, field)):
        block = require_object(entry, f"{field}.{number}")
        if block.get("type") != "text":
            raise UntranslatableError(f"{field}.{number}.type")
        texts.append(require_text(block.get("text"), f"{field}.{number}.text"))
    return "\n".join(texts)


def _part(block: Json, field: str) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": require_text(block.get("text"), f"{field}.text")}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _url(block, field)}}
    if kind == "document" and require_object(block.get("source"), f"{field}.source").get("type") == "base64":
        name = block.get("title") or "document.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": _url(block, field)}}
    raise UntranslatableError(f"{field}.type")


def _url(block: Json, field: str) -> str:
    source = require_object(block.get("source"), f"{field}.source")
    if source.get("type") == "url":
        return require_text(source.get("url"), f"{field}.source.url")
    if source.get("type") != "base64":
        raise UntranslatableError(f"{field}.source.type")
    media = require_text(source.get("media_type"), f"{field}.source.media_type")
    return f"data:{media};base64,{require_text(source.get('data'), f'{field}.source.data')}"


def _tools(request: Json) -> Json:
    chat: Json = {}
    if request.get("tools"):
        chat["tools"] = [_tool(entry, f"tools.{n}") for n, entry in enumerate(require_list(request["tools"], "tools"))]
    if request.get("tool_choice") is None:
        return chat
    choice = require_object(request["tool_choice"], "tool_choice")
    kind = require_choice(choice.get("type"), "tool_choice.type", _TOOL_CHOICES)
    named = {"name": require_text(choice.get("name"), "tool_choice.name")} if kind == "function" else None
    chat["tool_choice"] = {"type": "function", "function": named} if named else kind
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False
    return chat


def _tool(entry: object, field: str) -> Json:
    tool = require_object(entry, field)
    if tool.get("type", "custom") not in ("custom", None):
        raise UntranslatableError(f"{field}.type")
    schema = require_object(tool.get("input_schema"), f"{field}.input_schema")
    function: Json = {"name": require_text(tool.get("name"), f"{field}.name"), "parameters": schema}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}
