"""Bytes that a strict parser refuses: other encodings, odd values, odd frames, and answers that break off."""

import codecs
from collections.abc import Iterator

import orjson

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.labels import REPORTED, STREAMS, TEXT, whole
from tests.upstream.oddities.row import CALLERS, JSON, Counted, Oddity, Seen, chat_text, chat_usage, frames, sends


def _bodies(spoken: str) -> dict[str, bytes]:
    body = orjson.dumps(whole(spoken))
    odd = body[:-1]
    return {
        "with a byte-order mark": codecs.BOM_UTF8 + body,
        "with NaN": odd + b',"score":NaN,"low":-Infinity}',
        "with half of a surrogate pair": odd + b',"note":"\\ud800"}',
        "with bytes that are not UTF-8": odd + b',"note":"\xed\xa0\x80\xff"}',
        "with control characters": odd + b',"note":"a\x00\x01\n"}',
        "in an array": b"[" + body + b"]",
        "with bytes behind it": body + b"\n\0trailing",
    }


def _odd_streams() -> dict[str, bytes]:
    stream = STREAMS[CHAT_COMPLETIONS]
    nan = chat_usage() | {"score": "SCORE"}
    return {
        "with a byte-order mark": codecs.BOM_UTF8 + stream,
        "with CRLF": stream.replace(b"\n", b"\r\n"),
        "with CR": stream.replace(b"\n", b"\r"),
        "without spaces": stream.replace(b"data: ", b"data:"),
        "with comments and events without data": b": hi\n\nevent: x\n\n" + stream.replace(b"\n\n", b"\n\n: hi\n\n"),
        "with NaN": frames(*chat_text("Hello", " there"), nan, "[DONE]").replace(b'"SCORE"', b"NaN"),
        "with zero bytes": frames(*chat_text("Hello", " there"), nan, "[DONE]").replace(b'"SCORE"}', b'"a\0b"}\0'),
    }


def _rows() -> Iterator[Oddity]:
    for spoken in (CHAT_COMPLETIONS, MESSAGES, RESPONSES):
        for odd, body in _bodies(spoken).items():
            passed = Seen(ended="cut", has=(b"Hello there",)) if body.startswith(b"[") else TEXT
            yield Oddity(
                name=f"{spoken}: JSON {odd}",
                spoken=spoken,
                sends=sends(body, label=JSON),
                stream=False,
                seen={caller: passed if caller == spoken else TEXT for caller in CALLERS},
                billed=REPORTED,
            )
    for odd, stream in _odd_streams().items():
        yield Oddity(name=f"Chat: a stream {odd}", sends=sends(stream), seen=TEXT, billed=REPORTED)
    yield Oddity(
        name="Chat: JSON that breaks off amid its text",
        sends=sends(orjson.dumps(whole(CHAT_COMPLETIONS)).partition(b"there")[0], label=JSON),
        stream=False,
        seen={
            **dict.fromkeys((MESSAGES, RESPONSES), Seen(status=502, ended="failed")),
        },
        billed=Tokens(input=0, output=0),
    )
    unreported = {name: value for name, value in whole(CHAT_COMPLETIONS).items() if name != "usage"}
    yield Oddity(
        name="Chat: JSON that breaks off without a report",
        sends=sends(orjson.dumps(unreported).partition(b" there")[0], label=JSON),
        stream=False,
        seen={CHAT_COMPLETIONS: Seen(ended="cut", has=(b"Hello",))},
        billed=Counted(1),
    )
    lines = b"".join(orjson.dumps(chunk) + b"\n" for chunk in (*chat_text("Hello", " there"), chat_usage()))
    for label in ("application/x-ndjson", "text/plain", JSON):
        yield Oddity(
            name=f"Chat: chunks as lines of JSON, labelled {label}",
            sends=sends(lines[:50], lines[50:], label=label),
            seen={CHAT_COMPLETIONS: Seen(has=(b" there",))},
            billed=REPORTED,
        )


ROWS = tuple(_rows())
