"""Answers that the caller chooses: the tokens of each call, and how its answer ends.

The last message is `input/cached/output/pieces/pause_ms`. The answer's text ends in the first three numbers, so that
the caller of a stream without usage can read them too. The request's `user` may name an ending:

- refuses: a 500.
- hangs up: closes the connection before the head.
- waits: as `hangs up`, once the gate is open.
- cuts: closes the connection after the first piece.
- stops: as `cuts`, once the gate is open.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from policy.billing import Tokens
from tests.upstream.behaviours import answer_json
from tests.upstream.chat_completions import (
    DONE,
    Usage,
    begin_events,
    chat_body,
    chat_chunk,
    end_events,
    event,
    send_event,
    send_json,
    wants_usage,
)
from tests.upstream.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Question:
    """The tokens of one call, the number of pieces of its answer, and the pause before each piece."""

    tokens: Tokens
    pieces: int
    pause_ms: int

    def text(self) -> str:
        return "/".join(map(str, (*self.tokens, self.pieces, self.pause_ms)))

    def words(self) -> list[str]:
        return ["word "] * (self.pieces - 1) + [f"cost {'/'.join(map(str, self.tokens))}"]

    def usage(self) -> Usage:
        return Usage(self.tokens.input, self.tokens.output, self.tokens.cached_input)

    @classmethod
    def of(cls, text: str) -> "Question":
        *tokens, pieces, pause_ms = map(int, text.split("/"))
        return cls(Tokens.from_wire(tokens), pieces, pause_ms)


def tokens_in(text: str) -> Tokens:
    """The tokens named at the end of an answer's text."""
    return Tokens.from_wire([int(count) for count in text.rpartition(" ")[2].split("/")])


async def answer_question(exchange: Exchange) -> None:
    """The behaviour."""
    request = json.loads(await exchange.read_body())
    question = Question.of(request["messages"][-1]["content"])
    match request.get("user"):
        case "refuses":
            await answer_json(500, {"error": {"message": "no", "type": "server_error"}})(exchange)
        case "hangs up":
            exchange.close()
        case "waits":
            await exchange.gate.passed()
            exchange.close()
        case ("cuts" | "stops") as ending:
            await _send_a_piece(exchange, request["model"])
            if ending == "stops":
                await exchange.gate.passed()
            exchange.close()
        case _:
            await (_stream if request.get("stream") else _whole)(exchange, request, question)


async def _send_a_piece(exchange: Exchange, model: str) -> None:
    await begin_events(exchange)
    piece = {"index": 0, "delta": {"content": "some "}, "finish_reason": None}
    await send_event(exchange, event(chat_chunk(model, [piece])))


async def _whole(exchange: Exchange, request: dict[str, Any], question: Question) -> None:
    await asyncio.sleep(question.pause_ms / 1000)
    body = chat_body(request["model"], question.words(), question.usage())
    await send_json(exchange, json.dumps(body).encode())


async def _stream(exchange: Exchange, request: dict[str, Any], question: Question) -> None:
    await begin_events(exchange)
    for word in question.words():
        await asyncio.sleep(question.pause_ms / 1000)
        await _send_choice(exchange, request, {"content": word}, None)
    await _send_choice(exchange, request, {}, "stop")
    if wants_usage(request):
        await send_event(exchange, event(chat_chunk(request["model"], []) | {"usage": question.usage().wire()}))
    await send_event(exchange, DONE)
    await end_events(exchange)


async def _send_choice(exchange: Exchange, request: dict[str, Any], delta: dict[str, Any], reason: str | None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    await send_event(exchange, event(chat_chunk(request["model"], [choice])))
