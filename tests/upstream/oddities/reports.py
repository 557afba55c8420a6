"""Usage reports: in each place, where they do not belong, that repeat others as zeros, in events above the size bound,
and none at all."""

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.labels import REPORTED, TEXT
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

FORGED = {"input_tokens": 0, "output_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0}
MESSAGE = message_text("Hello", " there")
RESPONSE = response_text("Hello", " there")
ECHO = "x" * 5_000_000
COMPLETED = RESPONSE[-1] | {"response": RESPONSE[-1]["response"] | {"instructions": ECHO, "tools": [{"n": ECHO}]}}
OUTPUT = [{"type": "message", "content": [{"type": "output_text", "text": ECHO}]}]
REPEATED = RESPONSE[-1] | {"response": RESPONSE[-1]["response"] | {"output": OUTPUT}}

ROWS = (
    Oddity(
        name="Chat: the usage comes in the chunk after the finish",
        sends=sends(frames(*chat_text("Hello", " there"), chat_usage(), "[DONE]")),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Chat: no usage is reported",
        sends=sends(frames(*chat_text("Hello", " there"), "[DONE]")),
        views=TEXT,
        billed=Counted(2),
    ),
    Oddity(
        name="Messages: the usage comes in two parts",
        spoken=MESSAGES,
        sends=sends(frames(*message_text("Hello", " there"))),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Responses: the usage comes with the last event",
        spoken=RESPONSES,
        sends=sends(frames(*response_text("Hello", " there"))),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Chat: zeros repeat the usage",
        sends=sends(frames(*chat_text("Hello", " there"), chat_usage(), chat_usage(input=0, output=0), "[DONE]")),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Chat: a usage inside of another member",
        sends=sends(frames(*chat_text("Hello", " there"), chat_usage(), chat_usage(x={"usage": FORGED}), "[DONE]")),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Messages: an unknown event has a usage",
        spoken=MESSAGES,
        sends=sends(frames(*MESSAGE[:-1], {"type": "vendor_event", "usage": FORGED}, MESSAGE[-1])),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Messages: the end repeats the input as zero",
        spoken=MESSAGES,
        sends=sends(
            frames(*MESSAGE[:-2], MESSAGE[-2] | {"usage": {"input_tokens": 0, "output_tokens": 5}}, MESSAGE[-1])
        ),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Messages: the end moves the input to the cache",
        spoken=MESSAGES,
        sends=sends(
            frames(
                *MESSAGE[:-2],
                MESSAGE[-2] | {"usage": {"input_tokens": 2, "cache_read_input_tokens": 10, "output_tokens": 5}},
                MESSAGE[-1],
            )
        ),
        views=TEXT,
        billed=Tokens(input=12, output=5, cached_input=10),
    ),
    Oddity(
        name="Responses: an item has a usage",
        spoken=RESPONSES,
        sends=sends(frames(*RESPONSE[:-1], {"type": "response.x", "response": {"usage": FORGED}}, RESPONSE[-1])),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Responses: the last event echoes 10 MB of the request",
        spoken=RESPONSES,
        sends=sends(frames(*RESPONSE[:-1], COMPLETED)),
        views=TEXT,
        billed=REPORTED,
    ),
    Oddity(
        name="Responses: the last event repeats 5 MB of output",
        spoken=RESPONSES,
        sends=sends(frames(*RESPONSE[:-1], REPEATED)),
        views={CHAT_COMPLETIONS: TEXT, MESSAGES: TEXT, RESPONSES: Seen(text="Hello there")},
        billed=REPORTED,
    ),
)
