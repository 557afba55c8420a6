"""Servers that lack paths, in each form in which they say so, and errors that only look like it."""

from collections.abc import Iterator

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.behaviours import answer, answer_json
from tests.upstream.exchange import Behaviour
from tests.upstream.oddities.row import JSON, Oddity, Seen, chat_text, chat_usage, frames, response_text, sends

REPORTED = Tokens(input=12, output=5)
HTML = {"content-type": "text/html"}
PAGE = b"<!DOCTYPE html><html><head><title>Hello</title></head><body>A model of a page</body></html>"
FORMS: dict[str, Behaviour] = {
    "404, a detail": answer_json(404, {"detail": "Not Found"}),
    "404, an error object with a code": answer_json(404, {"error": {"message": "x", "code": "unknown_url"}}),
    "404, a message of a route": answer_json(404, {"message": "no Route matched with those values"}),
    "404, Invalid URL": answer_json(404, {"error": {"message": "Invalid URL (POST /v1/messages)", "code": None}}),
    "404, File Not Found": answer_json(404, {"error": {"code": 404, "message": "File Not Found", "type": "x"}}),
    "404, Not Found": answer_json(404, {"error": {"message": "Not Found", "type": "NotFoundError", "code": 404}}),
    "404, a flat error": answer_json(
        404, {"object": "error", "message": "Not Found", "type": "Not Found", "param": None, "code": 404}
    ),
    "404, a page": answer(404, PAGE, HTML),
    "404, plain text": answer(404, b"404 page not found", {"content-type": "text/plain"}),
    "404, nothing": answer(404),
    "405, nothing": answer(405),
    "405, an error object": answer_json(405, {"error": {"message": "Method Not Allowed", "code": 405}}),
    "501, a page": answer(501, PAGE, HTML),
    "501, an error object": answer_json(501, {"error": {"message": "no", "code": "api_not_implemented"}}),
    "200, an error text": answer_json(200, {"error": "Unexpected endpoint or method. (POST /v1/messages)"}),
    "200, a status and a reason": answer_json(200, {"status": 404, "error": "Not Found", "path": "/v1/messages"}),
    "200, a code and a message": answer_json(200, {"code": 404, "msg": "Nothing is here", "data": None}),
    "200, a message of a route": answer_json(200, {"success": False, "message": "no Route matched with those values"}),
    "200, an error in pieces": sends(b'{"error": {"mess', b'age": "Invalid', b' URL"}}', label=JSON),
    "200, a page": answer(200, PAGE, HTML),
    "200, a page in pieces": sends(PAGE[:4], PAGE[4:], label="text/html"),
}
CHAT_ANSWER = sends(frames(*chat_text("Hello"), chat_usage(), "[DONE]"))
RESPONSES_ANSWER = sends(frames(*response_text("Hello")))


def missing() -> Iterator[Oddity]:
    """A server of one dialect: callers of the others are translated."""
    for form, lacks in FORMS.items():
        yield Oddity(
            name=f"a server of Chat Completions lacks other paths: {form}",
            sends=CHAT_ANSWER,
            lacks=lacks,
            views=Seen(text="Hello"),
            billed=REPORTED,
        )
        yield Oddity(
            name=f"a server of Responses lacks other paths: {form}",
            spoken=RESPONSES,
            sends=RESPONSES_ANSWER,
            lacks=lacks,
            views=Seen(text="Hello"),
            billed=REPORTED,
        )


def model_missing(name: str, behaviour: Behaviour, status: int) -> Oddity:
    """The same error on each path; it passes, and no other dialect is tried."""
    return Oddity(
        name=f"a missing model: {name}",
        sends=CHAT_ANSWER,
        lacks=behaviour,
        views={caller: Seen(status=status, ended="failed") for caller in (MESSAGES, RESPONSES)},
        billed=Tokens(),
    )


UNKNOWN = {"message": "The model `m` does not exist", "type": "invalid_request_error", "code": "model_not_found"}

ROWS = (
    *missing(),
    model_missing("404, an error object", answer_json(404, {"error": UNKNOWN}), 404),
    model_missing("404, an error text", answer_json(404, {"error": "model 'm' not found"}), 404),
    model_missing("404, a flat error", answer_json(404, UNKNOWN | {"object": "error", "code": 404}), 404),
    model_missing("200, an error object", answer_json(200, {"error": UNKNOWN}), 502),
    Oddity(
        name="an error under a 200 that says nothing of the path",
        sends=CHAT_ANSWER,
        lacks=answer_json(200, {"error": {"message": "overloaded"}}),
        views={caller: Seen(status=502, ended="failed", has=(b"overloaded",)) for caller in (MESSAGES, RESPONSES)},
        billed=Tokens(),
    ),
    Oddity(
        name="a whole answer of a server whose paths may be missing comes in pieces",
        stream=False,
        sends=sends(
            b'{"id": "c", "model": "their-model", "choices": [{"index": 0, "message": {"role": "assistant", ',
            b'"content": "Hello"}, "finish_reason": "stop"}], "usage": ',
            b'{"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}}',
            label=JSON,
        ),
        views={CHAT_COMPLETIONS: Seen(text="Hello")},
        billed=REPORTED,
    ),
)
