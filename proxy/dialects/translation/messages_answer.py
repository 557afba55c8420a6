"""Translates Messages answers into Chat Completions: bodies and streams.

Pure. Omits thinking, for which Chat Completions has no member; its tokens still count as output.
"""

from dataclasses import dataclass

import orjson

from policy.billing import Tokens
from proxy.accounting.metering import Reported
from proxy.dialects.translation.translated_answer import index_in, object_in, objects_in, text_in
from proxy.dialects.usage import MessagesMeter
from proxy.json_text.json_edit import Json

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def chat_usage(tokens: Tokens) -> Json:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.total,
        "prompt_tokens_details": {"cached_tokens": tokens.cached_input},
    }


@dataclass(slots=True)
class ChatAnswerTranslator:
    """Translates a body. `meter` must have observed the body before `translate` is called."""

    slug: str
    created_s: int
    meter: MessagesMeter

    def translate(self, message: Json) -> Json:
        texts = [text_in(b, "text") for b in objects_in(message, "content") if b.get("type") == "text"]
        calls = [_tool_call(b) for b in objects_in(message, "content") if b.get("type") == "tool_use"]
        reply: Json = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
        if calls:
            reply["tool_calls"] = calls
        reason = FINISH_REASONS.get(text_in(message, "stop_reason"), "stop")
        answer: Json = {
            "id": text_in(message, "id"),
            "object": "chat.completion",
            "created": self.created_s,
            "model": self.slug,
            "choices": [{"index": 0, "message": reply, "logprobs": None, "finish_reason": reason}],
        }
        return answer | ({"usage": chat_usage(self.meter.tokens)} if self.meter.tokens else {})


def _tool_call(block: Json) -> Json:
    function = {"name": text_in(block, "name"), "arguments": orjson.dumps(object_in(block, "input")).decode()}
    return {"id": text_in(block, "id"), "type": "function", "function": function}


class ChatStreamTranslator:
    """Translates a stream event by event. `include_usage`: the caller requested the usage chunk."""

    __slots__ = ("_closed", "_created_s", "_id", "_include_usage", "_meter", "_slug", "_tools")

    def __init__(self, slug: str, created_s: int, meter: MessagesMeter, *, include_usage: bool) -> None:
        self._slug = slug
        self._created_s = created_s
        self._include_usage = include_usage
        self._meter = meter
        self._id = ""
        self._tools: dict[int, int] = {}
        """The number of each tool call, by the index of its content block."""
        self._closed = False

    @property
    def reported(self) -> Reported:
        return self._meter

    def translate(self, event: Json) -> bytes:
        match event.get("type"):
            case "content_block_delta":
                return self._delta(event)
            case "content_block_start":
                return self._block(event)
            case "message_start":
                self._meter.observe(event)
                self._id = text_in(object_in(event, "message"), "id")
                return self._chunk({"role": "assistant", "content": ""})
            case "message_delta":
                self._meter.observe(event)
                reason = text_in(object_in(event, "delta"), "stop_reason")
                return self._chunk({}, FINISH_REASONS.get(reason, "stop")) if reason else b""
            case "message_stop":
                self._closed = True
            case "ping":
                return b": ping\n\n"
            case "error":
                return _frame({"error": object_in(event, "error")})
        return b""

    def done_received(self) -> None:
        """Ignored: a Messages stream ends with `message_stop`."""

    def closing_events(self) -> bytes:
        if not self._closed:
            return b""
        usage = chat_usage(self._meter.tokens or self._meter.input or Tokens())
        return (self._frame_of([], usage) if self._include_usage else b"") + b"data: [DONE]\n\n"

    def _block(self, event: Json) -> bytes:
        block = object_in(event, "content_block")
        if block.get("type") == "tool_use":
            number = self._tools[index_in(event)] = len(self._tools)
            given = object_in(block, "input")  # some servers send the complete input here
            function = {"name": text_in(block, "name"), "arguments": orjson.dumps(given).decode() if given else ""}
            call = {"index": number, "id": text_in(block, "id"), "type": "function", "function": function}
            return self._chunk({"tool_calls": [call]})
        return self._text(text_in(block, "text")) if block.get("type") == "text" else b""

    def _delta(self, event: Json) -> bytes:
        delta = object_in(event, "delta")
        part = text_in(delta, "partial_json")
        number = self._tools.get(index_in(event))
        if part and number is not None:
            return self._chunk({"tool_calls": [{"index": number, "function": {"arguments": part}}]})
        return self._text(text_in(delta, "text")) if delta.get("type") == "text_delta" else b""

    def _text(self, text: str) -> bytes:
        return self._chunk({"content": text}) if text else b""

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> bytes:
        return self._frame_of([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}], None)

    def _frame_of(self, choices: list[Json], usage: Json | None) -> bytes:
        chunk: Json = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created_s,
            "model": self._slug,
            "choices": choices,
        }
        return _frame(chunk | {"usage": usage} if self._include_usage else chunk)


def _frame(payload: Json) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
