"""Odd usage reports: where they stand, what they repeat, and none at all."""

from policy.billing import Tokens
from policy.endpoints import MESSAGES, RESPONSES
from tests.upstream.oddities.row import (
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

ROWS = (
    Oddity(
        name="Chat: the usage comes in the chunk after the finish",
        sends=sends(frames(*chat_text("Hello", " there"), chat_usage(), "[DONE]")),
        seen=Seen(text="Hello there"),
        billed=Tokens(input=12, output=5, cached_input=0),
    ),
    Oddity(
        name="Chat: no usage is reported",
        sends=sends(frames(*chat_text("Hello", " there"), "[DONE]")),
        seen=Seen(text="Hello there"),
        billed=Counted(2),
    ),
    Oddity(
        name="Messages: the usage comes in two parts",
        spoken=MESSAGES,
        sends=sends(frames(*message_text("Hello", " there"))),
        seen=Seen(text="Hello there"),
        billed=Tokens(input=12, output=5, cached_input=0),
    ),
    Oddity(
        name="Responses: the usage comes with the last event",
        spoken=RESPONSES,
        sends=sends(frames(*response_text("Hello", " there"))),
        seen=Seen(text="Hello there"),
        billed=Tokens(input=12, output=5, cached_input=0),
    ),
)
