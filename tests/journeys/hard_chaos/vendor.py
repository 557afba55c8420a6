"""The odd vendor: a model server of three dialects that answers as the caller orders and obeys every output cap.

It reports cache writes, tiers and long inputs, less than the cap or exactly it. Some answers break off or tell nothing.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.journeys.hard_chaos.orders import Order
from tests.upstream.behaviours import answer_json
from tests.upstream.chat_completions import DONE, begin_events, end_events, event, send_event
from tests.upstream.exchange import Exchange

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
_CAPS = {CHAT: ("max_tokens", "max_completion_tokens"), MESSAGES: ("max_tokens",), RESPONSES: ("max_output_tokens",)}
LEAST_CAP = 16


@dataclass
class OddVendor:
    """The vendor. `faults`: what the product may not send, one sentence each."""

    calls: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def answer(self, exchange: Exchange) -> None:
        """The behaviour."""
        text = (await exchange.read_body()).decode()
        path = exchange.received.path
        exchange.received.body = b""  # a run has many
        if path not in _CAPS:
            await answer_json(200, {})(exchange)
            return
        body = json.loads(text)
        order = Order.of(text)
        self.calls += 1
        self.endings[order.ending] += 1
        answer = Answer(order, self._most_output(path, body), path)
        match order.ending:
            case "fails":
                await answer_json(500, {"error": {"message": "no", "type": "server_error"}})(exchange)
            case "hangs":
                exchange.close()
            case "resets" if order.pieces == 1:
                exchange.reset()
            case _ if body.get("stream"):
                await _stream(exchange, answer, tells_usage=path != CHAT or _wants_usage(body))
            case _:
                await _whole(exchange, answer)

    def _most_output(self, path: str, body: Json) -> int:
        """The tokens that the caps of the request allow, over all its answers."""
        caps = [body[name] for name in _CAPS[path] if body.get(name) is not None]
        if not caps:
            self.faults.append(f"a call to {path} reached the vendor without an output cap")
            return 0
        if min(caps) < 1:
            self.faults.append(f"a call to {path} reached the vendor with the cap {min(caps)}")
        return int(min(caps)) * int(body.get("n") or 1)


def _wants_usage(body: Json) -> bool:
    return bool((body.get("stream_options") or {}).get("include_usage"))


@dataclass(frozen=True)
class Answer:
    """The answer to one order in the dialect of a path. `most`: the tokens of output that the caps allow."""

    order: Order
    most: int
    path: str

    @property
    def output(self) -> int:
        return self.order.output if self.order.ending == "exceeds" else min(self.order.output, self.most)

    @property
    def is_cut(self) -> bool:
        """The cap ends the answer."""
        return self.order.output > self.most

    @property
    def tells_usage(self) -> bool:
        return self.order.ending in ("told", "waits", "exceeds")

    @property
    def pieces(self) -> list[str]:
        return ["some words " * self.order.words for _ in range(self.order.pieces)]

    @property
    def tier(self) -> Json:
        return {} if self.order.tier == "none" else {"service_tier": self.order.tier}

    def whole(self) -> Json:
        text = "".join(self.pieces)
        match self.path:
            case "/v1/messages":
                content = {"content": [{"type": "text", "text": text}], "stop_reason": self._stop("max_tokens")}
                return _message() | content | {"usage": self._messages_usage() if self.tells_usage else {}}
            case "/v1/responses":
                return self._response(text)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": self._stop("length")}
        body = _chat("chat.completion") | self.tier | {"choices": [choice]}
        return body | ({"usage": self._chat_usage()} if self.tells_usage else {})

    def head(self) -> Iterator[Json]:
        """The events of a stream before its text."""
        match self.path:
            case "/v1/messages":
                usage = self._messages_usage() | {"output_tokens": 1}
                yield {"type": "message_start", "message": _message() | {"usage": usage if self.tells_usage else {}}}
                block = {"type": "text", "text": ""}
                yield {"type": "content_block_start", "index": 0, "content_block": block}
            case "/v1/responses":
                yield {"type": "response.created", "response": _response("in_progress") | self.tier}
                item = _item("") | {"status": "in_progress", "content": []}
                yield {"type": "response.output_item.added", "output_index": 0, "item": item}
                part = {"type": "output_text", "text": "", "annotations": []}
                yield {"type": "response.content_part.added", **_PLACE, "part": part}

    def delta(self, piece: str) -> Json:
        match self.path:
            case "/v1/messages":
                return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            case "/v1/responses":
                return {"type": "response.output_text.delta", **_PLACE, "delta": piece}
        return self._chunk({"content": piece}, None)

    def tail(self, *, tells_usage: bool) -> Iterator[Json]:
        """The events of a stream after its text."""
        text = "".join(self.pieces)
        match self.path:
            case "/v1/messages":
                yield {"type": "content_block_stop", "index": 0}
                delta = {"stop_reason": self._stop("max_tokens"), "stop_sequence": None}
                usage = self._messages_usage() if self.tells_usage else {}
                yield {"type": "message_delta", "delta": delta, "usage": usage}
                yield {"type": "message_stop"}
            case "/v1/responses":
                part = {"type": "output_text", "text": text, "annotations": []}
                yield {"type": "response.output_text.done", **_PLACE, "text": text}
                yield {"type": "response.content_part.done", **_PLACE, "part": part}
                yield {"type": "response.output_item.done", "output_index": 0, "item": _item(text)}
                response = self._response(text)
                yield {"type": f"response.{response['status']}", "response": response}
            case _:
                yield self._chunk({}, self._stop("length"))
                if tells_usage and self.tells_usage:
                    yield _chat("chat.completion.chunk") | self.tier | {"choices": [], "usage": self._chat_usage()}

    def _stop(self, cut: str) -> str:
        whole = {"max_tokens": "end_turn", "length": "stop"}
        return cut if self.is_cut else whole[cut]

    def _chunk(self, delta: Json, finish: str | None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _chat("chat.completion.chunk") | self.tier | {"choices": [choice]}

    def _chat_usage(self) -> Json:
        order = self.order
        details = {"cached_tokens": order.cached, "cache_write_tokens": order.cache_writes}
        if order.cache_writes_1h:
            details |= {"cache_creation_token_details": {"ephemeral_1h_input_tokens": order.cache_writes_1h}}  # type: ignore[dict-item]
        total = order.input + self.output
        usage = {"prompt_tokens": order.input, "completion_tokens": self.output, "total_tokens": total}
        return usage | {"prompt_tokens_details": details}

    def _messages_usage(self) -> Json:
        order = self.order
        by_duration = {
            "ephemeral_5m_input_tokens": order.cache_writes - order.cache_writes_1h,
            "ephemeral_1h_input_tokens": order.cache_writes_1h,
        }
        usage = {
            "input_tokens": order.input - order.cached - order.cache_writes,
            "cache_read_input_tokens": order.cached,
            "cache_creation_input_tokens": order.cache_writes,
            "cache_creation": by_duration,
            "output_tokens": self.output,
        }
        return usage | self.tier

    def _response(self, text: str) -> Json:
        order = self.order
        response = _response("incomplete" if self.is_cut else "completed") | self.tier | {"output": [_item(text)]}
        if self.is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self.tells_usage:
            details: Json = {"cached_tokens": order.cached, "cache_write_tokens": order.cache_writes}
            details |= {"cache_creation_token_details": {"ephemeral_1h_input_tokens": order.cache_writes_1h}}
            usage: Json = {"input_tokens": order.input, "output_tokens": self.output}
            response["usage"] = usage | {
                "total_tokens": order.input + self.output,
                "input_tokens_details": details,
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        return response


_PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


def _chat(kind: str) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "odd"}


def _message() -> Json:
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "odd", "content": []}
    return message | {"stop_reason": None, "stop_sequence": None}


def _response(status: str) -> Json:
    response: Json = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "odd"}
    return response | {"output": [], "error": None, "usage": None, "incomplete_details": None}


def _item(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


async def _whole(exchange: Exchange, answer: Answer) -> None:
    await asyncio.sleep(answer.order.pause_ms / 1000)
    if answer.order.ending == "waits":
        await exchange.gate.passed()
    if answer.order.ending in ("breaks", "resets"):
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n{")
        _leave(exchange, answer)
        return
    await answer_json(200, answer.whole())(exchange)


async def _stream(exchange: Exchange, answer: Answer, *, tells_usage: bool) -> None:
    await begin_events(exchange)
    for value in answer.head():
        await send_event(exchange, _frame(value))
    pieces = answer.pieces
    half = len(pieces) // 2
    for number, piece in enumerate(pieces):
        if number == half and answer.order.ending in ("breaks", "resets"):
            _leave(exchange, answer)
            return
        await asyncio.sleep(answer.order.pause_ms / 1000)
        await send_event(exchange, _frame(answer.delta(piece)))
        if answer.order.ending == "waits":
            await exchange.gate.passed()
    for value in answer.tail(tells_usage=tells_usage):
        await send_event(exchange, _frame(value))
    if answer.path == CHAT:
        await send_event(exchange, DONE)
    await end_events(exchange)


def _leave(exchange: Exchange, answer: Answer) -> None:
    (exchange.close if answer.order.ending == "breaks" else exchange.reset)()


def _frame(value: Json) -> bytes:
    kind = value.get("type")
    return (f"event: {kind}\n".encode() if isinstance(kind, str) else b"") + event(value)
