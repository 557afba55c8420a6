"""Turns a whole answer into the events of a stream, and the events of a stream into a whole answer.

Pure. For servers that stream to a caller who did not ask for a stream, and for those that do not where he did.
"""

import orjson

from policy.billing import NO_DETAILS, Tokens
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
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.gathering import Budget, Gathered
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall
from proxy.dialects.middle.stops import failure_of, fill_empty_arguments
from proxy.errors import UpstreamResetError

Json = dict[str, object]
_TEXTS: dict[type, type[Text] | type[Refusal] | type[Reasoning]] = {
    TextDelta: Text,
    RefusalDelta: Refusal,
    ReasoningDelta: Reasoning,
}


def events_of(answer: Answer) -> list[AnswerEvent]:
    """The events that add up to `answer`."""
    events: list[AnswerEvent] = [Started(answer.id, answer.created_s)]
    logprobs = answer.logprobs
    calls = 0
    for part in answer.parts:
        if isinstance(part, ToolCall):
            events.append(ToolCallStarted(calls, part.id, part.name, part.custom, part.extra))
            events.append(ToolCallDelta(calls, part.arguments))
            calls += 1
        elif isinstance(part, Text):
            events.append(TextDelta(part.text, logprobs))
            logprobs = None
        elif isinstance(part, Refusal):
            events.append(RefusalDelta(part.text))
        else:
            if part.text:
                events.append(ReasoningDelta(part.text))
            if part.native is not None:
                events.append(ReasoningEnded(part))
                continue
        events.append(PartEnded())
    return [*events, DetailsSeen(answer.details), Stopped(answer.stop)]


class GatheredAnswer:
    """Gathers the events of a stream for a caller who gets the answer whole. Nothing is written before `end`."""

    __slots__ = (
        *("_budget", "_caller", "_calls", "_context", "_details", "_failure", "_is_open", "_logprobs", "_opening"),
        *("_parts", "_stopped", "_texts", "unknown_stop"),
    )
    streams = False

    def __init__(self, caller: Dialect, context: AnswerContext) -> None:
        self._caller = caller
        self._context = context
        self._budget = Budget()
        self._parts: list[AnswerPart] = []
        self._texts: list[Gathered] = []
        """The text of each part."""
        self._calls: dict[int, Gathered] = {}
        self._is_open = False
        """True if the last part may go on."""
        self._opening = Started("")
        self._stopped: Stopped | None = None
        self._failure: Failed | None = None
        self._details = NO_DETAILS
        self._logprobs: list[Json] = []
        self.unknown_stop = ""

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def write(self, events: list[AnswerEvent]) -> bytes:
        """Take the events of a stream, up to a failure."""
        for event in events:
            if not self.failed:
                self._add_event(event)
        return b""

    def finish(self) -> bytes:
        """Return nothing: the answer leaves with `end`."""
        return b""

    def end(self, tokens: Tokens | None) -> bytes:
        """The answer. Raises `UpstreamResetError` if the stream broke off."""
        if self._failure is not None:
            return orjson.dumps({"error": {"message": self._failure.message, "type": self._failure.kind}})
        if self._stopped is None:
            raise UpstreamResetError("the answer broke off")
        for part, text in zip(self._parts, self._texts, strict=True):
            if isinstance(part, ToolCall):
                part.arguments = text.text()
            elif not isinstance(part, Reasoning) or part.native is None:
                part.text = text.text()
        fill_empty_arguments(self._parts)
        answer = Answer(
            self._opening.id,
            self._opening.created_s,
            self._parts,
            self._stopped.stop,
            self._logprobs or None,
            self._details,
        )
        return orjson.dumps(self._caller.write_answer(answer, self._context, tokens))

    def _add_event(self, event: AnswerEvent) -> None:
        match event:
            case Started():
                self._opening = event
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                self._add_text(event)
            case ReasoningEnded():
                self._end_reasoning(event.reasoning)
            case ToolCallStarted():
                call = ToolCall(event.id, event.name, "", event.custom, event.extra)
                self._calls[event.number] = self._add_part(call)
                self._is_open = False
            case ToolCallDelta():
                self._calls[event.number].add(event.text)
            case PartEnded():
                self._is_open = False
            case DetailsSeen():
                self._details = event.details
            case Failed():
                self._failure = event
            case Stopped():
                self._failure = failure_of(event.stop)
                self._stopped = event
                self.unknown_stop = event.stop.word

    def _add_part(self, part: AnswerPart) -> Gathered:
        self._parts.append(part)
        self._texts.append(Gathered(self._budget))
        return self._texts[-1]

    def _add_text(self, event: TextDelta | RefusalDelta | ReasoningDelta) -> None:
        kind = _TEXTS[type(event)]
        goes_on = self._is_open and isinstance(self._parts[-1], kind)
        text = self._texts[-1] if goes_on else self._add_part(kind(""))
        text.add(event.text)
        self._is_open = True
        if isinstance(event, TextDelta):
            self._logprobs += event.logprobs or []

    def _end_reasoning(self, reasoning: Reasoning) -> None:
        """Take a block of reasoning with what is to be returned of it, in place of the text that its deltas told."""
        if self._is_open and isinstance(self._parts[-1], Reasoning):
            self._parts.pop()
            self._texts.pop()
        self._add_part(reasoning)
        self._is_open = False
