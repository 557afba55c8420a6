"""Schemas of Responses: what the gateway reads, writes and guarantees. The vendor describes all members."""

from control.api.inference_document.chat_schemas import CALLED_SLUG, CAP, METADATA, SLUG, STREAM
from control.api.inference_document.json_schema import (
    Json,
    choice,
    free_object,
    integer,
    list_of,
    number,
    or_null,
    record,
    reference,
    text,
)

_STATES = ("created", "queued", "in_progress", "completed", "incomplete", "failed")
_STATE_TYPES = [f"response.{state}" for state in _STATES]
_ITEM_TYPES = ["response.output_item.added", "response.output_item.done"]
_NUMBER: Json = {"sequence_number": integer("The event's place in the stream.")}

SCHEMAS: Json = {
    "ResponseRequestV1": record(
        "A request of Responses. All members of the vendor's may be sent; these the gateway acts on. Members that"
        " name state in the vendor's account (`previous_response_id`, `conversation` and others) are 400 unless the"
        " target passes them; `background: true` always is.",
        {
            "model": CALLED_SLUG,
            "input": {"type": ["string", "array", "null"], "items": {}, "description": "A text, or items."},
            "instructions": or_null(text("The system prompt.")),
            "stream": STREAM,
            "max_output_tokens": CAP,
            "metadata": METADATA,
        },
        ["model"],
    ),
    "ResponseUsageV1": record(
        "The tokens of a call.",
        {
            "input_tokens": integer("Cached tokens included."),
            "input_tokens_details": or_null(free_object("`cached_tokens` and others.")),
            "output_tokens": integer("Reasoning tokens included."),
            "output_tokens_details": or_null(free_object("`reasoning_tokens` and others.")),
            "total_tokens": integer(),
        },
    ),
    "ResponseItemV1": record(
        "An item of the output: a message, a call, reasoning.",
        {
            "type": text(examples=["message", "function_call", "custom_tool_call", "reasoning"]),
            "id": or_null(text()),
            "status": or_null(text()),
            "role": or_null(text("Of a message.")),
            "content": {
                "type": ["array", "null"],
                "description": "Parts of a message: `output_text` has `text`, `refusal` has `refusal`.",
                "items": free_object("A part."),
            },
            "call_id": or_null(text("Of a call: its result names it.")),
            "name": or_null(text("Of a call: the tool.")),
            "arguments": or_null(text("Of a function call: JSON text.")),
            "encrypted_content": or_null(text("Of reasoning: return it unchanged with the next turn.")),
        },
        ["type"],
    ),
    "ResponseV1": record(
        "An answer of Responses. One that failed has the status `failed` and an `error`, under HTTP 200.",
        {
            "id": text(),
            "object": text(examples=["response"]),
            "created_at": number("Seconds since the Unix epoch."),
            "status": or_null(text(examples=["completed", "incomplete", "failed", "in_progress"])),
            "model": SLUG,
            "output": list_of(reference("ResponseItemV1")),
            "error": or_null(free_object("`code` and `message`.")),
            "incomplete_details": or_null(free_object("`reason`.")),
            "usage": or_null(reference("ResponseUsageV1")),
        },
        ["id", "object", "created_at", "model", "output"],
    ),
    "ResponseStateEventV1": record(
        "The response at this moment. `completed`, `incomplete` and `failed` end the stream.",
        {"type": {"type": "string", "enum": _STATE_TYPES}, "response": reference("ResponseV1"), **_NUMBER},
        ["type", "response"],
    ),
    "ResponseItemEventV1": record(
        "An item begins, or is complete.",
        {
            "type": {"type": "string", "enum": _ITEM_TYPES},
            "output_index": integer("The item's place in `output`."),
            "item": reference("ResponseItemV1"),
            **_NUMBER,
        },
        ["type", "output_index", "item"],
    ),
    "ResponseErrorEventV1": record(
        "A failure. `response.failed` follows it in a translated call.",
        {"type": {"type": "string", "const": "error"}, **_NUMBER},
        ["type"],
    ),
    "ResponsePieceEventV1": record(
        "Every other event, such as `response.output_text.delta` and `response.function_call_arguments.done`.",
        {
            "type": {"type": "string", "not": {"enum": [*_STATE_TYPES, *_ITEM_TYPES, "error"]}},
            "item_id": or_null(text("The item that it belongs to.")),
            "output_index": integer("That item's place in `output`."),
            "content_index": integer("The part's place in the item."),
            "delta": {"description": "The next piece, mostly text."},
            "text": or_null(text("The whole text, at its end.")),
            **_NUMBER,
        },
        ["type"],
    ),
    "ResponseEventV1": choice(
        "The data of an event of a stream. `response.completed`, `.incomplete` or `.failed` is the last one.",
        *map(
            reference,
            ("ResponseStateEventV1", "ResponseItemEventV1", "ResponseErrorEventV1", "ResponsePieceEventV1"),
        ),
    ),
}
