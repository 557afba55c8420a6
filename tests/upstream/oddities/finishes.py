"""Odd finishes: what else the finish holds, what follows it, and where the usage is then."""

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.row import (
    Counted,
    Json,
    Oddity,
    Seen,
    chat_chunk,
    chat_text,
    chat_usage,
    frames,
    message_text,
    response_text,
    sends,
)

USED = Tokens(input=12, output=5, cached_input=0)
_USAGE = chat_usage()["usage"]
_CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def without(name: str, events: list[Json]) -> list[Json]:
    """The events without this member."""
    return [{key: value for key, value in event.items() if key != name} for event in events]


ROWS = (
    Oddity(
        name="Chat: the chunk with the finish holds the last text",
        sends=sends(
            *(frames(chunk) for chunk in (*chat_text("Hello", finish=None), chat_chunk({"content": " there"}, "stop"))),
            frames(chat_usage(), "[DONE]"),
        ),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: the chunk with the finish holds all of the text, and the usage",
        sends=sends(frames(chat_chunk({"content": "Hello there"}, "stop", usage=_USAGE)), frames("[DONE]")),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: the usage comes before the finish",
        sends=sends(
            frames(*chat_text("Hello there", finish=None)),
            *map(frames, (chat_usage(), chat_chunk(finish="stop"))),
            frames("[DONE]"),
        ),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: every chunk has an empty finish reason",
        sends=sends(
            *(frames(chunk) for chunk in (chat_chunk({"content": "Hello"}, ""), chat_chunk({"content": " there"}, ""))),
            frames(chat_chunk(finish="stop"), chat_usage(), "[DONE]"),
        ),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: the finish comes twice, with a keep-alive between",
        sends=sends(
            *(frames(chunk) for chunk in (*chat_text("Hello there"), chat_chunk(finish="stop"))),
            b": keep-alive\n\n",
            frames(chat_usage(), "[DONE]"),
        ),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: each text has a finish beside it",
        sends=sends(
            *(frames(chat_chunk({"content": text}, "stop", usage=_USAGE)) for text in ("Hello", " there")),
            frames("[DONE]"),
        ),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: the last text has the finish beside it, and nothing follows",
        sends=sends(frames(*chat_text("Hello", finish=None)), frames(chat_chunk({"content": " there"}, "length"))),
        views={
            CHAT_COMPLETIONS: Seen(text="Hello there", ended="cut"),
            MESSAGES: Seen(text="Hello there", has=(b"max_tokens",)),
            RESPONSES: Seen(text="Hello there", has=(b"response.incomplete",)),
        },
        billed=Counted(2),
    ),
    Oddity(
        name="Chat: text follows the finish",
        sends=sends(
            *(frames(chunk) for chunk in (*chat_text("Hello"), chat_chunk({"content": " there"}), chat_usage())),
            frames("[DONE]"),
        ),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
    Oddity(
        name="Chat: text and another finish follow the finish and the usage",
        sends=sends(
            *(frames(chunk) for chunk in (*chat_text("Hello"), chat_usage())),
            *(frames(chunk) for chunk in (chat_chunk({"content": " there"}), chat_chunk(finish="length"))),
            frames(chat_usage(), "[DONE]"),
        ),
        views={
            CHAT_COMPLETIONS: Seen(text="Hello there", has=(b'"finish_reason":"length"',)),
            MESSAGES: Seen(text="Hello there", has=(b'"stop_reason":"max_tokens"',)),
            RESPONSES: Seen(text="Hello there", has=(b"response.incomplete",)),
        },
        billed=USED,
    ),
    Oddity(
        name="Chat: a tool call follows the finish",
        sends=sends(
            *(frames(chunk) for chunk in (*chat_text("Hello"), chat_chunk({"tool_calls": [_CALL]}, "tool_calls"))),
            frames(chat_usage(), "[DONE]"),
        ),
        views={
            CHAT_COMPLETIONS: Seen(text="Hello", has=(b'"finish_reason":"tool_calls"', b"call_1")),
            MESSAGES: Seen(text="Hello", has=(b'"stop_reason":"tool_use"', b"call_1")),
            RESPONSES: Seen(text="Hello", has=(b'"type":"function_call"', b"call_1")),
        },
        billed=USED,
    ),
    Oddity(
        name="Messages: the finish tells no usage",
        spoken=MESSAGES,
        sends=sends(*(frames(event) for event in without("usage", message_text("Hello", " there")))),
        views=Seen(text="Hello there"),
        billed=Counted(2),
    ),
    Oddity(
        name="Responses: each event comes in a read of its own",
        spoken=RESPONSES,
        sends=sends(*(frames(event) for event in response_text("Hello", " there"))),
        views=Seen(text="Hello there"),
        billed=USED,
    ),
)
