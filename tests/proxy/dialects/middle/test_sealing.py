from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.middle.sealing import MARK, has_reasoning, seal, unseal


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9)), st.sampled_from(["messages", "responses"]))
def test_sealed_block_is_read_again(native: dict[str, str], dialect: str) -> None:
    sealed = seal(dialect, native)
    assert sealed.startswith(MARK)
    assert unseal(sealed) == (dialect, native)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "EqQBCgIYAhIM",
        MARK,
        f"{MARK}messages",
        f"{MARK}messages.",
        f"{MARK}messages.!",
        f"{MARK}messages.WzFd",
        f"{MARK}messages.é",
    ],
)
def test_other_text_is_not_unsealed(text: str) -> None:
    assert unseal(text) is None


THINKING = {"type": "thinking", "thinking": "", "signature": "s"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, False),
        ({"messages": "x"}, False),
        ({"messages": [{"role": "user", "content": "hi"}]}, False),
        ({"messages": [None, {"content": [None, {"type": "text"}]}]}, False),
        ({"messages": [{"content": [THINKING]}]}, True),
        ({"messages": [{"content": [{"type": "redacted_thinking"}]}]}, True),
        ({"messages": [{"content": "a", "reasoning_details": []}]}, True),
        ({"input": "x"}, False),
        ({"input": [{"role": "user", "content": "x"}, "y"]}, False),
        ({"input": [{"type": "reasoning"}]}, True),
    ],
)
def test_reasoning_in_a_body_is_noticed(body: dict[str, Any], expected: bool) -> None:
    assert has_reasoning(body) is expected
