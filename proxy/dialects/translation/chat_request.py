"""Translates a Chat Completions request into Messages, in full or not at all.

Pure. Refuses what Messages cannot express. Omits only members that request nothing, and hints to the provider
(caching, seeds, strict schemas).

See docs/reference/inference.md#translation.
"""

import re

from proxy.dialects.middle.reading import (
    Json,
    require_choice,
    require_json_object,
    require_known_members,
    require_list,
    require_object,
    require_text,
)
from proxy.dialects.upstream_request import UntranslatableError

DEFAULT_MAX_TOKENS = 4096
"""Messages requires a cap on output tokens; every model of that dialect accepts this one."""

_CAPS = ("max_completion_tokens", "max_tokens")
_SAMPLING = ("temperature", "top_p", "stop", "stream", "stream_options")
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
_TRANSLATED = frozenset(("model", "messages", "user", *_CAPS, *_SAMPLING, *_TOOLS))
_OMITTED = frozenset(("metadata", "seed", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"))
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
}
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_DATA_URL = re.compile(r"data:(?P<media>[\w.+-]{1,64}+/[\w.+-]{1,100}+);base64,", re.ASCII)


def to_messages_request(chat: Json, model: str) -> Json:
    """The Messages request for `model`. Raises `UntranslatableError`."""
    require_known_members(chat, "", _TRANSLATED | _OMITTED, _NEUTRAL)
    system, turns = _conversation(require_list(chat.get("messages"), "messages"))
    translated: Json = {"model": model, "max_tokens": _max_tokens(chat), "messages": turns}
    if system:
        translated["system"] = system[0]["text"] if len(system) == 1 else system
    translated |= {name: chat[name] for name in ("top_p", "stream") if chat.get(name) is not None}
    if chat.get("temperature") is not None:
        translated["temperature"] = _temperature(chat["temperature"])
    if chat.get("stop") is not None:
        translated["stop_sequences"] = (
            [chat["stop"]] if isinstance(chat["stop"], str) else require_list(chat["stop"], "stop")
        )
    if chat.get("user") is not None:
        translated["metadata"] = {"user_id": require_text(chat["user"], "user")}
    return translated | _tools(chat)


def _max_tokens(chat: Json) -> object:
    given = (chat.get(name) for name in _CAPS)
    return next((value for value in given if value is not None), DEFAULT_MAX_TOKENS)


def _temperature(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UntranslatableError("temperature", "the target of this slug takes 0 to 1")
    return value


def _conversation(messages: list[object]) -> tuple[list[Json], list[Json]]:
    """The system blocks and the turns. Adjacent messages of one role become one turn."""
    system: list[Json] = []
    turns: list[Json] = []
    for number, entry in enumerate(messages):
        field = f"messages.{number}"
        message = require_object(entry, field)
        role = message.get("role")
        if role in ("system", "developer"):
            system += _blocks(message.get("content"), f"{field}.content", images=False)
            continue
        turn_role, blocks = _turn(message, role, field)
        if turns and turns[-1]["role"] == turn_role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": turn_role, "content": blocks})
    return system, turns


def _turn(message: Json, role: object, field: str) -> tuple[str, list[Json]]:
    if role == "user":
        return "user", _blocks(message.get("content"), f"{field}.content", images=True)
    if role == "assistant":
        return "assistant", _assistant_blocks(message, field)
    if role == "tool":
        content = _blocks(message.get("content"), f"{field}.content", images=False)
        tool_use_id = require_text(message.get("tool_call_id"), f"{field}.tool_call_id")
        return "user", [{"type": "tool_result", "tool_use_id": tool_use_id, "content": content}]
    raise UntranslatableError(f"{field}.role")


def _assistant_blocks(message: Json, field: str) -> list[Json]:
    """The text and the tool calls of an assistant message."""
    for name in ("function_call", "audio"):
        if message.get(name) is not None:
            raise UntranslatableError(f"{field}.{name}")
    blocks = _blocks(message.get("content") or message.get("refusal") or "", f"{field}.content", images=False)
    for number, entry in enumerate(require_list(message.get("tool_calls") or [], f"{field}.tool_calls")):
        blocks.append(_tool_use(entry, f"{field}.tool_calls.{number}"))
    return blocks


def _tool_use(entry: object, field: str) -> Json:
    call = require_object(entry, field)
    if call.get("type", "function") != "function":
        raise UntranslatableError(f"{field}.type")
    function = require_object(call.get("function"), f"{field}.function")
    arguments = f"{field}.function.arguments"
    return {
        "type": "tool_use",
        "id": require_text(call.get("id"), f"{field}.id"),
        "name": require_text(function.get("name"), f"{field}.function.name"),
        "input": require_json_object(require_text(function.get("arguments", ""), arguments), arguments),
    }


def _blocks(content: object, field: str, *, images: bool) -> list[Json]:
    """Content as blocks, without empty texts, which Messages refuses."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks = [
        _block(require_object(part, f"{field}.{number}"), f"{field}.{number}", images=images)
        for number, part in enumerate(require_list(content, field))
    ]
    return [block for block in blocks if block.get("text") != ""]


def _block(part: Json, field: str, *, images: bool) -> Json:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": "text", "text": require_text(part.get(kind), f"{field}.{kind}")}
    if kind == "image_url" and images:
        url = require_object(part.get("image_url"), f"{field}.image_url").get("url")
        return {
            "type": "image",
            "source": _source(require_text(url, f"{field}.image_url.url"), f"{field}.image_url.url"),
        }
    if kind == "file" and images:
        data = require_object(part.get("file"), f"{field}.file").get("file_data")
        return {
            "type": "document",
            "source": _source(require_text(data, f"{field}.file.file_data"), f"{field}.file.file_data"),
        }
    raise UntranslatableError(f"{field}.type")


def _source(url: str, field: str) -> Json:
    match = _DATA_URL.match(url)
    if match is not None:
        return {"type": "base64", "media_type": match["media"], "data": url[match.end() :]}
    if not url.startswith(("https://", "http://")):
        raise UntranslatableError(field, "must be an http URL or base64 data")
    return {"type": "url", "url": url}


def _tools(chat: Json) -> Json:
    translated: Json = {}
    if chat.get("tools"):
        translated["tools"] = [
            _tool(entry, f"tools.{n}") for n, entry in enumerate(require_list(chat["tools"], "tools"))
        ]
    choice = chat.get("tool_choice")
    if choice is not None:
        translated["tool_choice"] = _tool_choice(choice)
    if chat.get("parallel_tool_calls") is False and "tools" in translated:
        chosen = translated.setdefault("tool_choice", {"type": "auto"})
        if chosen["type"] != "none":
            chosen["disable_parallel_tool_use"] = True
    return translated


def _tool(entry: object, field: str) -> Json:
    tool = require_object(entry, field)
    if tool.get("type") != "function":
        raise UntranslatableError(f"{field}.type")
    function = require_object(tool.get("function"), f"{field}.function")
    translated: Json = {"name": require_text(function.get("name"), f"{field}.function.name")}
    if function.get("description") is not None:
        translated["description"] = function["description"]
    return translated | {"input_schema": function.get("parameters") or {"type": "object", "properties": {}}}


def _tool_choice(choice: object) -> Json:
    if isinstance(choice, str):
        return {"type": require_choice(choice, "tool_choice", _TOOL_CHOICES)}
    chosen = require_object(choice, "tool_choice")
    if chosen.get("type") != "function":
        raise UntranslatableError("tool_choice.type")
    function = require_object(chosen.get("function"), "tool_choice.function")
    return {"type": "tool", "name": require_text(function.get("name"), "tool_choice.function.name")}
