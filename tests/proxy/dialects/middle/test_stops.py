import pytest

from proxy.dialects.middle.answer import END, MAX_TOKENS, REFUSED, STOP_SEQUENCE, TOOL_CALLS, Stop
from proxy.dialects.middle.request import AnswerPart, Text, ToolCall
from proxy.dialects.middle.stops import stop_of

CALL, CUT = ToolCall("c", "f", '{"a":1}'), ToolCall("c", "f", '{"a":')


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
