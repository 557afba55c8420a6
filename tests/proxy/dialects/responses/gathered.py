"""Adds up the events of a stream to the whole answer; the test's own rules, by the docstrings of the middle."""

from collections.abc import Iterable

from proxy.dialects.middle.answer import (
    Answer,
    DetailsSeen,
    Event,
    PartEnded,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    Started,
    Stop,
    Stopped,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall


def gathered(events: Iterable[Event]) -> Answer:
    answer = Answer("", 0, [], Stop("cut"))
    calls: dict[int, ToolCall] = {}
    is_open = False
    for event in events:
        match event:
            case Started(id, created_s):
                answer.id, answer.created_s = id, created_s
            case TextDelta(text, logprobs):
                _add(answer.parts, Text(text), is_open)
                answer.logprobs = (answer.logprobs or []) + logprobs if logprobs else answer.logprobs
            case RefusalDelta(text):
                _add(answer.parts, Refusal(text), is_open)
            case ReasoningDelta(text):
                _add(answer.parts, Reasoning(text), is_open)
            case ReasoningEnded(reasoning):
                if is_open and answer.parts and isinstance(answer.parts[-1], Reasoning):
                    assert answer.parts[-1].text == reasoning.text
                    answer.parts.pop()
                answer.parts.append(reasoning)
            case ToolCallStarted(number, id, name, custom, extra):
                calls[number] = ToolCall(id, name, "", custom, extra)
                answer.parts.append(calls[number])
            case ToolCallDelta(number, text):
                calls[number].arguments += text
            case DetailsSeen(details):
                answer.details = details
            case Stopped(stop):
                answer.stop = stop
        is_open = not isinstance(event, PartEnded | ReasoningEnded)
    return answer


def _add(parts: list[AnswerPart], new: Text | Refusal | Reasoning, is_open: bool) -> None:
    last = parts[-1] if parts and is_open else None
    if isinstance(last, Text | Refusal | Reasoning) and type(last) is type(new):
        last.text += new.text
    else:
        parts.append(new)
