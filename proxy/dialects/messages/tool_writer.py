"""Writes tools and the choice among them for a Messages target.

Pure.
"""

from proxy.dialects.middle.request import AUTO, NAMED, NONE, REQUIRED, Json, Request, Tool

_CHOICES = {AUTO: "auto", REQUIRED: "any", NONE: "none", NAMED: "tool"}


def write_tool(tool: Tool) -> Json:
    """Write a function. A custom tool becomes one whose only argument is the plain input."""
    description = tool.description
    schema = _object_schema(tool.schema)
    if tool.custom is not None:
        description = _described(tool)
        schema = INPUT_SCHEMA
    function: Json = {"name": tool.name}
    if description is not None:
        function["description"] = description
    function["input_schema"] = schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    if tool.cache is not None:
        function["cache_control"] = tool.cache
    return function


INPUT_SCHEMA: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def _described(tool: Tool) -> str | None:
    """The description of a custom tool, with the grammar of its input."""
    custom = tool.custom or {}
    grammar = custom.get("grammar") if isinstance(custom.get("grammar"), dict) else custom
    definition = grammar.get("definition") if isinstance(grammar, dict) else None
    if not isinstance(definition, str):
        return tool.description
    syntax = grammar.get("syntax") if isinstance(grammar, dict) else None
    rule = f"The input must match this {syntax or ''} grammar:\n{definition}".replace("  ", " ", 1)
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def write_choice(request: Request) -> Json | None:
    """Return the member `tool_choice`; None to leave it out."""
    choice = request.tool_choice
    single = request.parallel_tool_calls is False
    if not request.tools and (choice is None or choice.kind in (AUTO, NONE)):
        return None
    if choice is None:
        return {"type": "auto", "disable_parallel_tool_use": True} if single else None
    member: Json = {"type": _CHOICES[choice.kind]}
    if choice.kind == NAMED:
        member["name"] = choice.name
    if single and choice.kind != NONE:
        member["disable_parallel_tool_use"] = True
    return member


def _object_schema(schema: Json | None) -> Json:
    """The schema of a function's arguments, which Messages requires, with its type."""
    return {"type": "object"} | schema if schema else {"type": "object", "properties": {}}
