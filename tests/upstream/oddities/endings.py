"""Odd ends: the dialect's last event ends the answer, whether or not the upstream ends; and streams without one."""

from collections.abc import Iterator
from typing import Literal

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.row import (
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

USED = Tokens(input=12, output=5, cached_input=0)
_STREAMS: dict[str, list[Json | str]] = {
    CHAT_COMPLETIONS: [*chat_text("Hello", " there"), chat_usage(), "[DONE]"],
    MESSAGES: [*message_text("Hello", " there")],
    RESPONSES: [*response_text("Hello", " there")],
}
_THEN: dict[Literal["stay", "close"], str] = {
    "stay": "the upstream stays open after the last event",
    "close": "the upstream closes after the last event, without the last chunk",
}


def _ends() -> Iterator[Oddity]:
    for target_dialect, events in _STREAMS.items():
        expected = Seen(text="Hello there")
        for then, says in _THEN.items():
            yield Oddity(
                name=f"{target_dialect}: {says}",
                spoken=target_dialect,
                sends=sends(frames(*events), then=then),
                views=expected,
                billed=USED,
            )
            yield Oddity(
                name=f"{target_dialect}: {says}, event by event",
                spoken=target_dialect,
                sends=sends(*map(frames, events), then=then),
                views=expected,
                billed=USED,
            )
        yield Oddity(
            name=f"{target_dialect}: junk follows the last event",
            spoken=target_dialect,
            sends=sends(frames(*events) + b"event: junk\ndata: {\n\n", b"data: <html>", then="stay"),
            views=Seen(text="Hello there", lacks=(b"junk", b"html")),
            billed=USED,
        )


ROWS = (
    *_ends(),
    Oddity(
        name="Chat: [DONE] never comes, and the upstream stays open after the usage",
        sends=sends(*map(frames, (*chat_text("Hello", " there"), chat_usage())), then="stay"),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: [DONE] never comes, and the upstream closes after the usage without the last chunk",
        sends=sends(frames(*chat_text("Hello", " there"), chat_usage()), then="close"),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: nothing but [DONE] comes",
        sends=sends(frames("[DONE]"), then="stay"),
        views=Seen(),
        billed=Counted(0),
    ),
    Oddity(
        name="Messages: message_stop never comes, and the upstream stays open",
        spoken=MESSAGES,
        sends=sends(frames(*message_text("Hello", " there")[:-1]), then="stay"),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: the upstream breaks off after the finish",
        sends=sends(frames(*chat_text("Hello", " there")), then="close"),
        views={CHAT_COMPLETIONS: Seen(text="Hello there", ended="cut", has=(b'"finish_reason":"stop"',))},
        billed=Counted(2),
        logged=502,
    ),
    Oddity(
        name="Chat: the stream ends after the finish, with neither usage nor [DONE]",
        sends=sends(frames(*chat_text("Hello", " there"))),
        views={
            CHAT_COMPLETIONS: Seen(text="Hello there", ended="cut", has=(b'"finish_reason":"stop"',)),
            MESSAGES: Seen(text="Hello there"),
            RESPONSES: Seen(text="Hello there"),
        },
        billed=Counted(2),
    ),
)
