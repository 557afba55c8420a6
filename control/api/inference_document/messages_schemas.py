"""Schemas of Messages: what the gateway reads, writes and guarantees. The vendor describes all members."""

from control.api.inference_document.chat_schemas import CALLED_SLUG, CAP, METADATA, SLUG, STREAM
from control.api.inference_document.json_schema import (
    Json,
    anything,
    choice,
    free_object,
    integer,
    list_of,
    or_null,
    record,
    reference,
    text,
)

_INDEX = integer("The block's place in `content`.")
_TURNS = list_of(free_object("A turn: `role` and `content`."), "The conversation.")
_PROMPT: Json = {
    "model": CALLED_SLUG,
    "messages": _TURNS,
    "system": {"type": ["string", "array", "null"], "items": {}, "description": "The system prompt."},
}


def _event(kind: str, description: str, members: Json, required: list[str]) -> Json:
    return record(description, {"type": {"const": kind, "type": "string"}, **members}, ["type", *required])


_EVENTS: Json = {
    "MessageStartEventV1": _event(
        "message_start", "The message begins.", {"message": reference("MessageV1")}, ["message"]
    ),
    "ContentBlockStartEventV1": _event(
        "content_block_start",
        "A block begins.",
        {"index": _INDEX, "content_block": reference("ContentBlockV1")},
        ["index", "content_block"],
    ),
    "ContentBlockDeltaEventV1": _event(
        "content_block_delta",
        "A piece of a block.",
        {
            "index": _INDEX,
            "delta": record(
                "`text_delta` has `text`, `input_json_delta` `partial_json`, `thinking_delta` `thinking`,"
                " `signature_delta` `signature`.",
                {"type": text(), "text": text(), "partial_json": text(), "thinking": text(), "signature": text()},
                ["type"],
            ),
        },
        ["index", "delta"],
    ),
    "ContentBlockStopEventV1": _event("content_block_stop", "A block ends.", {"index": _INDEX}, ["index"]),
    "MessageDeltaEventV1": _event(
        "message_delta",
        "The message's end. Its usage is that of the whole answer.",
        {
            "delta": record("What changes.", {"stop_reason": or_null(text()), "stop_sequence": or_null(text())}),
            "usage": reference("MessageUsageV1"),
        },
        ["delta"],
    ),
    "MessageStopEventV1": _event("message_stop", "The last event.", {}, []),
    "PingEventV1": _event("ping", "Says nothing.", {}, []),
    "MessageErrorEventV1": _event(
        "error", "A failure. Nothing follows it.", {"error": free_object("`type` and `message`.")}, ["error"]
    ),
}
_KINDS = [schema["properties"]["type"]["const"] for schema in _EVENTS.values()]

SCHEMAS: Json = {
    "MessageRequestV1": record(
        "A request of Messages. All members of the vendor's may be sent; these the gateway acts on.",
        _PROMPT
        | {
            "max_tokens": CAP | {"description": "The cap on output tokens. Most targets demand it."},
            "stream": STREAM,
            "metadata": METADATA,
        },
        ["model", "messages"],
    ),
    "ContentBlockV1": record(
        "A block of an answer.",
        {
            "type": text(examples=["text", "tool_use", "thinking", "redacted_thinking"]),
            "text": or_null(text("Of a `text`.")),
            "id": or_null(text("Of a `tool_use`.")),
            "name": or_null(text("Of a `tool_use`.")),
            "input": anything("Of a `tool_use`: the arguments."),
            "thinking": or_null(text("Of a `thinking`.")),
            "signature": or_null(text("Of a `thinking`: return it unchanged with the next turn.")),
            "data": anything("Of a `redacted_thinking`: return it unchanged with the next turn."),
        },
        ["type"],
    ),
    "MessageUsageV1": record(
        "The tokens of a call.",
        {
            "input_tokens": or_null(integer("Without those that were read from the cache or written to it.")),
            "cache_creation_input_tokens": or_null(integer()),
            "cache_read_input_tokens": or_null(integer()),
            "output_tokens": or_null(integer()),
        },
    ),
    "MessageV1": record(
        "An answer of Messages.",
        {
            "id": text(),
            "type": text(examples=["message"]),
            "role": text(examples=["assistant"]),
            "model": SLUG,
            "content": list_of(reference("ContentBlockV1")),
            "stop_reason": or_null(text(examples=["end_turn", "max_tokens", "tool_use", "refusal"])),
            "stop_sequence": or_null(text()),
            "usage": reference("MessageUsageV1"),
        },
        ["id", "type", "role", "model", "content", "usage"],
    ),
    **_EVENTS,
    "OtherMessageEventV1": record(
        "An event of a type that the vendor has added: ignore it.",
        {"type": {"type": "string", "not": {"enum": _KINDS}}},
        ["type"],
    ),
    "MessageEventV1": choice(
        "The data of an event of a stream. `message_stop` is the last one.",
        *map(reference, (*_EVENTS, "OtherMessageEventV1")),
    ),
    "MessageTokensRequestV1": record("A request to count its tokens.", _PROMPT, ["model", "messages"]),
    "MessageTokensV1": record(
        "The tokens of the request: the target's count, or the gateway's estimate where the target has none.",
        {"input_tokens": integer()},
        ["input_tokens"],
    ),
}
