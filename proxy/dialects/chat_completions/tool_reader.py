"""Reads the tools of a Chat Completions request, and which of them the model must call.

Pure.
"""

from proxy.dialects.middle.reading import (
    Json,
    objects_at,
    require_choice,
    require_flag,
    require_known_members,
    require_object,
    require_text,
)
from proxy.dialects.middle.request import AUTO, NAMED, NONE, REQUIRED, Tool, ToolChoice
from proxy.errors import UntranslatableError

_CHOICES = {"auto": AUTO, "none": NONE, "required": REQUIRED}
_FUNCTION_MEMBERS = frozenset(("name", "description", "parameters", "strict", "cache_control"))
_CUSTOM_MEMBERS = frozenset(("name", "description", "format"))
_GRAMMAR_MEMBERS = frozenset(("type", "grammar", "syntax", "definition"))


def read_tools(members: Json) -> list[Tool]:
    return [_tool(tool, field) for tool, field in objects_at(members, "tools", "tools")]


def _tool(tool: Json, field: str) -> Tool:
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise UntranslatableError(f"{field}.type")
    require_known_members(tool, field, frozenset(("type", kind, "cache_control")), {})
    path = f"{field}.{kind}"
    inner = require_object(tool.get(kind), path)
    require_known_members(inner, path, _FUNCTION_MEMBERS if kind == "function" else _CUSTOM_MEMBERS, {})
    members = {name: value for name, value in inner.items() if value is not None}
    cache = tool.get("cache_control") or members.get("cache_control")
    return Tool(
        name=require_text(members.get("name"), f"{path}.name"),
        description=require_text(members["description"], f"{path}.description") if "description" in members else None,
        schema=require_object(members["parameters"], f"{path}.parameters") if "parameters" in members else None,
        strict=require_flag(members["strict"], f"{path}.strict") if "strict" in members else None,
        custom=_input_format(members.get("format", {"type": "text"}), f"{path}.format") if kind == "custom" else None,
        cache=require_object(cache, f"{field}.cache_control") if cache else None,
        field=field,
    )


def _input_format(value: object, field: str) -> Json:
    """Return the format of a custom tool's input, flat as the Responses API has it."""
    form = require_object(value, field)
    require_known_members(form, field, _GRAMMAR_MEMBERS, {})
    grammar = form.get("grammar")
    return {"type": form.get("type")} | require_object(grammar, f"{field}.grammar") if grammar else form


def read_tool_choice(members: Json, tools: list[Tool]) -> ToolChoice | None:
    choice = members.get("tool_choice")
    if choice is None:
        return None
    if isinstance(choice, str):
        return ToolChoice(require_choice(choice, "tool_choice", _CHOICES))
    entry = require_object(choice, "tool_choice")
    kind = entry.get("type")
    if kind == "allowed_tools":
        return _allowed(require_object(entry.get(kind), "tool_choice.allowed_tools"), tools)
    if kind not in ("function", "custom"):
        raise UntranslatableError("tool_choice.type")
    path = f"tool_choice.{kind}"
    return ToolChoice(NAMED, require_text(require_object(entry.get(kind), path).get("name"), f"{path}.name"))


def _allowed(allowed: Json, tools: list[Tool]) -> ToolChoice:
    """A choice among all tools. Raises for one among some of them, which no other dialect can express."""
    path = "tool_choice.allowed_tools"
    mode = require_choice(allowed.get("mode"), f"{path}.mode", {"auto": AUTO, "required": REQUIRED})
    names = set[object]()
    for entry, field in objects_at(allowed, "tools", f"{path}.tools"):
        kind = entry.get("type")
        names.add(require_object(entry.get(kind), f"{field}.{kind}").get("name") if isinstance(kind, str) else None)
    if names != {tool.name for tool in tools}:
        raise UntranslatableError(f"{path}.tools", "the target of this slug can only be offered all tools")
    return ToolChoice(mode)
