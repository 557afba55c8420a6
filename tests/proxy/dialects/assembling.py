"""Adds the events of a stream up to the whole answer that they tell."""

from collections.abc import Iterable

from policy.billing import NO_DETAILS
from proxy.dialects.middle.answer import (
    Answer,
    AnswerEvent,
    DetailsSeen,
    Failed,
    PartEnded,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    Started,
    Stopped,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall

_DELTAS: dict[type, type[Text] | type[Refusal] | type[Reasoning]] = {
    TextDelta: Text,
    RefusalDelta: Refusal,
    ReasoningDelta: Reasoning,
}


def assembled(events: Iterable[AnswerEvent]) -> Answer:
    """The answer. Fails for a stream that was cut, or that says something after its end."""
    parts: list[AnswerPart] = []
    calls: dict[int, ToolCall] = {}
    is_open = False
    start: Started | None = None
    stopped: Stopped | None = None
    details = NO_DETAILS
    logprobs: list[dict[str, object]] = []
    for event in events:
        assert stopped is None or isinstance(event, DetailsSeen)
        match event:
            case Started():
                assert start is None
                start = event
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                kind = _DELTAS[type(event)]
                last = parts[-1] if parts and is_open else None
                if isinstance(last, kind):
                    last.text += event.text
                else:
                    parts.append(kind(event.text))
                is_open = True
                if isinstance(event, TextDelta):
                    logprobs += event.logprobs or []
            case ReasoningEnded():
                if parts and is_open and isinstance(parts[-1], Reasoning):
                    parts.pop()
                parts.append(event.reasoning)
                is_open = False
            case ToolCallStarted():
                assert event.number not in calls
                calls[event.number] = ToolCall(event.id, event.name, "", event.custom, event.extra)
                parts.append(calls[event.number])
                is_open = False
            case ToolCallDelta():
                calls[event.number].arguments += event.text
            case PartEnded():
                is_open = False
            case DetailsSeen():
                details = event.details
            case Stopped():
                stopped = event
            case Failed():
                raise AssertionError(event)
    assert start is not None
    assert stopped is not None
    return Answer(start.id, start.created_s, parts, stopped.stop, logprobs or None, details)
