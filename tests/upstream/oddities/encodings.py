"""Bytes that a strict parser refuses: other encodings, odd values, odd frames, and answers that break off."""

import codecs
from collections.abc import Iterator

import orjson

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.labels import REPORTED, STREAMS, TEXT, whole
from tests.upstream.oddities.row import (
    CALLERS,
    JSON,
    Counted,
    Oddity,
    Seen,
    chat_text,
    chat_usage,
    frames,
    message_text,
    response_text,
    sends,
)


def _bodies(target_dialect: str) -> dict[str, bytes]:
    body = orjson.dumps(whole(target_dialect))
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
    for target_dialect in (CHAT_COMPLETIONS, MESSAGES, RESPONSES):
        for odd, body in _bodies(target_dialect).items():
            passed = Seen(ended="cut", has=(b"Hello there",)) if body.startswith(b"[") else TEXT
            yield Oddity(
                name=f"{target_dialect}: JSON {odd}",
                spoken=target_dialect,
                sends=sends(body, label=JSON),
                stream=False,
                views={caller: passed if caller == target_dialect else TEXT for caller in CALLERS},
                billed=REPORTED,
            )
    for odd, stream in _odd_streams().items():
        yield Oddity(name=f"Chat: a stream {odd}", sends=sends(stream), views=TEXT, billed=REPORTED)
    yield Oddity(
        name="Chat: JSON that breaks off amid its text",
        sends=sends(orjson.dumps(whole(CHAT_COMPLETIONS)).partition(b"there")[0], label=JSON),
        stream=False,
        views={
            **dict.fromkeys((MESSAGES, RESPONSES), Seen(status=502, ended="failed")),
        },
        billed=Tokens(input=0, output=0),
    )
    unreported = {name: value for name, value in whole(CHAT_COMPLETIONS).items() if name != "usage"}
    yield Oddity(
        name="Chat: JSON that breaks off without a report",
        sends=sends(orjson.dumps(unreported).partition(b" there")[0], label=JSON),
        stream=False,
        views={CHAT_COMPLETIONS: Seen(ended="cut", has=(b"Hello",))},
        billed=Counted(1),
    )
    yield from _lines()


def _lines() -> Iterator[Oddity]:
    """Events as JSON objects on lines of their own. A caller of the same dialect gets the lines."""
    events = {
        CHAT_COMPLETIONS: [*chat_text("Hello", " there"), chat_usage()],
        MESSAGES: message_text("Hello", " there"),
        RESPONSES: response_text("Hello", " there"),
    }
    for target_dialect, answer_events in events.items():
        lines = b"".join(orjson.dumps(event) + b"\n" for event in answer_events)
        for form, pieces in {
            "": (lines[:50], lines[50:]),
            ", line by line": tuple(lines.splitlines(keepends=True)),
            ", ending with CRLF": (lines.replace(b"\n", b"\r\n"),),
            ", with blank lines": (b"\n" + lines.replace(b"\n", b"\n\n"),),
            ", without a last line feed": (lines[:-1],),
        }.items():
            for is_stream in (True, False):
                kind = "a stream" if is_stream else "whole"
                yield Oddity(
                    name=f"{target_dialect}: events as lines of JSON{form}, asked for {kind}",
                    spoken=target_dialect,
                    sends=sends(*pieces, label="application/x-ndjson"),
                    stream=is_stream,
                    views={caller: Seen(has=(b" there",)) if caller == target_dialect else TEXT for caller in CALLERS},
                    billed=REPORTED,
                )
        for label in ("application/x-ndjson", "text/plain", JSON, None):
            yield Oddity(
                name=f"{target_dialect}: events as lines of JSON, labelled {label}",
                spoken=target_dialect,
                sends=sends(lines[:50], lines[50:], label=label),
                views={caller: Seen(has=(b" there",)) if caller == target_dialect else TEXT for caller in CALLERS},
                billed=REPORTED,
            )
        cut = lines.partition(b'there"')[0]
        yield Oddity(
            name=f"{target_dialect}: events as lines of JSON that break off",
            spoken=target_dialect,
            sends=sends(cut, label="application/x-ndjson"),
            views={caller: Seen(text="Hello", ended="cut") for caller in CALLERS if caller != target_dialect},
            billed=Counted(1),
            logged=502,
        )
    failed = [*chat_text("Hello", finish=None), {"error": {"message": "overloaded"}}]
    yield Oddity(
        name="Chat: lines of JSON that end with a failure",
        sends=sends(b"".join(orjson.dumps(event) + b"\n" for event in failed), label="application/x-ndjson"),
        views=dict.fromkeys((MESSAGES, RESPONSES), Seen(text="Hello", ended="failed", has=(b"overloaded",))),
        billed=Counted(1),
        logged=502,
    )
    yield Oddity(
        name="Chat: lines of JSON that break off amid the text",
        sends=sends(b"".join(orjson.dumps(event) + b"\n" for event in failed[:-1]), label="application/x-ndjson"),
        views=dict.fromkeys((MESSAGES, RESPONSES), Seen(text="Hello", ended="cut")),
        billed=Counted(1),
    )
    for label in ("application/x-ndjson", JSON):
        yield Oddity(
            name=f"Chat: one whole answer on a line, labelled {label}",
            sends=sends(orjson.dumps(whole(CHAT_COMPLETIONS)), b"\n", label=label),
            views={MESSAGES: TEXT, RESPONSES: TEXT},
            billed=REPORTED,
        )


ROWS = tuple(_rows())
