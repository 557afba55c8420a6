"""Schemas of Chat Completions, Completions and Embeddings: what the gateway reads, writes and guarantees.

The vendor describes all members; those that are not here pass. See docs/reference/inference.md#request-bodies.
"""

from control.api.inference_document.json_schema import (
    Json,
    anything,
    choice,
    flag,
    free_object,
    integer,
    list_of,
    number,
    or_null,
    record,
    reference,
    text,
)

SLUG = text("The slug that the caller sent.", examples=["acme/chat"])
CALLED_SLUG = text("The slug to call.", examples=["acme/chat"])
STREAM: Json = {"type": ["boolean", "null"], "description": "True to be answered with server-sent events."}
METADATA = or_null(
    free_object(
        "`requestMetadata` of the billing event, at most 65 536 bytes, unless the header `x-request-metadata` is sent."
    )
)
CAP = or_null(integer("A cap on output tokens."))
STREAM_OPTIONS = or_null(
    record(
        "Options of a stream. The gateway asks its target for usage in any case.",
        {"include_usage": or_null(flag("True to get the chunk with the usage."))},
    )
)
USAGE = "ChatUsageV1"

_TOOL_CALL = record(
    "A call of a tool. In a chunk a piece of one: pieces of one `index` belong together.",
    {
        "index": integer("In chunks: the call that a piece belongs to."),
        "id": or_null(text()),
        "type": or_null(text(examples=["function"])),
        "function": record(
            "The function and its arguments, as JSON text.", {"name": or_null(text()), "arguments": or_null(text())}
        ),
    },
)
_MESSAGE_MEMBERS: Json = {
    "role": or_null(text(examples=["assistant"])),
    "content": {
        "description": "Text, or parts of some servers; null beside tool calls.",
        "type": ["string", "array", "null"],
        "items": {},
    },
    "refusal": or_null(text()),
    "reasoning_content": or_null(text("The model's reasoning, where it is told.")),
    "reasoning_details": {
        "description": "Reasoning to return with the next turn, unchanged.",
        "type": ["array", "null"],
        "items": {},
    },
    "tool_calls": {"type": ["array", "null"], "items": reference("ChatToolCallV1")},
}
_CHOICE_MEMBERS: Json = {
    "index": integer(),
    "finish_reason": or_null(text(examples=["stop", "length", "tool_calls", "content_filter"])),
    "logprobs": or_null(free_object("Log probabilities.")),
}
_CHUNK_MEMBERS: Json = {
    "id": text(),
    "object": text(examples=["chat.completion.chunk"]),
    "created": number("Seconds since the Unix epoch."),
    "model": SLUG,
    "choices": {"type": ["array", "null"], "items": reference("ChatChunkChoiceV1")},
    "usage": or_null(reference(USAGE)),
}

SCHEMAS: Json = {
    "ChatCompletionRequestV1": record(
        "A request of Chat Completions. All members of the vendor's may be sent; these the gateway acts on.",
        {
            "model": CALLED_SLUG,
            "messages": list_of(free_object("A message."), "The conversation."),
            "stream": STREAM,
            "stream_options": STREAM_OPTIONS,
            "max_tokens": CAP,
            "max_completion_tokens": CAP,
            "n": or_null(integer("How many choices.")),
            "metadata": METADATA,
        },
        ["model", "messages"],
    ),
    "ChatToolCallV1": _TOOL_CALL,
    "ChatMessageV1": record("The assistant's message.", _MESSAGE_MEMBERS),
    "ChatChoiceV1": record("A choice.", _CHOICE_MEMBERS | {"message": reference("ChatMessageV1")}, ["message"]),
    USAGE: record(
        "The tokens of a call.",
        {
            "prompt_tokens": integer("Cached tokens included."),
            "completion_tokens": integer("Reasoning tokens included."),
            "total_tokens": integer(),
            "prompt_tokens_details": or_null(free_object("`cached_tokens` and others.")),
            "completion_tokens_details": or_null(free_object("`reasoning_tokens` and others.")),
        },
    ),
    "ChatCompletionV1": record(
        "A whole answer of Chat Completions.",
        {
            "id": text(),
            "object": text(examples=["chat.completion"]),
            "created": number("Seconds since the Unix epoch."),
            "model": SLUG,
            "choices": list_of(reference("ChatChoiceV1")),
            "usage": or_null(reference(USAGE)),
        },
        ["id", "object", "created", "model", "choices"],
    ),
    "ChatChunkChoiceV1": record(
        "A piece of a choice.", _CHOICE_MEMBERS | {"delta": or_null(reference("ChatMessageV1"))}
    ),
    "ChatCompletionChunkV1": record(
        "A chunk of a streamed answer. The last one with `usage` has no choices; it comes where "
        "`stream_options.include_usage` was sent.",
        _CHUNK_MEMBERS,
        ["id", "object", "created", "model", "choices"],
    ),
    "StreamErrorV1": record(
        "A failure within a stream. Nothing follows it.",
        {"error": {"type": ["object", "string"], "description": "As in an error response."}},
        ["error"],
    ),
    "ChatCompletionEventV1": choice(
        "The data of an event of a stream. The last event's data is the text `[DONE]`, no JSON.",
        reference("ChatCompletionChunkV1"),
        reference("StreamErrorV1"),
    ),
    "CompletionRequestV1": record(
        "A request of Completions.",
        {
            "model": CALLED_SLUG,
            "prompt": anything("A text, tokens, or a list of either."),
            "stream": STREAM,
            "stream_options": STREAM_OPTIONS,
            "max_tokens": CAP,
            "n": or_null(integer("How many choices.")),
            "best_of": or_null(integer("How many candidates.")),
            "metadata": METADATA,
        },
        ["model"],
    ),
    "CompletionV1": record(
        "An answer of Completions, or a chunk of a streamed one.",
        {
            "id": text(),
            "object": text(examples=["text_completion"]),
            "created": number("Seconds since the Unix epoch."),
            "model": SLUG,
            "choices": list_of(record("A choice.", _CHOICE_MEMBERS | {"text": text()})),
            "usage": or_null(reference(USAGE)),
        },
        ["choices"],
    ),
    "CompletionEventV1": choice(
        "The data of an event of a stream. The last event's data is the text `[DONE]`, no JSON.",
        reference("CompletionV1"),
        reference("StreamErrorV1"),
    ),
    "EmbeddingsRequestV1": record(
        "A request of Embeddings.",
        {"model": CALLED_SLUG, "input": anything("A text, tokens, or a list of either."), "metadata": METADATA},
        ["model", "input"],
    ),
    "EmbeddingsV1": record(
        "Embeddings.",
        {
            "object": text(examples=["list"]),
            "model": SLUG,
            "data": list_of(
                record(
                    "An embedding.",
                    {
                        "index": integer(),
                        "embedding": {"description": "Numbers, or base64.", "type": ["array", "string"], "items": {}},
                    },
                )
            ),
            "usage": or_null(reference(USAGE)),
        },
        ["data"],
    ),
}
