"""Parallel calls come out one after the other, whatever the order in which their pieces arrive."""

import json
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.middle.answer import (
    END,
    AnswerEvent,
    PartEnded,
    Stop,
    Stopped,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from proxy.dialects.middle.gathering import Budget
from proxy.dialects.middle.part_order import PartOrder
from proxy.errors import UpstreamCutError

STOPPED = Stopped(Stop(END))


def started(number: int) -> ToolCallStarted:
    return ToolCallStarted(number, f"call_{number}", "f")


def ordered(*events: AnswerEvent) -> list[AnswerEvent]:
    order = PartOrder(Budget())
    return [going for event in events for going in order.feed([event])]


def test_events_without_calls_pass() -> None:
    assert ordered(TextDelta("a"), PartEnded(), STOPPED) == [TextDelta("a"), PartEnded(), STOPPED]


def test_call_streams_while_it_is_the_only_one() -> None:
    order = PartOrder(Budget())
    assert order.feed([started(0)]) == [started(0)]
    assert order.feed([ToolCallDelta(0, '{"a"')]) == [ToolCallDelta(0, '{"a"')]


def test_call_ends_when_another_begins_after_its_whole_object() -> None:
    events: list[AnswerEvent] = [
        started(0),
        ToolCallDelta(0, '{"a":"}"'),
        ToolCallDelta(0, "}"),
        started(1),
        ToolCallDelta(1, "{"),
    ]
    assert ordered(*events) == [*events[:3], PartEnded(), *events[3:]]


def test_interleaved_calls_are_taken_apart() -> None:
    pieces: list[AnswerEvent] = [
        ToolCallDelta(0, '{"a":'),
        ToolCallDelta(1, '{"b":'),
        ToolCallDelta(0, "1}"),
        ToolCallDelta(1, "2}"),
    ]
    assert ordered(started(0), started(1), *pieces, STOPPED) == [
        *(started(0), pieces[0], pieces[2], PartEnded()),
        *(started(1), pieces[1], pieces[3], PartEnded()),
        STOPPED,
    ]


def test_call_without_arguments_ends_with_the_answer() -> None:
    assert ordered(started(0), started(1), ToolCallDelta(1, "{}"), STOPPED) == [
        *(started(0), PartEnded(), started(1), ToolCallDelta(1, "{}"), PartEnded()),
        STOPPED,
    ]


def test_text_waits_for_the_open_call() -> None:
    events: list[AnswerEvent] = [started(0), ToolCallDelta(0, "{"), TextDelta("x"), ToolCallDelta(0, "}"), STOPPED]
    assert ordered(*events) == [
        started(0),
        ToolCallDelta(0, "{"),
        ToolCallDelta(0, "}"),
        PartEnded(),
        TextDelta("x"),
        STOPPED,
    ]


def test_end_of_a_call_that_its_vendor_tells_is_taken() -> None:
    events: list[AnswerEvent] = [
        started(0),
        ToolCallDelta(0, "not json"),
        PartEnded(),
        started(1),
        PartEnded(),
        STOPPED,
    ]
    assert ordered(*events) == events


def test_waiting_pieces_are_bounded() -> None:
    order = PartOrder(Budget(10))
    order.feed([started(0), started(1)])
    with pytest.raises(UpstreamCutError):
        order.feed([ToolCallDelta(1, "x" * 10)])


TEXTS = st.text(alphabet='{}[]"\\ab', max_size=8)


def as_stream(pieces: list[tuple[int, str]]) -> list[AnswerEvent]:
    """The pieces as events; each call starts with its first piece."""
    events: list[AnswerEvent] = []
    for number, text in pieces:
        if started(number) not in events:
            events.append(started(number))
        events.append(ToolCallDelta(number, text))
    return [*events, STOPPED]


@given(st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=4), st.randoms(use_true_random=False))
def test_interleaved_objects_are_kept_whole(objects: list[dict[str, str]], random: Random) -> None:
    remainders = {number: json.dumps(value) for number, value in enumerate(objects)}
    pieces = []
    while remainders:
        number = random.choice(list(remainders))
        size = random.randint(1, 5)
        pieces.append((number, remainders[number][:size]))
        remainders[number] = remainders[number][size:]
        if not remainders[number]:
            del remainders[number]
    out = ordered(*as_stream(pieces))
    _assert_nested(out)
    for number, value in enumerate(objects):
        text = "".join(event.text for event in out if isinstance(event, ToolCallDelta) and event.number == number)
        assert json.loads(text) == value


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS), max_size=20))
def test_calls_of_any_text_are_nested(pieces: list[tuple[int, str]]) -> None:
    out = ordered(*as_stream(pieces))
    assert out[-1] == STOPPED
    assert {event.number for event in out if isinstance(event, ToolCallStarted)} == {number for number, _ in pieces}
    _assert_nested(out)


def _assert_nested(events: Sequence[AnswerEvent]) -> None:
    open_call: int | None = None
    for event in events:
        if isinstance(event, ToolCallStarted):
            assert open_call is None
            open_call = event.number
        elif isinstance(event, ToolCallDelta):
            assert event.number == open_call
        elif isinstance(event, PartEnded):
            open_call = None
