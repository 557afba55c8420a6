"""Answers that the caller dictates: any text and any usage, even malformed.

The request's `user` is JSON: `{"text", "times", "usage"?, "stop"?}`. `usage` is JSON text, so that a test can write
figures that no encoder would write. With `stop` a stream waits at the gate before its usage.
"""

import json
from typing import Any

from tests.upstream.chat_completions import DONE, begin_events, chat_chunk, end_events, send_event, send_json
from tests.upstream.exchange import Exchange


async def answer_as_dictated(exchange: Exchange) -> None:
    """The behaviour."""
    request = json.loads(await exchange.read_body())
    dictation = json.loads(request["user"])
    model = request["model"]
    usage = dictation.get("usage")
    if not request.get("stream"):
        choices = [
            {"index": 0, "message": {"content": dictation["text"] * dictation["times"]}, "finish_reason": "stop"}
        ]
        await send_json(exchange, _with_usage({"model": model, "choices": choices}, usage))
        return
    await begin_events(exchange)
    for _ in range(dictation["times"]):
        await send_event(exchange, _event(model, [{"index": 0, "delta": {"content": dictation["text"]}}], None))
    if dictation.get("stop"):
        await exchange.gate.passed()
    await send_event(exchange, _event(model, [], usage))
    await send_event(exchange, DONE)
    await end_events(exchange)


def _event(model: str, choices: list[Any], usage: str | None) -> bytes:
    return b"data: " + _with_usage(chat_chunk(model, choices), usage) + b"\n\n"


def _with_usage(answer: dict[str, Any], usage: str | None) -> bytes:
    text = json.dumps(answer)
    return (text[:-1] + f', "usage": {usage}}}' if usage is not None else text).encode()
