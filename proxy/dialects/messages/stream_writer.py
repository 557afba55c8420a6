"""Writes a Messages caller's stream.

Pure. One block is open at a time. `message_delta` and `message_stop` wait for the end, since usage may come last.
"""

from collections.abc import Callable
from typing import Any

import orjson

from policy.billing import NO_DETAILS, Tokens
from proxy.dialects.messages.answer_blocks import (
    call_id,
    extra_block,
    message_id,
    reasoning_block,
    stop_members,
    tells_reasoning,
    usage_member,
    usage_of,
)
from proxy.dialects.middle.answer import (
    AnswerEvent,
    DetailsSeen,
    Failed,
    Json,
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
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.gathering import Budget, Gathered
from proxy.dialects.middle.part_order import PartOrder

_NONE, _TEXT, _REFUSAL, _THINKING, _CALL = range(5)
"""The kinds of an open block."""
_DELTA_ENDS = b"}}\n\n"


class MessagesStreamWriter:
    """Writes one answer."""

    __slots__ = (
        "_calls",
        "_context",
        "_details",
        "_index",
        "_message_id",
        "_open",
        "_order",
        "_prefix",
        "_refusal_text",
        "_stop",
        "_writers",
    )

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        budget = Budget()
        self._order = PartOrder(budget)
        self._refusal_text = Gathered(budget)
        self._message_id = ""
        """Empty until `message_start` was written."""
        self._open = _NONE
        self._index = -1
        """Index of the open block, or of the last one."""
        self._prefix = b""
        """A delta of the open block, up to its text."""
        self._calls = 0
        self._details = NO_DETAILS
        self._stop: Stop | None = None
        shows_reasoning = tells_reasoning(context.request)
        self._writers: dict[type[Any], Callable[[Any], bytes]] = {
            Started: self._started,
            TextDelta: self._text,
            RefusalDelta: self._refusal,
            ReasoningDelta: self._reasoning if shows_reasoning else _left_out,
            ReasoningEnded: self._reasoning_ended if shows_reasoning else _left_out,
            ToolCallStarted: self._call_started,
            ToolCallDelta: self._call_delta,
            PartEnded: self._part_ended,
            DetailsSeen: self._details_seen,
            Stopped: self._stopped,
            Failed: self._failed,
        }

    def write(self, events: list[AnswerEvent]) -> bytes:
        ordered = self._order.feed(events)
        if len(ordered) == 1:
            event = ordered[0]
            return self._writers[type(event)](event)
        return b"".join([self._writers[type(event)](event) for event in ordered])

    def finish(self) -> bytes:
        return self._message_delta(None)

    def closing(self, tokens: Tokens | None) -> bytes:
        """Return the end, after `Stopped`. Repeats a `message_delta` of `finish`: each one replaces the last."""
        return self._close() + self._message_delta(tokens) + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    def _message_delta(self, tokens: Tokens | None) -> bytes:
        assert self._stop is not None
        payload: Json = {
            "type": "message_delta",
            "delta": stop_members(self._stop, self._refusal_text.text(), self._context.request.sampling.stop),
            "usage": usage_of(tokens, self._details, self._context),
        }
        return _frame(payload)

    def _started(self, event: Started) -> bytes:
        if self._message_id:
            return b""
        self._message_id = message_id(event.id, event.created_s or self._context.created_s)
        message: Json = {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._context.slug,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_member(None, NO_DETAILS),
        }
        return _frame({"type": "message_start", "message": message})

    def _text(self, event: TextDelta) -> bytes:
        if not event.text:
            return b""
        if event.logprobs:
            self._context.left_out.add("logprobs")
        opening = b"" if self._open == _TEXT else self._begin(_TEXT, {"type": "text", "text": ""})
        return opening + self._prefix + orjson.dumps(event.text) + _DELTA_ENDS

    def _refusal(self, event: RefusalDelta) -> bytes:
        if not event.text:
            return b""
        self._refusal_text.add(event.text)
        opening = b"" if self._open == _REFUSAL else self._begin(_REFUSAL, {"type": "text", "text": ""})
        return opening + self._prefix + orjson.dumps(event.text) + _DELTA_ENDS

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        if not event.text:
            return b""
        opening = b"" if self._open == _THINKING else self._begin_thinking()
        return opening + self._prefix + orjson.dumps(event.text) + _DELTA_ENDS

    def _reasoning_ended(self, event: ReasoningEnded) -> bytes:
        block = reasoning_block(event.reasoning, self._context.seals)
        if block is None:
            return self._close()
        if block["type"] == "redacted_thinking" and self._open != _THINKING:
            return self._begin(_NONE, block) + self._end()
        opening = b"" if self._open == _THINKING else self._begin_thinking()
        if opening and block.get("thinking"):
            opening += self._prefix + orjson.dumps(block["thinking"]) + _DELTA_ENDS
        signature = block.get("signature") or block.get("data") or ""
        return opening + _delta(self._index, {"type": "signature_delta", "signature": signature}) + self._close()

    def _call_started(self, event: ToolCallStarted) -> bytes:
        written_id = call_id(event.id, self._message_id, self._calls)
        self._calls += 1
        extra = b""
        if event.extra:
            extra = self._begin(_NONE, extra_block(written_id, event.extra, self._context.seals)) + self._end()
        return extra + self._begin(_CALL, {"type": "tool_use", "id": written_id, "name": event.name, "input": {}})

    def _call_delta(self, event: ToolCallDelta) -> bytes:
        if not event.text or self._open != _CALL:
            return b""
        return self._prefix + orjson.dumps(event.text) + _DELTA_ENDS

    def _part_ended(self, event: PartEnded) -> bytes:
        return self._close()

    def _details_seen(self, event: DetailsSeen) -> bytes:
        self._details = event.details
        return b""

    def _stopped(self, event: Stopped) -> bytes:
        self._stop = event.stop
        return (b"" if self._message_id else self._started(Started(""))) + self._close()

    def _failed(self, event: Failed) -> bytes:
        return _frame({"type": "error", "error": {"type": event.kind, "message": event.message}})

    def _begin_thinking(self) -> bytes:
        return self._begin(_THINKING, {"type": "thinking", "thinking": "", "signature": ""})

    def _begin(self, kind: int, block: Json) -> bytes:
        """Open the next block, after closing the open one. Writes `message_start` if the vendor did not begin."""
        opening = b"" if self._message_id else self._started(Started(""))
        opening += self._close()
        self._open = kind
        self._index += 1
        if kind != _NONE:
            self._prefix = _delta_prefix(self._index, kind)
        return opening + _frame({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        return b"" if self._open == _NONE else self._end()

    def _end(self) -> bytes:
        self._open = _NONE
        return _frame({"type": "content_block_stop", "index": self._index})


def _left_out(event: AnswerEvent) -> bytes:
    return b""


_DELTAS = {
    _TEXT: ("text_delta", "text"),
    _REFUSAL: ("text_delta", "text"),
    _THINKING: ("thinking_delta", "thinking"),
    _CALL: ("input_json_delta", "partial_json"),
}


def _delta_prefix(index: int, kind: int) -> bytes:
    name, member = _DELTAS[kind]
    return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":' % (
        index,
        name.encode(),
        member.encode(),
    )


def _delta(index: int, delta: Json) -> bytes:
    return _frame({"type": "content_block_delta", "index": index, "delta": delta})


def _frame(payload: Json) -> bytes:
    return b"event: " + str(payload["type"]).encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"
