"""Servers that refuse what we add to a stream's request, and chunks of the usage that we asked for."""

from collections.abc import Iterator
from typing import Any

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS
from tests.upstream.behaviours import answer, answer_json
from tests.upstream.exchange import Behaviour
from tests.upstream.oddities.row import (
    Counted,
    Json,
    Oddity,
    Seen,
    chat_chunk,
    chat_text,
    chat_usage,
    frames,
    refuses_then,
    sends,
)

REPORTED = Tokens(input=12, output=5)
NAME = b"stream_options"
EXTRA = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted", "input": {"include_usage": True}}
REFUSALS: dict[str, Behaviour] = {
    "a list of faults, 422": answer_json(422, {"detail": [EXTRA | {"loc": ["body", "stream_options"]}]}),
    "a list of faults in a message, 422": answer_json(
        422, {"object": "error", "message": {"detail": [EXTRA | {"loc": ["body", "stream_options", "include_usage"]}]}}
    ),
    "an error object, 400": answer_json(
        400, {"error": {"message": "property 'stream_options' is unsupported", "type": "invalid_request_error"}}
    ),
    "an error text, 400": answer_json(400, {"error": "unknown parameter: include_usage"}),
    "plain text, 400": answer(400, b"json: unknown field stream_options", {"content-type": "text/plain"}),
    "an error object, 200": answer_json(200, {"error": {"message": "unknown field stream_options"}}),
}
COUNTED = sends(frames(*chat_text("Hello"), "[DONE]"))


def refused() -> Iterator[Oddity]:
    for form, refusal in REFUSALS.items():
        yield Oddity(
            name=f"Chat: stream_options are refused by {form}",
            sends=refuses_then(refusal, unless=NAME, answer=COUNTED),
            views=Seen(text="Hello"),
            billed=Counted(1),
        )
    yield Oddity(
        name="Chat: stream_options of the caller are refused",
        sends=refuses_then(REFUSALS["an error object, 400"], unless=NAME, answer=COUNTED),
        views={CHAT_COMPLETIONS: Seen(status=400, ended="failed", has=(NAME,))},
        asks={"stream_options": {"include_usage": True}},
        billed=Tokens(),
    )
    yield Oddity(
        name="Chat: stream_options of the caller that ask for no usage are refused",
        sends=refuses_then(REFUSALS["a list of faults, 422"], unless=NAME, answer=COUNTED),
        views={CHAT_COMPLETIONS: Seen(status=422, ended="failed", has=(NAME,))},
        asks={"stream_options": {"include_usage": False}},
        billed=Tokens(),
    )
    yield Oddity(
        name="Chat: another member is refused with the whole request",
        sends=answer_json(422, {"detail": [{"loc": ["body", "x"], "input": {"stream_options": {}}}]}),
        views=Seen(status=422, ended="failed"),
        billed=Tokens(),
    )


def usage_chunk(name: str, chunk: Json, **expectations: Any) -> Oddity:
    return Oddity(
        name=f"Chat: the usage that we asked for comes {name}",
        sends=sends(frames(*chat_text("Hello"), chunk, "[DONE]")),
        views={CHAT_COMPLETIONS: Seen(text="Hello", **expectations)},
        billed=REPORTED,
    )


USAGE = chat_usage()
WITHOUT_CHOICES = {name: value for name, value in USAGE.items() if name != "choices"}
LACKS_USAGE = (b'"usage"', b"prompt_tokens")

ROWS = (
    *refused(),
    usage_chunk("without a choice", USAGE, lacks=LACKS_USAGE),
    usage_chunk("without choices", WITHOUT_CHOICES, lacks=LACKS_USAGE),
    usage_chunk("with choices that are null", USAGE | {"choices": None}, lacks=LACKS_USAGE),
    usage_chunk("with citations", USAGE | {"citations": ["https://a.test"]}, has=(b"https://a.test",)),
    Oddity(
        name="Chat: the usage that we asked for comes with the last text",
        sends=sends(
            frames(
                *chat_text("Hel", finish=None), chat_chunk({"content": "lo"}, "stop", usage=USAGE["usage"]), "[DONE]"
            )
        ),
        views=Seen(text="Hello"),
        billed=REPORTED,
    ),
)
