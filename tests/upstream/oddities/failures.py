"""Failures that a server reports under a 200: in each form, wherever they come, in streams and in whole answers."""

from collections.abc import Iterator, Mapping

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.behaviours import answer_json
from tests.upstream.oddities.row import (
    CALLERS,
    TARGET_MODEL,
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

ERROR = {"message": "overloaded", "type": "overloaded_error"}
RESPONSES_ERROR = {"type": "error", "code": "server_error", "message": "overloaded"}
REPORTED = Tokens(input=12, output=5)
ENDINGS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")
"""Marks of a complete answer, in each dialect."""
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
ARGUMENTS = {"type": "input_json_delta", "partial_json": '{"a":'}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}


def last_word(target_dialect: str, text: str) -> Mapping[str, Seen]:
    """The caller of the server's own dialect gets its bytes; to the others the failure is the last word."""
    failed_answer = Seen(text=text, ended="failed", has=(b"overloaded",), lacks=ENDINGS)
    passed = Seen(text=text, ended="failed", has=(b"overloaded",))
    return {caller: passed if caller == target_dialect else failed_answer for caller in CALLERS}


def streams(target_dialect: str, text: list[Json], call: list[Json], failure: Json, form: str) -> Iterator[Oddity]:
    """A failure at each place of a stream. Its last four events are the end of the text and of the answer.

    A failed response is the last event itself: no usage follows it.
    """
    end: list[Json | str] = ["[DONE]"] if target_dialect == CHAT_COMPLETIONS else []
    is_last = failure.get("type") == "response.failed"
    whole = text if target_dialect == CHAT_COMPLETIONS else text[:-1]
    places: dict[str, tuple[list[Json], str, Tokens | Counted]] = {
        "before all": ([failure, *text], "", Tokens() if is_last else REPORTED),
        "amid text": ([*text[:-4], failure, *text[-2:]], "Hello", Counted(1) if is_last else REPORTED),
        "amid a tool call": ([*call, failure], "", Counted(4)),
        "after the answer": ([*whole, failure], "Hello", Counted(1) if target_dialect == RESPONSES else REPORTED),
        "twice": ([*text[:-4], failure, failure], "Hello", Counted(1)),
    }
    for place, (events, seen_text, billed) in places.items():
        passes_text = target_dialect if place == "before all" and not is_last else ""
        yield Oddity(
            name=f"{target_dialect}: {form}, {place}",
            spoken=target_dialect,
            sends=sends(*(frames(event) for event in events), frames(*end)),
            views={
                caller: Seen(text="Hello", ended="failed") if caller == passes_text else each
                for caller, each in last_word(target_dialect, seen_text).items()
            },
            billed=billed,
            logged=502,
        )


def chat_streams() -> Iterator[Oddity]:
    text = [*chat_text("Hello", finish=None), chat_chunk(), chat_chunk(), chat_chunk(finish="stop"), chat_usage()]
    call = [chat_chunk({"role": "assistant", "tool_calls": [CALL]})]
    forms: dict[str, Json] = {
        "an error object": {"error": ERROR},
        "an error text": {"error": "overloaded"},
        "an error in a choice": chat_chunk(finish="error")
        | {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": ERROR}]},
        "an error in a second choice": chat_chunk()
        | {"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {}, "error": ERROR}]},
    }
    for form, failure in forms.items():
        yield from streams(CHAT_COMPLETIONS, text, call, failure, form)


def messages_streams() -> Iterator[Oddity]:
    text = message_text("Hello")
    text.insert(-3, {"type": "ping"})
    call: list[Json] = [
        message_text("")[0],
        {"type": "content_block_start", "index": 0, "content_block": TOOL_USE},
        {"type": "content_block_delta", "index": 0, "delta": ARGUMENTS},
    ]
    forms: dict[str, Json] = {"an error event": {"type": "error", "error": ERROR}, "a bare error": {"error": ERROR}}
    for form, failure in forms.items():
        yield from streams(MESSAGES, text, call, failure, form)


def responses_streams() -> Iterator[Oddity]:
    text = response_text("Hello")
    call: list[Json] = [
        text[0],
        {"type": "response.output_item.added", "output_index": 0, "item": FUNCTION_CALL},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a":'},
    ]
    failed = {"id": "resp_1", "object": "response", "status": "failed", "model": TARGET_MODEL, "error": ERROR}
    forms: dict[str, Json] = {
        "an error event": RESPONSES_ERROR,
        "a failed response": {"type": "response.failed", "response": failed},
        "a bare error": {"error": ERROR},
    }
    for form, failure in forms.items():
        yield from streams(RESPONSES, text, call, failure, form)


def open_streams() -> Iterator[Oddity]:
    """A failure, the usage right behind it, and then an upstream that stays open."""
    reported: dict[str, Json] = {MESSAGES: message_text("Hello")[-2], CHAT_COMPLETIONS: chat_usage()}
    failures: dict[str, Json] = {MESSAGES: {"type": "error", "error": ERROR}, CHAT_COMPLETIONS: {"error": ERROR}}
    begins = {MESSAGES: message_text("Hello")[:3], CHAT_COMPLETIONS: chat_text("Hello", finish=None)}
    for target_dialect, begin in begins.items():
        for form, failure in {"error": failures[target_dialect], "bare error": {"error": ERROR}}.items():
            yield Oddity(
                name=f"{target_dialect}: the upstream stays open after an {form} and the usage",
                spoken=target_dialect,
                sends=sends(
                    *(frames(each) for each in (*begin, failure, reported[target_dialect])), b": alive\n\n", then="stay"
                ),
                views=last_word(target_dialect, "Hello"),
                billed=REPORTED,
                logged=502,
            )
    yield Oddity(
        name="Responses: the upstream stays open after an error event",
        spoken=RESPONSES,
        sends=sends(*map(frames, response_text("Hello")[:4]), frames(RESPONSES_ERROR), then="stay"),
        views=last_word(RESPONSES, "Hello"),
        billed=Counted(1),
        logged=502,
    )
    yield Oddity(
        name="Chat: the upstream stays open after a finish that says that it gave up",
        sends=sends(*map(frames, chat_text("Hello", finish="abort")), then="stay"),
        views={
            caller: Seen(text="Hello", ended="failed", has=(b"abort",), lacks=ENDINGS)
            for caller in (MESSAGES, RESPONSES)
        },
        billed=Counted(1),
        logged=502,
    )


def whole(name: str, answer: Json, target_dialect: str, passed: Seen) -> Iterator[Oddity]:
    """A whole answer that failed: as it came to the caller of its dialect, an error to the others."""
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "input_tokens": 12, "output_tokens": 5}
    body = answer | {"model": TARGET_MODEL, "usage": usage}
    others = {
        caller: Seen(status=502, ended="failed", has=(b"overloaded",)) for caller in CALLERS if caller != target_dialect
    }
    for views, kind in (({target_dialect: passed}, "passed"), (others, "translated")):
        yield Oddity(
            name=f"{name}, {kind}",
            spoken=target_dialect,
            stream=False,
            sends=answer_json(200, body),
            views=views,
            billed=REPORTED,
        )


def without_output() -> Iterator[Oddity]:
    """A body that says in another form than an error that it is no answer: it fails where it must be translated."""
    for body in ({"success": False, "message": "overloaded"}, {"code": 529, "msg": "overloaded", "data": None}):
        yield Oddity(
            name=f"Chat: a whole body has no output but {', '.join(body)}",
            stream=False,
            sends=answer_json(200, body),
            views={caller: Seen(status=502, ended="failed", has=(b"overloaded",)) for caller in (MESSAGES, RESPONSES)},
            billed=Tokens(),
        )
        for place, begin, text, billed in (("alone", [], "", Tokens()), ("after text", BEGUN, "Hello", Counted(1))):
            yield Oddity(
                name=f"Chat: a frame has no output but {', '.join(body)}, {place}",
                sends=sends(*map(frames, begin), frames(body, "[DONE]")),
                views={caller: each for caller, each in last_word("", text).items() if caller != CHAT_COMPLETIONS},
                billed=billed,
                logged=502,
            )


def message_before_output() -> Oddity:
    return Oddity(
        name="Chat: a message of the server's own comes before the output",
        sends=sends(frames({"status": "loading", "message": "overloaded"}, *BEGUN, "[DONE]")),
        views=dict.fromkeys((MESSAGES, RESPONSES), Seen(text="Hello", ended="complete", lacks=(b"overloaded",))),
        billed=Counted(1),
        logged=200,
    )


BEGUN = chat_text("Hello", finish=None)
PARTIAL = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "error", "error": ERROR}
OUTPUT = response_text("Hello")[-1]["response"]["output"]
FAILED = {"id": "resp_1", "object": "response", "status": "failed", "error": ERROR, "output": OUTPUT}

ROWS = (
    *chat_streams(),
    *messages_streams(),
    *responses_streams(),
    *open_streams(),
    *without_output(),
    message_before_output(),
    Oddity(
        name="Chat: text and a failure come in one piece",
        sends=sends(frames(*chat_text("Hello", finish=None), {"error": ERROR}, "[DONE]")),
        views=last_word(CHAT_COMPLETIONS, "Hello"),
        billed=Counted(1),
        logged=502,
    ),
    Oddity(
        name="Chat: a failure alone",
        sends=sends(frames({"error": ERROR}, "[DONE]")),
        views=last_word(CHAT_COMPLETIONS, ""),
        billed=Tokens(),
        logged=502,
    ),
    *whole(
        "Chat: a whole answer with an error in a choice",
        {"id": "c", "object": "chat.completion", "choices": [PARTIAL]},
        CHAT_COMPLETIONS,
        Seen(text="Hello", ended="failed", has=(b"overloaded",)),
    ),
    *whole(
        "Responses: a whole response that failed after some output",
        FAILED,
        RESPONSES,
        Seen(text="Hello", ended="failed", has=(b"overloaded",)),
    ),
)
