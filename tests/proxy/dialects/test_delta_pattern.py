"""Deltas that are recognized without being parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.delta_pattern import MATCHES_NOTHING, learn_from


@pytest.mark.parametrize("text", [b'"', b"a\n", b"\r", b'a\\\\"', b'","model":"gpt-x-2026'])
def test_text_that_leaves_its_string_does_not_match_the_pattern(text: bytes) -> None:
    pattern = learn_from(b'data: {"content":"a"}\n\n', b"", 0, 0)
    assert pattern is not None
    delta = b'data: {"content":"' + text + b'"}\n\n'
    assert pattern.joined_text(delta) is None
    assert pattern.rewritten(delta) is None


def test_escape_that_the_next_text_would_complete_does_not_match() -> None:
    pattern = learn_from(b'data: {"content":"a"}\n\n', b"", 0, 0)
    assert pattern is not None
    assert pattern.rewritten(b'data: {"content":"a\\"}\n\ndata: {"content":""b"}\n\n') is None


def test_pattern_joins_the_texts_of_whole_deltas_only() -> None:
    pattern = learn_from(b'data: {"content":"a"}\n\n', b"", 0, 0)
    assert pattern is not None
    one = b'data: {"content":"\\"one"}\n\n'
    two = b'data: {"content":""}\n\n'
    assert pattern.joined_text(one) == b'\\"one'
    assert pattern.joined_text(one + two + one) == b'\\"one\\"one'
    assert pattern.joined_text(one, two, one) == pattern.joined_text(one, two + one) == b'\\"one\\"one'
    assert pattern.joined_text(one[:20], one[20:]) == b'\\"one'
    assert pattern.joined_text(one, one[:-1]) is None
    others = (b"", one[:-1], one[1:], one + b"\n", one + b"data: [DONE]\n\n" + one, one + two[:-1])
    assert [pattern.joined_text(other) for other in others] == [None] * len(others)
    assert pattern.joined_text(b'data: {"content":"}\n\n') is None, "prefix and suffix must not overlap"


@given(st.binary())
def test_no_bytes_match_the_pattern_for_nothing(data: bytes) -> None:
    assert MATCHES_NOTHING.joined_text(data) is None
    assert MATCHES_NOTHING.joined_text(b"\0" + data + b"\0") is None
