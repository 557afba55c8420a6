"""Checks of requests that the vendor of Responses makes. It stores nothing, so it knows no earlier response."""

import re
from typing import Any

from openai.types.responses.response_create_params import ResponseCreateParamsBase

from tests.upstream.dialects.refusing import (
    RefusedError,
    decoded_data_url,
    json_object,
    require,
    require_closed_objects,
    require_shape,
)
from tests.upstream.dialects.responses import decrypted
from tests.upstream.dialects.scenarios import Json

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID_PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs"}
MAX_ID = 64
MIN_OUTPUT_TOKENS = 16
EXTENSIONS = frozenset(("stream", "strict", "detail", "client_metadata", "search_content_types"))
"""`stream`: the SDK has it in subclasses. `strict`, `detail`: required by the SDK's types, not by the vendor.

The others: Codex sends them, and the SDK lacks them.
"""


def check(body: Json) -> None:
    """Raises `RefusedError`."""
    require_shape(body | {"input": _as_typed(body.get("input"))}, ResponseCreateParamsBase, EXTENSIONS)
    require(body.get("model") is not None, "is required", "model")
    require(bool(body.get("input")), "is required", "input")
    if body.get("previous_response_id") is not None:
        raise RefusedError("Previous response not found", "previous_response_id", 404)
    _check_limits(body)
    _check_tools(body)
    _check_format(body)
    if isinstance(body["input"], list):
        _check_calls(body["input"])
        for number, item in enumerate(body["input"]):
            _check_item(item, f"input.{number}")


def _as_typed(items: Any) -> Any:
    """The input without what Codex sends and the SDK's types lack: ids of input messages, `content: null`."""
    if not isinstance(items, list):
        return items
    without_ids = (
        {name: value for name, value in item.items() if name != "id"} if _is_given(item) else item for item in items
    )
    return [{name: value for name, value in item.items() if (name, value) != ("content", None)} for item in without_ids]


def _is_given(item: Json) -> bool:
    """Return whether the item is a message that did not come from the model."""
    return item.get("type") == "message" and item.get("role") != "assistant"


def _check_limits(body: Json) -> None:
    least = body.get("max_output_tokens")
    require(least is None or least >= MIN_OUTPUT_TOKENS, f"must be at least {MIN_OUTPUT_TOKENS}", "max_output_tokens")
    require(0 <= (body.get("temperature") or 0) <= 2, "must be from 0 to 2", "temperature")
    require(0 <= (body.get("top_p") or 0) <= 1, "must be from 0 to 1", "top_p")


def _check_tools(body: Json) -> None:
    tools = body.get("tools") or []
    for number, tool in enumerate(tools):
        if tool["type"] != "function":
            continue
        require(bool(NAME.fullmatch(tool["name"])), f"must match {NAME.pattern}", f"tools.{number}.name")
        if tool.get("strict"):
            require_closed_objects(tool.get("parameters"), f"tools.{number}.parameters", all_required=True)
    choice = body.get("tool_choice")
    require(choice in (None, "auto", "none") or bool(tools), "needs 'tools'", "tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        require(choice["name"] in [tool.get("name") for tool in tools], "names no tool", "tool_choice")


def _check_format(body: Json) -> None:
    format = (body.get("text") or {}).get("format") or {}
    if format.get("type") == "json_schema":
        require(bool(NAME.fullmatch(format["name"])), f"must match {NAME.pattern}", "text.format.name")
        if format.get("strict"):
            require_closed_objects(format["schema"], "text.format.schema", all_required=True)
    if format.get("type") == "json_object":
        require("json" in str(body["input"]).lower(), "must contain the word 'json'", "input")


def _check_calls(items: list[Json]) -> None:
    """Each call has its output somewhere behind it, and each output its call before it."""
    open_calls: set[str] = set()
    for number, item in enumerate(items):
        if item.get("type") in ("function_call", "custom_tool_call"):
            open_calls.add(item["call_id"])
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            is_open = item["call_id"] in open_calls
            require(
                is_open,
                f"No tool call found for function call output with call_id {item['call_id']}",
                f"input.{number}",
            )
            open_calls.discard(item["call_id"])
    require(not open_calls, f"No tool output found for function call {sorted(open_calls)}", "input")


def _check_item(item: Json, param: str) -> None:
    kind = item.get("type", "message")
    prefix = ID_PREFIXES.get(kind)
    if item.get("id") is not None and prefix is not None:
        require(item["id"].startswith(prefix), f"Expected an ID that begins with '{prefix}'", f"{param}.id")
    for name in ("id", "call_id"):
        require(len(item.get(name) or "") <= MAX_ID, f"must have at most {MAX_ID} characters", f"{param}.{name}")
    match kind:
        case "message":
            _check_content(item["content"], item["role"], f"{param}.content")
        case "function_call":
            require(bool(NAME.fullmatch(item["name"])), f"must match {NAME.pattern}", f"{param}.name")
            json_object(item["arguments"], f"{param}.arguments")
        case "function_call_output" | "custom_tool_call_output":
            _check_content(item["output"], "user", f"{param}.output")
        case "reasoning" if item.get("encrypted_content"):
            decrypted(item["encrypted_content"])
        case "reasoning" | "item_reference":
            raise RefusedError(f"Item with id '{item['id']}' not found. Items are not persisted", param, 404)


def _check_content(content: Any, role: str, param: str) -> None:
    allowed = ("output_text", "refusal") if role == "assistant" else ("input_text", "input_image", "input_file")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        where = f"{param}.{number}"
        require(part["type"] in allowed, f"must be one of {allowed}, not {part['type']!r}", f"{where}.type")
        url = part.get("image_url") or part.get("file_data")
        if url is not None and not url.startswith("https://"):
            decoded_data_url(url, where)
        if part.get("file_data") is not None:
            require(bool(part.get("filename")), "is required", f"{where}.filename")
