"""Details of usage reports: in each dialect's words, streamed and whole, in the words of another, and cut off."""

from collections.abc import Iterator

import orjson

from policy.billing import Details, Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.labels import REPORTED, TEXT, whole
from tests.upstream.oddities.row import (
    JSON,
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

SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}}
OPENING = SEARCH | {"id": "ws_2", "action": {"type": "open_page", "url": "https://example.com"}}
DRAWN = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * 5_000_000}
CHAT_REPORT = {
    **{"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 203},
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 30, "audio_tokens": 10, "image_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 94, "audio_tokens": 3},
}
CHAT_DETAILS = Details(
    cache_write=30, reasoning=94, audio_input=10, audio_output=3, image_input=5, service_tier="priority"
)
MESSAGES_INPUT = {
    **{"input_tokens": 50, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 30},
    "service_tier": "standard",
    "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 10},
}
MESSAGES_OUTPUT = {
    **{"output_tokens": 103, "server_tool_use": {"web_search_requests": 2}},
    "output_tokens_details": {"thinking_tokens": 94},
}
MESSAGES_DETAILS = Details(
    cache_write=30, cache_write_1h=10, reasoning=94, server_tool_calls=2, service_tier="standard"
)
RESPONSES_REPORT = {
    **{"input_tokens": 100, "output_tokens": 103, "total_tokens": 203},
    "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 30},
    "output_tokens_details": {"reasoning_tokens": 94},
}
RESPONSES_DETAILS = Details(cache_write=30, reasoning=94, server_tool_calls=1, service_tier="flex")
BILLED = Tokens(input=100, output=103, cached_input=20)

TOLD = {
    CHAT_COMPLETIONS: Seen(text="Hello there", has=(b'"cache_write_tokens":30', b'"reasoning_tokens":94')),
    MESSAGES: Seen(text="Hello there", has=(b'"cache_creation_input_tokens":30', b'"thinking_tokens":94')),
    RESPONSES: Seen(text="Hello there", has=(b'"cache_write_tokens":30', b'"reasoning_tokens":94')),
}
"""An answer with these details, in each caller's words."""
TOLD_IN_A_STREAM = TOLD | {CHAT_COMPLETIONS: TEXT}
"""The same in a stream. A caller of Chat Completions that does not ask for the usage gets none."""


def chat_events() -> list[Json | str]:
    return [*chat_text("Hello", " there"), chat_usage(usage=CHAT_REPORT, service_tier="priority"), "[DONE]"]


def message_events() -> list[Json]:
    start, *others, delta, stop = message_text("Hello", " there")
    message = start["message"] | {"usage": MESSAGES_INPUT | {"output_tokens": 1}}
    return [start | {"message": message}, *others, delta | {"usage": MESSAGES_OUTPUT}, stop]


def response_events(output: list[Json], *, told_at_the_end: bool) -> list[Json]:
    """A stream with items before its text. `told_at_the_end`: the last event repeats all output."""
    first, *others, last = response_text("Hello", " there")
    text = last["response"]["output"] if told_at_the_end else []
    response = last["response"] | {
        "output": [*(output if told_at_the_end else []), *text],
        "usage": RESPONSES_REPORT,
        "service_tier": "flex",
    }
    events = [each | ({"output_index": len(output)} if "output_index" in each else {}) for each in others]
    return [first, *item_events(output), *events, last | {"response": response}]


def item_events(output: list[Json]) -> list[Json]:
    """The start and the end of each item."""
    return [
        event
        for index, item in enumerate(output)
        for event in (
            {"type": "response.output_item.added", "output_index": index, "item": begun(item)},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        )
    ]


def begun(item: Json) -> Json:
    """The item before it has a result."""
    return {name: value for name, value in item.items() if name != "result"} | {"status": "in_progress"}


def wholes() -> Iterator[tuple[str, Json, Details]]:
    """A whole answer of each dialect."""
    chat = whole(CHAT_COMPLETIONS) | {"usage": CHAT_REPORT, "service_tier": "priority"}
    yield CHAT_COMPLETIONS, chat, CHAT_DETAILS
    yield MESSAGES, whole(MESSAGES) | {"usage": MESSAGES_INPUT | MESSAGES_OUTPUT}, MESSAGES_DETAILS
    response = whole(RESPONSES)
    output = [SEARCH, OPENING, *response["output"]]
    yield RESPONSES, response | {"output": output, "usage": RESPONSES_REPORT, "service_tier": "flex"}, RESPONSES_DETAILS


def _wholes() -> Iterator[Oddity]:
    for dialect, answer, details in wholes():
        yield Oddity(
            name=f"{dialect}: details of a whole answer",
            spoken=dialect,
            sends=sends(orjson.dumps(answer), label=JSON),
            stream=False,
            views=TOLD,
            billed=BILLED,
            details=details,
        )
        yield Oddity(
            name=f"{dialect}: details of a whole answer that no strict parser reads",
            spoken=dialect,
            sends=sends(orjson.dumps(answer)[:-1] + b',"x":NaN}', label=JSON),
            stream=False,
            views=TOLD,
            billed=BILLED,
            details=details,
        )


ROWS = (
    *_wholes(),
    Oddity(
        name="Chat: details of a stream, reasoning beside the output",
        sends=sends(frames(*chat_events())),
        views=TOLD_IN_A_STREAM,
        billed=BILLED,
        details=CHAT_DETAILS,
    ),
    Oddity(
        name="Chat: the total alone tells that the model thought",
        sends=sends(
            frames(
                *chat_text("Hello", " there"),
                chat_usage(usage={"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 50}),
                "[DONE]",
            )
        ),
        views=TEXT,
        billed=Tokens(input=12, output=38),
        details=Details(reasoning=33),
    ),
    Oddity(
        name="Chat: malformed details withdraw no report",
        sends=sends(
            frames(
                *chat_text("Hello", " there"),
                chat_usage(
                    usage={
                        **{"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
                        "completion_tokens_details": {"reasoning_tokens": "3", "audio_tokens": -1, "image_tokens": 1e3},
                        "prompt_tokens_details": {"cached_tokens": None, "cache_write_tokens": [], "image_tokens": {}},
                        "server_tool_use": 7,
                    },
                    service_tier=["flex"],
                ),
                "[DONE]",
            )
        ),
        views=TEXT,
        billed=REPORTED,
        details=Details(),
    ),
    Oddity(
        name="Messages: details of a stream",
        spoken=MESSAGES,
        sends=sends(frames(*message_events())),
        views=TOLD_IN_A_STREAM,
        billed=BILLED,
        details=MESSAGES_DETAILS,
    ),
    Oddity(
        name="Messages: the stream breaks off, and its start told cache writes",
        spoken=MESSAGES,
        sends=sends(frames(*message_events()[:4]), then="close"),
        views=Seen(text="Hello there", ended="cut"),
        billed=Counted(2),
        details=Details(cache_write=30, cache_write_1h=10, service_tier="standard"),
        logged=502,
    ),
    Oddity(
        name="Responses: details of a stream",
        spoken=RESPONSES,
        sends=sends(frames(*response_events([SEARCH, OPENING], told_at_the_end=True))),
        views=TOLD_IN_A_STREAM,
        billed=BILLED,
        details=RESPONSES_DETAILS,
    ),
    Oddity(
        name="Responses: the last event repeats none of the calls of tools",
        spoken=RESPONSES,
        sends=sends(frames(*response_events([SEARCH, OPENING], told_at_the_end=False))),
        views=TOLD_IN_A_STREAM,
        billed=BILLED,
        details=RESPONSES_DETAILS,
    ),
    Oddity(
        name="Responses: a call of a tool brings 5 MB",
        spoken=RESPONSES,
        sends=sends(frames(*response_events([DRAWN], told_at_the_end=False))),
        views={RESPONSES: TEXT},
        billed=BILLED,
        details=RESPONSES_DETAILS,
    ),
    Oddity(
        name="Responses: the stream breaks off after calls of tools",
        spoken=RESPONSES,
        sends=sends(frames(*response_events([SEARCH, OPENING], told_at_the_end=False)[:-1]), then="close"),
        views=Seen(text="Hello there", ended="cut"),
        billed=Counted(2),
        details=Details(server_tool_calls=1),
        logged=502,
    ),
)
