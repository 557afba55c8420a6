"""Writes tools, the choice among them and calls of them as Chat Completions has them.

Pure. Custom tools, which take plain text, are a function with one argument where the target has no such tools.
"""

import orjson

from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import NAMED, Tool, ToolCall, ToolChoice

_CUSTOM_SCHEMA: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_GRAMMAR_NOTE = "The input must match this {syntax} grammar:\n{definition}"


def written_tool(tool: Tool, *, is_native: bool) -> Json:
    if tool.custom is not None:
        return _custom_tool(tool, tool.custom) if is_native else _function_for_custom(tool, tool.custom)
    function: Json = {"name": tool.name}
    for name, value in (("description", tool.description), ("parameters", tool.schema), ("strict", tool.strict)):
        if value is not None:
            function[name] = value
    return {"type": "function", "function": function}


def _custom_tool(tool: Tool, input_format: Json) -> Json:
    custom: Json = {"name": tool.name}
    if tool.description is not None:
        custom["description"] = tool.description
    if input_format.get("type") == "grammar":
        grammar = {name: input_format.get(name) for name in ("syntax", "definition")}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom}


def _function_for_custom(tool: Tool, input_format: Json) -> Json:
    notes = [tool.description] if tool.description else []
    if input_format.get("type") == "grammar":
        syntax = input_format.get("syntax")
        definition = input_format.get("definition")
        notes.append(_GRAMMAR_NOTE.format(syntax=syntax, definition=definition))
    function: Json = {"name": tool.name, "parameters": _CUSTOM_SCHEMA}
    if notes:
        function["description"] = "\n\n".join(notes)
    return {"type": "function", "function": function}


def written_tool_choice(choice: ToolChoice, tools: list[Tool], *, is_native: bool) -> str | Json:
    if choice.kind != NAMED:
        return choice.kind
    is_custom = is_native and any(tool.name == choice.name and tool.custom is not None for tool in tools)
    kind = "custom" if is_custom else "function"
    return {"type": kind, kind: {"name": choice.name}}


def written_call(call: ToolCall, id: str, extra: Json | None, *, is_native: bool) -> Json:
    """Write a call of an earlier turn. `id`: as this dialect takes it. `extra`: its `extra_content`."""
    entry: Json = {"id": id, "type": "function"}
    if not call.custom:
        entry["function"] = {"name": call.name, "arguments": call.arguments}
    elif is_native:
        entry |= {"type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    else:
        arguments = orjson.dumps({"input": call.arguments}).decode()
        entry["function"] = {"name": call.name, "arguments": arguments}
    if extra:
        entry["extra_content"] = extra
    return entry
