import pytest

from proxy.dialects.middle.answer import (
    BROKEN,
    CONTEXT_FULL,
    END,
    MAX_TOKENS,
    PAUSED,
    REFUSED,
    STOP_SEQUENCE,
    TOOL_CALLS,
    Stop,
)
from proxy.dialects.middle.request import AnswerPart, Text, ToolCall
from proxy.dialects.middle.stops import MAX_WORD_CHARS, failure_of, stop_of, stop_with

CALL = ToolCall("c", "f", '{"a":1}')
CUT = ToolCall("c", "f", '{"a":')


@pytest.mark.parametrize(
    ("reason", "parts", "expected"),
    [
        (END, [Text("hi")], END),
        (END, [Text("hi"), CALL], TOOL_CALLS),
        (TOOL_CALLS, [CALL], TOOL_CALLS),
        (TOOL_CALLS, [Text("hi")], END),
        (MAX_TOKENS, [CALL], TOOL_CALLS),
        (MAX_TOKENS, [CALL, CUT], MAX_TOKENS),
        (REFUSED, [CALL], REFUSED),
    ],
)
def test_calls_of_tools_outrank_the_vendors_word(reason: str, parts: list[AnswerPart], expected: str) -> None:
    assert stop_of(reason, None, parts) == Stop(expected)


def test_sequence_is_told_only_where_it_ended_the_answer() -> None:
    assert stop_of(STOP_SEQUENCE, "END", []) == Stop(STOP_SEQUENCE, "END")
    assert stop_of(END, "END", []) == Stop(END)


def test_input_of_a_custom_tool_need_not_be_json() -> None:
    assert stop_of(MAX_TOKENS, None, [ToolCall("c", "f", "plain", custom=True)]) == Stop(TOOL_CALLS)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("stop", END),
        ("model_length", MAX_TOKENS),
        ("MAX_TOKENS", MAX_TOKENS),
        ("SAFETY", REFUSED),
        ("RECITATION", REFUSED),
        ("content_filter: PROHIBITED_CONTENT", REFUSED),
        ("refusal", REFUSED),
        ("pause_turn", PAUSED),
        ("model_context_window_exceeded", CONTEXT_FULL),
        ("load", END),
        ("unload", END),
        ("abort", BROKEN),
        ("insufficient_system_resource", BROKEN),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", BROKEN),
        ("", END),
    ],
)
def test_words_of_all_vendors_are_known_in_each_dialect(word: str, expected: str) -> None:
    stop = stop_with(word, [])
    assert stop.reason == expected
    assert stop.word == (word if expected == BROKEN else "")


def test_unknown_word_is_kept_for_the_log_and_has_the_meaning_of_its_place() -> None:
    assert (stop_with("because", [CALL]).reason, stop_with("because", [CALL]).word) == (TOOL_CALLS, "because")
    assert stop_with("because", [], otherwise=MAX_TOKENS).reason == MAX_TOKENS
    assert len(stop_with("x" * 1000, []).word) == MAX_WORD_CHARS


def test_answer_that_broke_off_is_a_failure_whatever_it_called() -> None:
    failure = failure_of(stop_with("Insufficient_System_Resource", [CALL]))
    assert failure is not None
    assert failure.kind == "overloaded_error"
    assert failure_of(stop_with("stop", [CALL])) is None
