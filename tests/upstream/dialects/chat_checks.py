"""Checks of requests that the vendor of Chat Completions makes."""

import re
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tests.upstream.dialects.refusing import (
    decoded_data_url,
    json_object,
    require,
    require_closed_objects,
    require_shape,
)
from tests.upstream.dialects.scenarios import Json

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SPEAKER = re.compile(r"[^\s<|\\/>]+")
MAX_CALL_ID = 40
EXTENSIONS = frozenset(("annotations", "reasoning_content", "extra_content", "reasoning_details", "stream"))
"""An answer's members that go back as they came, what compatible servers add, and `stream`, which subclasses have."""


def check(body: Json) -> None:
    """Raises `RefusedError`."""
    require_shape(body, CompletionCreateParamsBase, EXTENSIONS)
    require(bool(body["messages"]), "must not be empty", "messages")
    _check_limits(body)
    _check_tools(body)
    _check_format(body)
    for number, message in enumerate(body["messages"]):
        _check_message(message, f"messages.{number}")
    _check_turns(body["messages"])


def _check_limits(body: Json) -> None:
    both = body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None
    require(not both, "is not allowed beside 'max_completion_tokens'", "max_tokens")
    for name in ("max_tokens", "max_completion_tokens"):
        require(body.get(name) is None or body[name] >= 1, "must be at least 1", name)
    require(0 <= (body.get("temperature") or 0) <= 2, "must be from 0 to 2", "temperature")
    require(0 <= (body.get("top_p") or 0) <= 1, "must be from 0 to 1", "top_p")
    require(not isinstance(body.get("stop"), list) or len(body["stop"]) <= 4, "takes at most 4", "stop")
    require(body.get("stream_options") is None or bool(body.get("stream")), "needs 'stream'", "stream_options")
    require(body.get("top_logprobs") is None or bool(body.get("logprobs")), "needs 'logprobs'", "top_logprobs")


def _check_tools(body: Json) -> None:
    tools = body.get("tools")
    require(tools is None or bool(tools), "must not be empty", "tools")
    if not tools:
        for name in ("tool_choice", "parallel_tool_calls"):
            require(body.get(name) is None, "is only allowed when 'tools' are specified", name)
    for number, tool in enumerate(tools or ()):
        function = tool[tool["type"]]
        param = f"tools.{number}.{tool['type']}"
        require(bool(NAME.fullmatch(function.get("name", ""))), f"must match {NAME.pattern}", f"{param}.name")
        if function.get("strict"):
            require_closed_objects(function.get("parameters"), f"{param}.parameters", all_required=True)
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        names = [(tool["type"], tool[tool["type"]]["name"]) for tool in tools or ()]
        require((choice["type"], choice[choice["type"]]["name"]) in names, "names no tool", "tool_choice")


def _check_format(body: Json) -> None:
    format = body.get("response_format") or {}
    if format.get("type") == "json_schema":
        schema_format = format["json_schema"]
        param = "response_format.json_schema"
        require(bool(NAME.fullmatch(schema_format["name"])), f"must match {NAME.pattern}", f"{param}.name")
        require(isinstance(schema_format.get("schema"), dict), "is required", f"{param}.schema")
        if schema_format.get("strict"):
            require_closed_objects(schema_format["schema"], f"{param}.schema", all_required=True)
    if format.get("type") == "json_object":
        require("json" in str(body["messages"]).lower(), "must contain the word 'json'", "messages")


def _check_turns(messages: list[Json]) -> None:
    """Each tool call is answered before anything else is said, and nothing else is answered."""
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        param = f"messages.{number}"
        if message["role"] == "tool":
            require(message["tool_call_id"] in open_calls, "answers no preceding tool call", f"{param}.tool_call_id")
            open_calls.discard(message["tool_call_id"])
            continue
        require(not open_calls, f"tool calls without an answer: {sorted(open_calls)}", param)
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    require(not open_calls, f"tool calls without an answer: {sorted(open_calls)}", "messages")


def _check_message(message: Json, param: str) -> None:
    if message.get("name") is not None:
        require(bool(SPEAKER.fullmatch(message["name"])), f"must match {SPEAKER.pattern}", f"{param}.name")
    _check_content(message.get("content"), f"{param}.content")
    if message["role"] != "assistant":
        return
    calls = message.get("tool_calls")
    require(calls is None or bool(calls), "must not be empty", f"{param}.tool_calls")
    has_content = message.get("content") is not None or bool(message.get("refusal")) or bool(calls)
    require(has_content, "must have content or tool calls", param)
    for number, call in enumerate(calls or ()):
        where = f"{param}.tool_calls.{number}"
        require(0 < len(call["id"]) <= MAX_CALL_ID, f"must have at most {MAX_CALL_ID} characters", f"{where}.id")
        target = call[call["type"]]
        require(bool(NAME.fullmatch(target["name"])), f"must match {NAME.pattern}", f"{where}.{call['type']}.name")
        if call["type"] == "function":
            json_object(target["arguments"], f"{where}.function.arguments")


def _check_content(content: Any, param: str) -> None:
    for number, part in enumerate(content if isinstance(content, list) else ()):
        where = f"{param}.{number}"
        url = part["image_url"]["url"] if part["type"] == "image_url" else None
        if url is not None and not url.startswith("https://"):
            media_type, _ = decoded_data_url(url, where)
            require(media_type.startswith("image/"), "is not an image", where)
        if part["type"] == "file" and part["file"].get("file_data") is not None:
            decoded_data_url(part["file"]["file_data"], where)
            require(bool(part["file"].get("filename")), "is required", f"{where}.file.filename")
