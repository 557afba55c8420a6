"""A row of the table of odd answers, and the behaviours that rows are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from policy.billing import NO_DETAILS, Details, Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.behaviours import answer_json, chunked, head
from tests.upstream.chat_completions import event
from tests.upstream.exchange import Behaviour, Exchange

Json = dict[str, Any]
Ended = Literal["complete", "failed", "cut"]
"""`complete`: the dialect's own last event came, and no failure. `failed`: a failure was told. `cut`: neither."""

CALLERS = (CHAT_COMPLETIONS, MESSAGES, RESPONSES)
TARGET_MODEL = "their-model"
"""The target's name of the model. No caller may see it."""
SSE = "text/event-stream"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A caller's view of an answer."""

    text: str = ""
    """All text of the answer, in the order in which it came."""
    status: int = 200
    ended: Ended = "complete"
    has: tuple[bytes, ...] = ()
    """Occur in the answer, header fields included."""
    lacks: tuple[bytes, ...] = ()
    """Do not occur in it. The target's model, host and credential never do: a row need not say so."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Usage without a report: this many output tokens are counted, and the request's own input."""

    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity:
    """One odd answer."""

    name: str
    """A clause that says what is odd."""
    sends: Behaviour
    """The server's answer on the path of `spoken`."""
    lacks: Behaviour = field(default_factory=lambda: answer_json(404, {"detail": "Not Found"}))
    """The server's answer on the paths of the other dialects, which it lacks."""
    views: Seen | Mapping[str, Seen]
    """Views of callers, by their dialect. One `Seen` stands for all three."""
    billed: Tokens | Counted
    details: Details = NO_DETAILS
    """The details that are billed."""
    spoken: str = CHAT_COMPLETIONS
    """The only dialect that the server speaks."""
    stream: bool = True
    """True for a caller that asks for a stream."""
    logged: int | None = None
    """The status in metrics, log and event; None if it is the status that the caller sees."""
    asks: Json = field(default_factory=dict)
    """Additional members of the caller's request. Give them in a row whose `views` names one caller."""

    def seen_by(self, caller: str) -> Seen | None:
        return self.views if isinstance(self.views, Seen) else self.views.get(caller)


def frames(*values: Json | str) -> bytes:
    """SSE frames: of a JSON value, or of text as it is. Frames of Messages and Responses get their `event:` line."""
    return b"".join(_frame(value) for value in values)


def _frame(value: Json | str) -> bytes:
    if isinstance(value, str):
        return f"data: {value}\n\n".encode()
    kind = value.get("type")
    return (f"event: {kind}\n".encode() if isinstance(kind, str) else b"") + event(value)


def sends(
    *pieces: bytes, label: str | None = SSE, status: int = 200, then: Literal["end", "stay", "close"] = "end"
) -> Behaviour:
    """Send the pieces as chunks, labelled `label` (None: without a content type).

    Then end the message, or stay open without its last chunk until the client closes, or close without it.
    """

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        fields = {"transfer-encoding": "chunked"} | ({"content-type": label} if label is not None else {})
        await exchange.send(head(status, fields))
        for piece in pieces:
            await exchange.send(chunked(piece, end=False))
        if then == "end":
            await exchange.send(chunked())
        elif then == "close":
            exchange.close()
        else:
            await exchange.client_closed()
            exchange.keep = False

    return behave


def refuses_then(refusal: Behaviour, *, unless: bytes, answer: Behaviour) -> Behaviour:
    """Refuse a request whose body holds `unless`, and answer any other one."""

    async def behave(exchange: Exchange) -> None:
        is_refused = unless in await exchange.read_body()
        await (refusal if is_refused else answer)(exchange)

    return behave


def chat_chunk(delta: Json | None = None, finish: str | None = None, **members: Any) -> Json:
    """A chunk of Chat Completions with one choice."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": TARGET_MODEL}
    return chunk | {"choices": [choice]} | members


def chat_text(*words: str, finish: str | None = "stop") -> list[Json]:
    """The chunks of a text, and its finish."""
    chunks = [chat_chunk({"role": "assistant", "content": ""}), *(chat_chunk({"content": word}) for word in words)]
    return [*chunks, *([chat_chunk(finish=finish)] if finish is not None else [])]


def chat_usage(input: int = 12, output: int = 5, **members: Any) -> Json:
    """The chunk with the usage, which has no choice."""
    usage = {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
    return chat_chunk(usage=usage) | {"choices": []} | members


def message_text(*words: str, input: int = 12, output: int = 5) -> list[Json]:
    """The events of a Messages stream."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": TARGET_MODEL, "content": []}
    usage = {"input_tokens": input, "output_tokens": 1}
    head = message | {"stop_reason": None, "stop_sequence": None, "usage": usage}
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return [
        {"type": "message_start", "message": head},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": output},
        },
        {"type": "message_stop"},
    ]


def response_text(*words: str, input: int = 12, output: int = 5) -> list[Json]:
    """The events of a Responses stream."""
    text = "".join(words)
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    usage = {"input_tokens": input, "output_tokens": output, "total_tokens": input + output}
    events: Sequence[Json] = [
        {"type": "response.created", "response": _response("in_progress")},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item | {"status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": part | {"text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": word} for word in words),
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": _response("completed", output=[item], usage=usage)},
    ]
    return [value | {"sequence_number": number} for number, value in enumerate(events)]


def _response(status: str, **members: Any) -> Json:
    response = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": TARGET_MODEL}
    return response | {"output": [], "error": None, "usage": None} | members
