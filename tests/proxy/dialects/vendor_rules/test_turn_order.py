"""Results stand directly behind their calls, whatever order a caller sends; nothing is lost or doubled."""

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.middle.request import (
    ASSISTANT,
    SYSTEM,
    USER,
    ConversationTurn,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    TurnPart,
)
from proxy.dialects.vendor_rules.turn_order import NO_RESULT, results_behind_calls

ROLES = {"user": USER, "system": SYSTEM, "assistant": ASSISTANT}


def turn(word: str) -> ConversationTurn:
    """`call a`, `result a`, or who says something: `user`, `assistant`, `system`."""
    kind, _, id = word.partition(" ")
    if kind == "call":
        return ConversationTurn(ASSISTANT, [ToolCall(id, "f", "{}")])
    if kind == "result":
        return ConversationTurn(USER, [ToolResult(id, [Text(f"result of {id}")])])
    return ConversationTurn(ROLES[kind], [Text(word)])


def told(turns: list[ConversationTurn]) -> list[str]:
    return [word for each in turns for word in map(word_of, each.parts)]


def word_of(part: TurnPart) -> str:
    if isinstance(part, ToolCall):
        return f"call {part.id}"
    if isinstance(part, ToolResult):
        missing = part.parts == [Text(NO_RESULT)]
        return f"{'no ' if missing else ''}result {part.call_id}"
    assert isinstance(part, Text | Refusal | Reasoning)
    return part.text


def check_accepted(turns: list[ConversationTurn]) -> None:
    """Check the order that both vendors require: each call's result is in the turn behind it, and no other result."""
    open_ids: list[str] = []
    for each in turns:
        results = [part.call_id for part in each.parts if isinstance(part, ToolResult)]
        if open_ids:
            assert each.role == USER
        assert sorted(results) == sorted(open_ids), told(turns)
        kinds = [isinstance(part, ToolResult) for part in each.parts]
        assert kinds == sorted(kinds, reverse=True), "results come first"
        open_ids = [part.id for part in each.parts if isinstance(part, ToolCall)]
    assert not open_ids


@pytest.mark.parametrize("speaker", ["user", "assistant", "system"])
@pytest.mark.parametrize("words", list(permutations(["call a", "{}", "result a"])))
def test_each_order_of_a_call_a_message_and_a_result_is_accepted(words: tuple[str, ...], speaker: str) -> None:
    turns = [turn("user"), *(turn(word.format(speaker)) for word in words)]
    ordered = results_behind_calls(turns)
    check_accepted(ordered)
    assert sorted(told(ordered)) == sorted(told(turns))
    if words[-1] == "result a":
        assert ordered[-1].role != ASSISTANT, "the model is to answer the result"


@pytest.mark.parametrize("words", list(permutations(["call a", "call b", "result a", "result b", "user"])))
def test_each_order_of_parallel_calls_is_accepted(words: tuple[str, ...]) -> None:
    turns = [turn("user"), *map(turn, words)]
    ordered = results_behind_calls(turns)
    check_accepted(ordered)
    assert sorted(told(ordered)) == sorted(told(turns))


@given(st.lists(st.sampled_from([f"{kind} {id}" for kind, id in product(["call", "result"], "abc")] + list(ROLES))))
def test_any_history_is_accepted_and_nothing_is_lost(words: list[str]) -> None:
    turns = [turn("user"), *map(turn, words)]
    ordered = results_behind_calls(turns)
    check_accepted(ordered)
    texts = told(ordered)
    for call in (f"call {id}" for id in "abc"):
        assert texts.count(call) == words.count(call)
    for id in "abc":
        as_text = texts.count(f"result of {id}")
        assert texts.count(f"result {id}") + as_text == words.count(f"result {id}")
        assert texts.count(f"result {id}") + texts.count(f"no result {id}") == words.count(f"call {id}")
    for speaker in ("assistant", "system"):
        assert texts.count(speaker) == words.count(speaker)
    assert results_behind_calls(ordered) == ordered


def test_a_result_without_a_call_becomes_text_in_its_place() -> None:
    turns = [turn("user"), turn("result a"), turn("assistant"), turn("user")]
    assert told(results_behind_calls(turns)) == ["user", "Result of tool call a:", "result of a", "assistant", "user"]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    turns = [turn("user"), turn("call a"), turn("user")]
    assert told(results_behind_calls(turns)) == ["user", "call a", "no result a", "user"]


def test_ids_that_repeat_in_each_turn_belong_to_the_turn_before() -> None:
    turns = [ConversationTurn(USER, [Text("q")])]
    for number in range(3):
        turns += [
            ConversationTurn(ASSISTANT, [ToolCall("0", f"f{number}", "{}")]),
            ConversationTurn(USER, [ToolResult("0", [Text(f"r{number}")])]),
        ]
    assert results_behind_calls(turns) == turns


def test_turns_without_tools_stay_as_they_are() -> None:
    turns = [turn("user"), turn("assistant"), turn("assistant"), turn("user")]
    assert results_behind_calls(turns) is turns
