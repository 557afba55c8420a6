"""Tools that the vendor runs: how many calls a request allows, or what is missing to say it."""

from typing import Any

import pytest

from proxy.accounting.cost_bounds.vendor_tools import most_tool_calls
from tests.proxy.accounting.cost_bounds.calls import CHAT, MESSAGES, RESPONSES

FUNCTION = {"type": "function", "function": {"name": "f"}}
SEARCH = {"type": "web_search"}
SEARCH_3 = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
FETCH_2 = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2}
CODE = {"type": "code_execution_20250825", "name": "code_execution"}


@pytest.mark.parametrize(
    ("body", "path", "calls"),
    [
        ({}, CHAT, 0),
        ({"tools": None}, CHAT, 0),
        ({"tools": [FUNCTION, {"type": "custom", "name": "c"}, {"function": {"name": "f"}}]}, CHAT, 0),
        ({"tools": [FUNCTION, SEARCH]}, CHAT, "tools.1.max_uses"),
        ({"tools": [{"google_search": {}}]}, CHAT, "tools.0.max_uses"),
        ({"tools": [{"googleSearch": {}}, {"name": "f"}]}, RESPONSES, "max_tool_calls"),
        ({"enable_search": True}, CHAT, "enable_search"),
        ({"enable_search": False}, CHAT, 0),
        ({"search_settings": {"include_domains": []}}, CHAT, "search_settings"),
        ({"web_search_options": None}, CHAT, 0),
        ({"web_search_options": {}}, CHAT, "web_search_options"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, MESSAGES, 0),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "memory_20250818"}]}, MESSAGES, 0),
        ({"tools": [SEARCH_3]}, MESSAGES, 3),
        ({"tools": [SEARCH_3, FETCH_2]}, MESSAGES, 5),
        ({"tools": [SEARCH_3, CODE]}, MESSAGES, "tools.1.max_uses"),
        ({"tools": [SEARCH_3 | {"max_uses": 0}]}, MESSAGES, "tools.0.max_uses"),
        ({"tools": [SEARCH_3 | {"max_uses": "3"}]}, MESSAGES, "tools.0.max_uses"),
        ({"tools": [{"type": 7}]}, MESSAGES, "tools.0.max_uses"),
        ({"mcp_servers": []}, MESSAGES, 0),
        ({"mcp_servers": [{"url": "https://mcp.test"}]}, MESSAGES, "mcp_servers"),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "local_shell"}]}, RESPONSES, 0),
        ({"tools": [SEARCH]}, RESPONSES, "max_tool_calls"),
        ({"tools": [SEARCH, {"type": "code_interpreter"}], "max_tool_calls": 4}, RESPONSES, 4),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [FUNCTION]}]}, RESPONSES, 0),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [SEARCH]}]}, RESPONSES, "max_tool_calls"),
        ({"input": [{"type": "additional_tools", "tools": [SEARCH]}]}, RESPONSES, "max_tool_calls"),
        ({"input": [{"type": "tool_search_output", "tools": [SEARCH]}]}, RESPONSES, "max_tool_calls"),
        ({"input": [{"type": "mcp_list_tools", "tools": [{"name": "f", "input_schema": {}}]}]}, RESPONSES, 0),
        ({"tools": {"type": "web_search"}}, CHAT, "tools.max_uses"),
        ({"prompt": {"id": "pmpt_1"}}, RESPONSES, "max_tool_calls"),
        ({"prompt": {"id": "pmpt_1"}, "max_tool_calls": 2}, RESPONSES, 2),
        ({"input": [{"type": "additional_tools", "tools": [FUNCTION]}, "x"], "tools": ["x"]}, RESPONSES, 0),
    ],
)
def test_calls_are_bounded_by_the_request_or_the_missing_member_is_named(
    body: dict[str, Any], path: str, calls: int | str
) -> None:
    assert most_tool_calls(body, path) == calls
