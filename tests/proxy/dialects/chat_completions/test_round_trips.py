"""Chat Completions → middle → Chat Completions is the identity on requests that the dialect can say."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.chat_completions.request_reader import read_request
from proxy.dialects.chat_completions.request_writer import write_request
from proxy.errors import UntranslatableError
from tests.proxy.dialects.chat_completions.requests import REQUESTS, validated


@given(REQUESTS)
def test_reading_and_writing_a_request_is_the_identity(body: dict[str, Any]) -> None:
    expected = orjson.loads(orjson.dumps(body))
    assert validated(write_request(read_request(body), "gpt-x", "VENDOR_B")) == expected


NAMES = ["messages", "role", "content", "type", "text", "tools", "tool_choice", "function", "custom", "name", "file"]
NAMES += ["tool_calls", "image_url", "url", "stop", "metadata", "arguments", "reasoning_effort", "response_format"]
NAMES += ["json_schema", "reasoning_details", "tool_call_id", "cache_control", "stream_options", "n", "allowed_tools"]
WORDS = [
    "user",
    "assistant",
    "tool",
    "system",
    "text",
    "image_url",
    "function",
    "custom",
    "auto",
    "{",
    "",
    "json_schema",
]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(0, 1) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
        optional=dict.fromkeys(("content", "tool_calls", "reasoning_details", "tool_call_id", "refusal"), JUNK),
    ),
    max_size=2,
)


@given(st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=5), st.none() | MESSAGES)
def test_any_request_is_read_or_refused(body: dict[str, Any], messages: Any) -> None:
    request_body = body | ({} if messages is None else {"messages": messages})
    refused_field: str | None = None
    try:
        orjson.dumps(write_request(read_request(request_body), "gpt-x", "VENDOR_C"))
    except UntranslatableError as error:
        refused_field = error.field
    assert refused_field != ""
