"""Translates Chat Completions answers into Messages: bodies and streams.

Pure. The last two events of a stream wait for its end, because Chat Completions sends usage after the finish reason.
"""

from collections.abc import Collection
from dataclasses import dataclass

import orjson

from policy.billing import Tokens
from proxy.accounting.metering import Reported
from proxy.dialects.failures import failure_details, reports_failure
from proxy.dialects.translation.translated_answer import index_in, object_in, objects_in, text_in
from proxy.dialects.usage import OpenAiMeter
from proxy.json_text.json_edit import Json

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def messages_usage(tokens: Tokens | None) -> Json:
    """The usage object of Messages, where `input_tokens` excludes cache reads."""
    known = tokens or Tokens()
    return {
        "input_tokens": known.input - known.cached_input,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": known.cached_input,
        "output_tokens": known.output,
    }


def _stop(choice: Json, sequences: Collection[str]) -> Json:
    """Stop reason and stop sequence. Some servers name the sequence that matched."""
    matched = text_in(choice, "stop_reason")
    if matched in sequences:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": STOP_REASONS.get(text_in(choice, "finish_reason"), "end_turn"), "stop_sequence": None}


@dataclass(slots=True)
class MessagesAnswerTranslator:
    """Translates a body. `meter` must have observed the body before `translate` is called."""

    slug: str
    stop_sequences: Collection[str]
    meter: OpenAiMeter

    def translate(self, completion: Json) -> Json:
        choice = next(iter(objects_in(completion, "choices")), {})
        message = object_in(choice, "message")
        text = text_in(message, "content") or text_in(message, "refusal")
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        return {
            "id": text_in(completion, "id"),
            "type": "message",
            "role": "assistant",
            "model": self.slug,
            "content": content + [_tool_use(call) for call in objects_in(message, "tool_calls")],
            **_stop(choice, self.stop_sequences),
            "usage": messages_usage(self.meter.tokens),
        }


def _tool_use(call: Json) -> Json:
    function = object_in(call, "function")
    arguments = _input(text_in(function, "arguments"))
    return {"type": "tool_use", "id": text_in(call, "id"), "name": text_in(function, "name"), "input": arguments}


def _input(arguments: str) -> Json:
    """Parse a tool call's arguments. A model may write invalid JSON; the caller then gets its text."""
    try:
        value = orjson.loads(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


class MessagesStreamTranslator:
    """Translates a stream chunk by chunk."""

    __slots__ = ("_closing", "_meter", "_next", "_open", "_sequences", "_slug", "_started", "_tools")

    def __init__(self, slug: str, stop_sequences: Collection[str], meter: OpenAiMeter) -> None:
        self._slug = slug
        self._sequences = stop_sequences
        self._meter = meter
        self._started = False
        self._next = 0
        self._open: tuple[str, int] | None = None
        """Type and index of the open content block."""
        self._tools: dict[int, int] = {}
        self._closing: Json | None = None

    @property
    def reported(self) -> Reported:
        return self._meter

    def translate(self, chunk: Json) -> bytes:
        self._meter.observe(chunk)
        if reports_failure(chunk):
            kind, message = failure_details(chunk)
            return _event({"type": "error", "error": {"type": kind, "message": message}})
        events = b"" if self._started else self._start(chunk)
        for choice in objects_in(chunk, "choices")[:1]:
            delta = object_in(choice, "delta")
            events += self._text(text_in(delta, "content") or text_in(delta, "refusal"))
            events += b"".join(self._tool(call) for call in objects_in(delta, "tool_calls"))
            if choice.get("finish_reason"):
                self._closing = _stop(choice, self._sequences)
                events += self._close()
        return events

    def done_received(self) -> None:
        if self._started and self._closing is None:
            self._closing = _stop({}, ())

    def closing_events(self) -> bytes:
        if self._closing is None:
            return b""
        usage = messages_usage(self._meter.tokens)
        delta = _event({"type": "message_delta", "delta": self._closing, "usage": usage})
        return self._close() + delta + _event({"type": "message_stop"})

    def _start(self, chunk: Json) -> bytes:
        self._started = True
        message: Json = {
            "id": text_in(chunk, "id"),
            "type": "message",
            "role": "assistant",
            "model": self._slug,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": messages_usage(None),
        }
        return _event({"type": "message_start", "message": message})

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        events = b""
        if self._open is None or self._open[0] != "text":
            events = self._begin({"type": "text", "text": ""})
        return events + self._delta(self._next - 1, {"type": "text_delta", "text": text})

    def _tool(self, call: Json) -> bytes:
        number, function = index_in(call), object_in(call, "function")
        events = b""
        if number not in self._tools:
            block: Json = {
                "type": "tool_use",
                "id": text_in(call, "id"),
                "name": text_in(function, "name"),
                "input": {},
            }
            events = self._begin(block)
            self._tools[number] = self._next - 1
        part = text_in(function, "arguments")
        return events + (
            self._delta(self._tools[number], {"type": "input_json_delta", "partial_json": part}) if part else b""
        )

    def _begin(self, block: Json) -> bytes:
        """Open the next block; closes the one before it, since only one may be open."""
        events = self._close()
        self._open = (block["type"], self._next)
        self._next += 1
        return events + _event({"type": "content_block_start", "index": self._open[1], "content_block": block})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        index, self._open = self._open[1], None
        return _event({"type": "content_block_stop", "index": index})

    def _delta(self, index: int, delta: Json) -> bytes:
        return _event({"type": "content_block_delta", "index": index, "delta": delta})


def _event(payload: Json) -> bytes:
    return b"event: " + str(payload["type"]).encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"
