"""Tools that the vendor runs while it answers: how many calls of them a request allows at most, if it says so.

In all dialects the caller runs functions, custom tools, shells, editors and computers. The vendor runs every other
tool, and those of kinds that are not known here.

See docs/reference/events-and-webhooks.md#server-tool-calls.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from policy.billing import MAX_COUNT

Json = Mapping[str, Any]

RESPONSES_PATH = "/v1/responses"
PAID_MEMBERS = ("mcp_servers", "plugins", "search_parameters", "web_search_options")
"""Members that have the vendor run a tool."""
_SEARCHES = ("enable_search", "search_options", "search_settings", "web_search", "compound_custom")
"""The same of compatible servers: their names for a search, or for tools, without a count."""
TOOL_MEMBERS = frozenset(("tools", *PAID_MEMBERS, *_SEARCHES))
"""A body without any of them has such tools only in items of a Responses call."""
_MAX_CALLS = "max_tool_calls"
"""The member that bounds the calls of all tools of a Responses call."""
_MAX_USES = "max_uses"
"""The member that bounds the calls of one tool in Messages."""
_CALLER_RUN = frozenset(("function", "custom", "local_shell", "apply_patch", "computer_use_preview"))
_CALLER_RUN_FAMILIES = ("bash_", "text_editor_", "computer_", "memory_")
"""Types of Messages without their dates."""
_HOLDERS = ("namespace", "additional_tools")
"""Types that hold tools of their own."""


def most_tool_calls(body: Json, path: str) -> int | str:
    """Return how many calls of its tools the vendor may make; the member that would say it, if it is missing."""
    for name in PAID_MEMBERS:
        if body.get(name) not in (None, []):  # no dialect has a count for them
            return name
    for name in _SEARCHES:
        if body.get(name):
            return name
    tools = [*_vendor_run(body, "tools")]
    if path == RESPONSES_PATH and type(items := body.get("input")) is list:
        for place, item in enumerate(items):
            if type(item) is dict and "tools" in item:  # of whatever type: a search for tools brings some, too
                tools += _vendor_run(item, f"input.{place}.tools")
    if path == RESPONSES_PATH:
        if type(body.get("prompt")) is dict:  # stored: it may have tools
            tools.append(("prompt", {}))
        return 0 if not tools else _count(body.get(_MAX_CALLS)) or _MAX_CALLS
    calls = 0
    for field, tool in tools:
        count = _count(tool.get(_MAX_USES))
        if not count:
            return f"{field}.{_MAX_USES}"
        calls += count
    return calls


def is_reference(item: object) -> bool:
    """Return whether an item stands for one that the vendor stored: a reference, or a picture without its data."""
    if not isinstance(item, dict) or not item.get("id"):
        return False
    kind = item.get("type")
    if kind is None:
        return not item.get("role") or item.get("content") is None
    return kind == "item_reference" or (kind == "image_generation_call" and not item.get("result"))


def _vendor_run(holder: Json, field: str) -> Iterator[tuple[str, Json]]:
    """The tools that the vendor runs, with their fields, in a body, a namespace or an item that holds tools."""
    tools = holder.get("tools")
    if tools and type(tools) is not list:
        yield field, {}
    for place, tool in enumerate(tools if type(tools) is list else ()):
        if type(tool) is not dict:
            continue  # no tool: the vendor refuses it
        kind = tool.get("type")
        if kind in _HOLDERS:
            yield from _vendor_run(tool, f"{field}.{place}.tools")
        elif not (_is_function(tool) if kind is None else type(kind) is str and _is_caller_run(kind)):
            yield f"{field}.{place}", tool


def trained_tools(body: Json) -> int:
    """Return how many tools the caller runs whose descriptions, which are long, the vendor has and not the body."""
    tools = body.get("tools")
    kinds = [tool.get("type") for tool in (tools if type(tools) is list else ()) if type(tool) is dict]
    return sum(kind not in (None, "function", "custom") for kind in kinds)


def _is_function(tool: Json) -> bool:
    """Return whether a tool without a type is the caller's: vendors name their own by a member."""
    return isinstance(tool.get("name"), str) or isinstance(tool.get("function"), dict | str)


def _is_caller_run(kind: str) -> bool:
    return kind in _CALLER_RUN or kind.startswith(_CALLER_RUN_FAMILIES)


def _count(value: object) -> int:
    """A count of calls; 0 if this is none."""
    return min(value, MAX_COUNT) if type(value) is int and value > 0 else 0
