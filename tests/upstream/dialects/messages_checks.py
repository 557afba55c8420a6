"""Checks of requests that the vendor of Messages makes."""

import re
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsBase

from tests.upstream.dialects.refusing import RefusedError, decoded, require, require_closed_objects, require_shape
from tests.upstream.dialects.scenarios import Json, RedactedThinking, signed

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MIN_BUDGET = 1024
MAX_BREAKPOINTS = 4
BETA = frozenset(("context_management",))
"""Members that need a header `anthropic-beta` named after them. The SDK has them in types of its own."""
EXTENSIONS = frozenset(("stream", "temperature", "top_p", "top_k", *BETA))
"""`stream`: the SDK has it in subclasses. The others: gone from the SDK, taken by the API for models that sample."""
IN_HEADERS = ("workspace_id", "user_profile_id")


def check(body: Json) -> None:
    """Raises `RefusedError`."""
    require_shape(body, MessageCreateParamsBase, EXTENSIONS)
    for name in IN_HEADERS:
        require(name not in body, "Extra inputs are not permitted", name)
    _check_limits(body)
    _check_tools(body)
    _check_format(body)
    require(_breakpoints(body) <= MAX_BREAKPOINTS, f"at most {MAX_BREAKPOINTS} blocks may have it", "cache_control")
    _check_thinking(body)
    _check_turns(turns(body["messages"]))


def turns(messages: list[Json]) -> list[Json]:
    """The messages with adjacent ones of one role combined, and with content as blocks."""
    combined: list[Json] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if combined and combined[-1]["role"] == message["role"]:
            combined[-1]["content"] = [*combined[-1]["content"], *blocks]
        else:
            combined.append({"role": message["role"], "content": list(blocks)})
    return combined


def _check_limits(body: Json) -> None:
    require(body["max_tokens"] >= 1, "must be at least 1", "max_tokens")
    require(body.get("top_k", 1) >= 1, "must be at least 1", "top_k")
    require(0 <= body.get("temperature", 0) <= 1, "must be from 0 to 1", "temperature")
    require(0 <= body.get("top_p", 0) <= 1, "must be from 0 to 1", "top_p")
    for number, sequence in enumerate(body.get("stop_sequences") or ()):
        require(bool(sequence.strip()), "must contain non-whitespace", f"stop_sequences.{number}")
    for number, block in enumerate(body["system"] if isinstance(body.get("system"), list) else ()):
        require(bool(block["text"]), "text content blocks must be non-empty", f"system.{number}")


def _check_tools(body: Json) -> None:
    tools = body.get("tools") or []
    names = [tool["name"] for tool in tools if "name" in tool]
    require(len(set(names)) == len(names), "tool names must be unique", "tools")
    for number, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            continue
        param = f"tools.{number}"
        require(bool(TOOL_NAME.fullmatch(tool["name"])), f"must match {TOOL_NAME.pattern}", f"{param}.name")
        require(tool["input_schema"].get("type") == "object", "must be 'object'", f"{param}.input_schema.type")
        if tool.get("strict"):
            require_closed_objects(tool["input_schema"], f"{param}.input_schema", all_required=False)
    choice = body.get("tool_choice")
    require(choice is None or bool(tools), "may only be specified while providing tools", "tool_choice")
    if choice is not None and choice["type"] == "tool":
        require(choice["name"] in names, "names no tool", "tool_choice.name")


def _check_format(body: Json) -> None:
    format = (body.get("output_config") or {}).get("format")
    if format is not None:
        require_closed_objects(format["schema"], "output_config.format.schema", all_required=False)


def _breakpoints(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_breakpoints, value))
    if isinstance(value, dict):
        nested = sum(_breakpoints(item) for name, item in value.items() if name not in ("input", "input_schema"))
        return nested + (value.get("cache_control") is not None)
    return 0


def _check_thinking(body: Json) -> None:
    thinking = body.get("thinking") or {"type": "disabled"}
    if thinking["type"] not in ("enabled", "adaptive"):
        return
    if thinking["type"] == "enabled":
        budget = thinking["budget_tokens"]
        require(budget >= MIN_BUDGET, f"must be at least {MIN_BUDGET}", "thinking.budget_tokens")
        require(budget < body["max_tokens"], "must be below max_tokens", "thinking.budget_tokens")
    require(body.get("temperature", 1) == 1, "may only be 1 when thinking is enabled", "temperature")
    require(body.get("top_p", 1) >= 0.95, "must be at least 0.95 when thinking is enabled", "top_p")
    choice = (body.get("tool_choice") or {}).get("type", "auto")
    require(choice in ("auto", "none"), "thinking may not be enabled when it forces tool use", "tool_choice")
    ended = turns(body["messages"])
    require(ended[-1]["role"] != "assistant", "no prefill when thinking is enabled", "messages")
    if not any(block["type"] == "tool_result" for block in ended[-1]["content"]):
        return
    first = next(turn for turn in reversed(ended) if turn["role"] == "assistant")["content"][0]["type"]
    message = f"Expected `thinking` or `redacted_thinking`, but found `{first}`"
    require(first in ("thinking", "redacted_thinking"), message, f"messages.{len(ended) - 2}.content.0.type")


def _check_turns(combined: list[Json]) -> None:
    require(bool(combined), "at least one message is required", "messages")
    require(combined[0]["role"] != "assistant", 'first message must use the "user" role', "messages")
    uses: set[str] = set()
    call_ids: list[str] = []
    for number, turn in enumerate(combined):
        param = f"messages.{number}"
        last = number == len(combined) - 1
        require(bool(turn["content"]), "all messages must have non-empty content", param)
        _check_results(turn, call_ids, param)
        call_ids = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        require(not uses.intersection(call_ids) and len(set(call_ids)) == len(call_ids), "ids must be unique", param)
        uses.update(call_ids)
        for index, block in enumerate(turn["content"]):
            _check_block(block, turn["role"], f"{param}.content.{index}")
        if last and turn["role"] == "assistant" and turn["content"][-1]["type"] == "text":
            text = turn["content"][-1]["text"]
            require(text == text.rstrip(), "final assistant content cannot end with trailing whitespace", param)
    require(not call_ids, f"`tool_use` ids were found without `tool_result` blocks immediately after: {call_ids}")


def _check_results(turn: Json, call_ids: list[str], param: str) -> None:
    kinds = [block["type"] for block in turn["content"]]
    answered = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
    missing = sorted(set(call_ids) - set(answered))
    require(not missing, f"`tool_use` ids were found without `tool_result` blocks immediately after: {missing}", param)
    unknown = sorted(set(answered) - set(call_ids))
    require(not unknown, f"unexpected `tool_use_id` found in `tool_result` blocks: {unknown}", param)
    require(len(set(answered)) == len(answered), "each tool_use must have a single result", param)
    first = kinds[: len(answered)]
    require(set(first) <= {"tool_result"}, "`tool_result` blocks must come first in the turn", param)


def _check_block(block: Json, role: str, param: str) -> None:
    kind = block["type"]
    allowed = {
        "user": ("text", "image", "document", "tool_result", "search_result"),
        "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
        "system": ("text",),
    }
    require(kind in allowed[role], f"`{kind}` blocks are not allowed in a turn of `{role}`", f"{param}.type")
    match kind:
        case "text":
            require(bool(block["text"].strip()), "text content blocks must contain non-whitespace text", param)
        case "thinking":
            valid = block["signature"] == signed(block["thinking"])
            require(valid, "Invalid `signature` in `thinking` block", f"{param}.signature")
        case "redacted_thinking":
            require(block["data"] == RedactedThinking().data, "Invalid `data` in `redacted_thinking` block", param)
        case "tool_use":
            require(bool(CALL_ID.fullmatch(block["id"])), f"must match {CALL_ID.pattern}", f"{param}.id")
        case "image" | "document":
            _check_source(block["source"], kind, f"{param}.source")
        case "tool_result":
            content = block.get("content")
            for number, item in enumerate(content if isinstance(content, list) else ()):
                _check_block(item, "user", f"{param}.content.{number}")


def _check_source(source: Json, kind: str, param: str) -> None:
    if source["type"] == "base64":
        media_types = IMAGES if kind == "image" else ("application/pdf",)
        require(source["media_type"] in media_types, f"must be one of {media_types}", f"{param}.media_type")
        require(bool(decoded(source["data"], f"{param}.data")), "must not be empty", f"{param}.data")
    if source["type"] == "url" and not source["url"].startswith("https://"):
        raise RefusedError("Only HTTPS URLs are supported", f"{param}.url")
