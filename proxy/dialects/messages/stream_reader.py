"""Reads the events of a Messages target's stream.

Pure.
"""

from collections.abc import Callable

import orjson

from proxy.dialects.failures import failure_details
from proxy.dialects.messages.answer_reader import (
    note_unread,
    redacted_of,
    refusal_in,
    thinking_of,
)
from proxy.dialects.middle.answer import (
    AnswerEvent,
    Failed,
    Json,
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
from proxy.dialects.middle.answer_reading import integer_in, object_in, text_in
from proxy.dialects.middle.gathering import Budget, Gathered
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.request import AnswerPart, ToolCall
from proxy.dialects.middle.stops import EMPTY_OBJECT, stop_with


class MessagesStreamReader:
    """Reads one answer."""

    __slots__ = (
        "_arguments",
        "_budget",
        "_call",
        "_call_is_open",
        "_calls",
        "_deltas",
        "_readers",
        "_reason",
        "_sequence",
        "_signature",
        "_thinking",
        "left_out",
    )

    def __init__(self) -> None:
        self._budget = Budget()
        self._calls = 0
        self._call: ToolCallStarted | None = None
        """The last call."""
        self._call_is_open = False
        self._arguments = Gathered(self._budget)
        """Arguments of the last call."""
        self._thinking: Gathered | None = None
        """The text of the open block of thinking."""
        self._signature = Gathered(self._budget)
        self._reason = ""
        self._sequence: str | None = None
        self.left_out = LeftOut()
        self._readers: dict[object, Callable[[Json], list[AnswerEvent]]] = {
            "message_start": self._start,
            "content_block_start": self._block,
            "content_block_delta": self._delta,
            "content_block_stop": self._block_ended,
            "message_delta": self._message_delta,
            "message_stop": self._stopped,
            "error": self._failed,
        }
        self._deltas: dict[object, Callable[[Json], list[AnswerEvent]]] = {
            "text_delta": self._text_delta,
            "input_json_delta": self._arguments_delta,
            "thinking_delta": self._thinking_delta,
            "signature_delta": self._signature_delta,
        }

    def read(self, event: Json) -> list[AnswerEvent]:
        kind = event.get("type")
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        return [] if reader is None else reader(event)

    def done_received(self) -> list[AnswerEvent]:
        """A Messages stream ends with `message_stop`, but some servers leave it out."""
        return self._stopped({}) if self._reason else []

    def finished(self) -> list[AnswerEvent]:
        """Return nothing: a finish is told at once."""
        return []

    def _start(self, event: Json) -> list[AnswerEvent]:
        message = object_in(event, "message")
        return [Started(text_in(message, "id"))]

    def _block(self, event: Json) -> list[AnswerEvent]:
        block = object_in(event, "content_block")
        kind = block.get("type")
        note_unread(block, integer_in(event, "index") or 0, self.left_out)
        return [*self._call_ended(), *self._block_begun(block, kind)]

    def _block_begun(self, block: Json, kind: object) -> list[AnswerEvent]:
        if kind == "text":
            return self._text_delta(block)
        if kind == "thinking":
            self._thinking = Gathered(self._budget)
            self._signature = Gathered(self._budget)
            self._signature.add(text_in(block, "signature"))
            return self._thinking_delta(block)
        if kind == "redacted_thinking":
            return [ReasoningEnded(redacted_of(block))]
        return self._tool_use(block) if kind == "tool_use" else []

    def _tool_use(self, block: Json) -> list[AnswerEvent]:
        call = ToolCallStarted(self._calls, text_in(block, "id"), text_in(block, "name"))
        self._calls += 1
        self._call = call
        self._arguments = Gathered(self._budget)
        self._call_is_open = True
        arguments = object_in(block, "input")  # some servers send the complete input here
        delta = self._arguments_delta({"partial_json": orjson.dumps(arguments).decode()}) if arguments else []
        return [call, *delta]

    def _delta(self, event: Json) -> list[AnswerEvent]:
        delta = event.get("delta")
        if not isinstance(delta, dict):
            return []
        kind = delta.get("type")
        if kind == "citations_delta":
            self.left_out.add(f"content.{integer_in(event, 'index') or 0}.citations")
        reader = self._deltas.get(kind) if isinstance(kind, str) else None
        return [] if reader is None else reader(delta)

    def _text_delta(self, delta: Json) -> list[AnswerEvent]:
        text = delta.get("text")
        return [TextDelta(text)] if isinstance(text, str) and text else []

    def _arguments_delta(self, delta: Json) -> list[AnswerEvent]:
        text = text_in(delta, "partial_json")
        if not text or self._call is None or not self._call_is_open:  # the vendor's own tools have such deltas too
            return []
        self._arguments.add(text)
        return [ToolCallDelta(self._call.number, text)]

    def _thinking_delta(self, delta: Json) -> list[AnswerEvent]:
        text = text_in(delta, "thinking")
        if not text or self._thinking is None:
            return []
        self._thinking.add(text)
        return [ReasoningDelta(text)]

    def _signature_delta(self, delta: Json) -> list[AnswerEvent]:
        self._signature.add(text_in(delta, "signature"))
        return []

    def _block_ended(self, event: Json) -> list[AnswerEvent]:
        if self._thinking is None:
            return [*self._call_ended(), PartEnded()]
        text = self._thinking.text()
        self._thinking = None
        reasoning = thinking_of(text, self._signature.text())
        return [ReasoningEnded(reasoning) if reasoning.native is not None else PartEnded()]

    def _call_ended(self) -> list[AnswerEvent]:
        """Give a call without a delta empty arguments. They are not gathered: the call may have been cut off."""
        is_empty = self._call_is_open and not self._arguments.text().strip()
        self._call_is_open = False
        return [ToolCallDelta(self._call.number, EMPTY_OBJECT)] if is_empty and self._call is not None else []

    def _message_delta(self, event: Json) -> list[AnswerEvent]:
        delta = object_in(event, "delta")
        reason = text_in(delta, "stop_reason")
        if reason:
            self._reason = reason
            self._sequence = text_in(delta, "stop_sequence") or None
        refusal = refusal_in(delta)
        return [] if refusal is None else [RefusalDelta(refusal.text)]

    def _stopped(self, event: Json) -> list[AnswerEvent]:
        parts: list[AnswerPart] = []
        if self._call is not None:
            parts = [ToolCall(self._call.id, self._call.name, self._arguments.text())]
        return [*self._call_ended(), Stopped(stop_with(self._reason, parts, self._sequence))]

    def _failed(self, event: Json) -> list[AnswerEvent]:
        return [Failed(*failure_details(event))]
