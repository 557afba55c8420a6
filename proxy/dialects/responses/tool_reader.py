"""Reads the tools of a Responses request and the choice among them.

Pure. Raises `UntranslatableError` for a tool that only the vendor can run, except for those that stock agents always
offer: they are left out and named in `Request.left_out`.
"""

from proxy.dialects.middle.answer_reading import text_in
from proxy.dialects.middle.reading import (
    Json,
    objects_at,
    optional,
    require_choice,
    require_flag,
    require_known_members,
    require_list,
    require_object,
    require_text,
)
from proxy.dialects.middle.request import AUTO, NAMED, NONE, REQUIRED, Request, Tool, ToolChoice
from proxy.dialects.responses.tool_names import joined_name
from proxy.errors import UntranslatableError

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "async": (False,),
    "defer_loading": (False, True),
}
"""Members that request nothing. Without a tool search, all tools are loaded at once."""
_FUNCTION = frozenset(("type", "name", "description", "parameters", "strict", "output_schema"))
_CUSTOM = frozenset(("type", "name", "description", "format"))
_NAMESPACE = frozenset(("type", "name", "description", "tools"))
_LEFT_OUT = frozenset(("web_search", "web_search_2025_08_26", "tool_search"))
"""Codex always offers these, beside functions that serve it as well."""
_CHOICES = {"auto": AUTO, "none": NONE, "required": REQUIRED}
_NAMED_TYPES = ("function", "custom")
MAX_NAMESPACE_CHARS = 256
"""The longest name of a namespace, which stands in the name of each of its tools."""


def read_tools(holder: Json, field: str, request: Request) -> None:
    """Add the tools of a `tools` member to the request. `field`: the member's path."""
    tools = objects_at(holder, "tools", field)
    alone = all(text_in(tool, "type") in _LEFT_OUT for tool, _ in tools)
    for tool, at in tools:
        kind = text_in(tool, "type")
        if kind in _LEFT_OUT and not alone:
            request.left_out.append(f"{at} ({kind})")
        elif kind == "namespace":
            _read_namespace(tool, at, request.tools)
        else:
            request.tools.append(_tool(tool, at))


def read_tool_choice(choice: object, request: Request) -> ToolChoice:
    if isinstance(choice, str):
        return ToolChoice(require_choice(choice, "tool_choice", _CHOICES))
    entry = require_object(choice, "tool_choice")
    if entry.get("type") == "allowed_tools":
        return _allowed(entry, request)
    if entry.get("type") not in _NAMED_TYPES:
        raise UntranslatableError("tool_choice.type")
    require_known_members(entry, "tool_choice", frozenset(("type", "name")), {})
    return ToolChoice(NAMED, require_text(entry.get("name"), "tool_choice.name"))


def _tool(tool: Json, field: str) -> Tool:
    name = require_text(tool.get("name"), f"{field}.name") if tool.get("type") in _NAMED_TYPES else ""
    description = optional(require_text, tool, "description", field)
    if tool.get("type") == "function":
        require_known_members(tool, field, _FUNCTION, _NEUTRAL)
        schema = optional(require_object, tool, "parameters", field)
        return Tool(name, description, schema, optional(require_flag, tool, "strict", field), field=field)
    if tool.get("type") == "custom":
        require_known_members(tool, field, _CUSTOM, _NEUTRAL)
        form = tool.get("format") or {"type": "text"}
        return Tool(name, description, custom=require_object(form, f"{field}.format"), field=field)
    raise UntranslatableError(f"{field}.type")


def _read_namespace(space: Json, field: str, tools: list[Tool]) -> None:
    """A namespace's tools, each under the joined name. Its description goes before that of its first tool alone: with
    each of thousands it would be gigabytes."""
    require_known_members(space, field, _NAMESPACE, {})
    namespace = require_text(space.get("name"), f"{field}.name")
    if len(namespace) > MAX_NAMESPACE_CHARS:
        raise UntranslatableError(f"{field}.name", f"must have at most {MAX_NAMESPACE_CHARS} characters")
    about = require_text(space.get("description") or "", f"{field}.description")
    for inner, at in objects_at(space, "tools", f"{field}.tools"):
        tool = _tool(inner, at)
        tool.namespaced = (namespace, tool.name)
        tool.name = joined_name(namespace, tool.name)
        if about:
            tool.description = f"{about}\n\n{tool.description}" if tool.description else about
            about = ""
        tools.append(tool)


def _allowed(choice: Json, request: Request) -> ToolChoice:
    """Return the mode of a choice that allows all tools; to allow only some of them, other dialects have nothing."""
    entries = require_list(choice.get("tools"), "tool_choice.tools")
    names = {text_in(entry, "name") for entry in entries}
    if names != {tool.name for tool in request.tools}:
        raise UntranslatableError("tool_choice.tools")
    return ToolChoice(require_choice(choice.get("mode"), "tool_choice.mode", {"auto": AUTO, "required": REQUIRED}))
