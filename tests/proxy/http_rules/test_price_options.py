"""Options that a vendor bills beside tokens are found in each dialect's form."""

from typing import Any

import pytest

from proxy.errors import UntranslatableError
from proxy.http_rules.price_options import check_price_options
from proxy.refusals import MalformedRequestError
from tests.fakes.wire import FakeIncoming
from tests.proxy.http_rules.test_vendor_state import CHAT, MESSAGES, RESPONSES, sent


def refusal(path: str, body: dict[str, Any] | bytes, *headers: tuple[str, str]) -> str | None:
    """The field that is refused; None if the request passes."""
    request = sent(path, body)
    request.upload = None
    request.incoming = FakeIncoming(path)
    request.incoming.headers.extend(headers)
    try:
        check_price_options(request)
    except UntranslatableError as error:
        return error.field
    return None


FUNCTION = {"type": "function", "function": {"name": "read"}}
RESPONSES_FUNCTION = {"type": "function", "name": "read"}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("service_tier", tier) for tier in ("priority", "flex", "scale", "Priority", "", 1, ["auto"])),
        ("speed", "fast"),
        ("inference_geo", "us"),
        ("web_search_options", {}),
        ("search_parameters", {"mode": "on"}),
        ("plugins", [{"id": "web"}]),
        ("mcp_servers", [{"type": "url", "url": "https://x.example"}]),
        ("anthropic_beta", ["context-1m-2025-08-07"]),
        ("betas", "Fast-Mode-2026-02-01"),
    ],
)
def test_member_that_changes_the_price_is_refused_on_every_path(path: str, name: str, value: object) -> None:
    assert refusal(path, {name: value}) == name


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("service_tier", tier) for tier in (None, "auto", "default", "standard_only")),
        ("speed", "standard"),
        ("inference_geo", "global"),
        ("mcp_servers", []),
        ("betas", ["interleaved-thinking-2025-05-14"]),
        ("tools", None),
        ("tools", []),
    ],
)
def test_member_that_changes_no_price_passes(path: str, name: str, value: object) -> None:
    assert refusal(path, {name: value}) is None


@pytest.mark.parametrize("value", ["context-1m-2025-08-07", "a-1, Context-1M-2025-08-07", "fast-mode-2026-02-01,b-2"])
def test_beta_that_changes_the_price_is_refused_in_the_header(value: str) -> None:
    assert refusal(MESSAGES, {}, ("anthropic-beta", "a-1"), ("anthropic-beta", value)) == "anthropic-beta"
    assert refusal(MESSAGES, {}, ("anthropic-beta", "interleaved-thinking-2025-05-14")) is None


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (CHAT, FUNCTION),
        (CHAT, {"function": {"name": "read"}}),
        (CHAT, {"type": "custom", "custom": {"name": "read"}}),
        (MESSAGES, {"name": "read", "input_schema": {}}),
        (MESSAGES, {"type": "custom", "name": "read", "input_schema": {}}),
        (RESPONSES, RESPONSES_FUNCTION),
        (RESPONSES, {"type": "custom", "name": "read"}),
        (RESPONSES, {"type": "namespace", "name": "n", "tools": [RESPONSES_FUNCTION]}),
    ],
)
def test_tool_that_the_caller_runs_passes(path: str, tool: dict[str, Any]) -> None:
    assert refusal(path, {"tools": [tool]}) is None


VENDOR_RUN: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {"type": kind}) for kind in ("web_search", "browser_search", "code_interpreter", "file_search", "mcp")),
    (CHAT, {"google_search": {}}),
    *(
        (MESSAGES, {"type": kind, "name": "x"})
        for kind in ("web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "computer_20250124")
    ),
    (MESSAGES, {"type": "mcp_toolset", "mcp_server_name": "x"}),
    *(
        (RESPONSES, {"type": kind})
        for kind in (
            *("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation"),
            *("computer_use_preview", "mcp", "shell"),
        )
    ),
    (RESPONSES, {"type": None}),
]


@pytest.mark.parametrize(("path", "tool"), VENDOR_RUN)
def test_tool_that_the_vendor_runs_is_refused(path: str, tool: dict[str, Any]) -> None:
    own = {"name": "read", "type": "function", "function": {}}
    assert refusal(path, {"tools": [own, tool]}) == "tools.1"


def test_tool_that_the_vendor_runs_is_found_where_tools_are_nested() -> None:
    namespace = {"type": "namespace", "name": "n", "tools": [RESPONSES_FUNCTION, {"type": "mcp"}]}
    assert refusal(RESPONSES, {"tools": [namespace]}) == "tools.0.tools.1"
    item = {"type": "additional_tools", "tools": [{"type": "web_search"}]}
    assert refusal(RESPONSES, {"input": [{"role": "user", "content": "x"}, item]}) == "input.1.tools.0"
    assert refusal(RESPONSES, {"tools": {"type": "web_search"}}) == "tools"


@pytest.mark.parametrize(
    "body",
    [b'{"service_tier":"priority","service_tier":"auto"}', b'{"tools":[{"type":"web_search","type":"function"}]}'],
)
def test_member_that_is_given_twice_hides_nothing(body: bytes) -> None:
    with pytest.raises(MalformedRequestError, match="is given twice"):
        refusal(CHAT, body)
