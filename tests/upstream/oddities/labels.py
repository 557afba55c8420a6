"""Labels that lie: streams called JSON, JSON called a stream or text, and no label at all."""

from collections.abc import Iterator

import orjson

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.row import (
    JSON,
    SSE,
    TARGET_MODEL,
    Counted,
    Json,
    Oddity,
    Seen,
    chat_text,
    chat_usage,
    frames,
    message_text,
    response_text,
    sends,
)

REPORTED = Tokens(input=12, output=5, cached_input=0)
TEXT = Seen(text="Hello there")
STREAMS = {
    CHAT_COMPLETIONS: frames(*chat_text("Hello", " there"), chat_usage(), "[DONE]"),
    MESSAGES: frames(*message_text("Hello", " there")),
    RESPONSES: frames(*response_text("Hello", " there")),
}
LABELS = (JSON, "text/plain", "application/octet-stream", "TEXT/Event-Stream; charset=UTF-8; x=y", None)


def whole(target_dialect: str) -> Json:
    """A whole answer of a dialect."""
    if target_dialect == CHAT_COMPLETIONS:
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}
        return chat_usage() | {"object": "chat.completion", "choices": [choice]}
    if target_dialect == MESSAGES:
        return {
            **{"id": "msg_1", "type": "message", "role": "assistant", "model": TARGET_MODEL},
            **{"content": [{"type": "text", "text": "Hello there"}], "stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": 12, "output_tokens": 5},
        }
    response: Json = response_text("Hello", " there")[-1]["response"]
    return response


def _rows() -> Iterator[Oddity]:
    for target_dialect, stream in STREAMS.items():
        for label in LABELS:
            for is_stream in (True, False):
                kind = "a stream" if is_stream else "a whole answer"
                yield Oddity(
                    name=f"{target_dialect}: a stream labelled {label}, asked for {kind}",
                    spoken=target_dialect,
                    sends=sends(stream[:9], stream[9:], label=label),
                    stream=is_stream,
                    views=TEXT,
                    billed=REPORTED,
                )
        for label in (SSE, "text/plain", "application/octet-stream", None):
            for is_stream in (True, False):
                kind = "a stream" if is_stream else "a whole answer"
                body = orjson.dumps(whole(target_dialect))
                yield Oddity(
                    name=f"{target_dialect}: JSON labelled {label}, asked for {kind}",
                    spoken=target_dialect,
                    sends=sends(b"\n", body[:9], body[9:], label=label),
                    stream=is_stream,
                    views=TEXT,
                    billed=REPORTED,
                )
        yield Oddity(
            name=f"{target_dialect}: JSON in answer to a call for a stream",
            spoken=target_dialect,
            sends=sends(orjson.dumps(whole(target_dialect)), label="application/json; charset=utf-8"),
            views=TEXT,
            billed=REPORTED,
        )
    for is_stream in (True, False):
        yield Oddity(
            name=f"Chat: plain text, asked for {'a stream' if is_stream else 'a whole answer'}",
            sends=sends(b"Hello there, dear caller", label="text/plain"),
            stream=is_stream,
            views={CHAT_COMPLETIONS: Seen(ended="cut", has=(b"dear caller",))},
            billed=Counted(5),
        )


ROWS = tuple(_rows())
