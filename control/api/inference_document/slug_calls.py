"""The calls by slug: those of the three dialects, those that are only passed on, and the list of slugs.

See docs/reference/inference.md#paths.
"""

from control.api.inference_document.calls import Call, json_of
from control.api.inference_document.fields import SENT_FIELDS, SLUG_FIELDS, parameter_references, path_parameter
from control.api.inference_document.json_schema import Json, event_stream, free_object, reference
from control.api.inference_document.refusals import CallKind

CHAT = "Chat Completions"
MESSAGES = "Messages"
RESPONSES = "Responses"
PASSED = "Other models"
LISTS = "Models"
_OPENAI = "https://platform.openai.com/docs/api-reference"
_ANTHROPIC = "https://docs.anthropic.com/en/api"
_FIELDS = parameter_references((*SENT_FIELDS, *SLUG_FIELDS, "beta"))
_TRANSLATED = (
    " A target of another dialect is asked in its own, and its answer is translated; what has no counterpart is 400"
    " `UNTRANSLATABLE_REQUEST` and names the field. A target of this dialect is asked unchanged but for `model`, and"
    " so is its answer."
)
_PASSED = " Passed on to a target of the Chat Completions family; only `model` is replaced."
_CHAT_EVENTS = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"acme/chat","choices":[{"index":0,'
    '"delta":{"role":"assistant","content":"Hello"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'
)
_MESSAGES_EVENTS = (
    "event: content_block_delta\ndata:"
    ' {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}'
    '\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_RESPONSES_EVENTS = (
    "event: response.output_text.delta\ndata:"
    ' {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1",'
    '"output_index":0,"content_index":0,"delta":"Hello"}\n\n'
)
_COMPLETION_EVENTS = (
    "data:"
    ' {"id":"cmpl-1","object":"text_completion","created":1,"model":"acme/text","choices":[{"index":0,"text":"Hello",'
    '"finish_reason":null}]}\n\ndata: [DONE]\n\n'
)
_IMAGE_EVENTS = 'event: image_generation.completed\ndata: {"type":"image_generation.completed","b64_json":"QUJD"}\n\n'
_SPEECH_EVENTS = 'data: {"type":"speech.audio.delta","audio":"QUJD"}\n\n'
_TRANSCRIPT_EVENTS = 'data: {"type":"transcript.text.delta","delta":"Hello"}\n\n'


def _streamed(answer: str, events: str, example: str) -> Json:
    """JSON, or with `stream: true` events."""
    return json_of(answer) | {"text/event-stream": event_stream("With `stream: true`.", events, example)}


def _form(name: str) -> Json:
    """A form, or the same members in JSON."""
    return {"multipart/form-data": {"schema": reference(name)}} | json_of(name)


def _slug_call(path: str, id: str, tag: str, summary: str, **more: object) -> Call:
    description = f"{summary}.{_PASSED if tag == PASSED else ''}{more.pop('about', '')}"
    values = {"method": "POST", "path": path, "id": id, "tag": tag, "summary": summary, "description": description}
    return Call(**values, kind=CallKind.SLUG, parameters=_FIELDS, **more)  # type: ignore[arg-type] # checked by tests


_DIALECTS = (
    _slug_call(
        "/v1/chat/completions",
        "create_chat_completion",
        CHAT,
        "Answer a conversation",
        about=_TRANSLATED,
        body=json_of(
            "ChatCompletionRequestV1",
            example={"model": "acme/chat", "messages": [{"role": "user", "content": "Hello"}]},
        ),
        content=_streamed("ChatCompletionV1", "ChatCompletionEventV1", _CHAT_EVENTS),
        vendor=f"{_OPENAI}/chat/create",
    ),
    _slug_call(
        "/v1/messages",
        "create_message",
        MESSAGES,
        "Answer a conversation in the Messages dialect",
        about=_TRANSLATED,
        body=json_of(
            "MessageRequestV1",
            example={"model": "acme/chat", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]},
        ),
        content=_streamed("MessageV1", "MessageEventV1", _MESSAGES_EVENTS),
        vendor=f"{_ANTHROPIC}/messages",
    ),
    _slug_call(
        "/v1/messages/count_tokens",
        "count_message_tokens",
        MESSAGES,
        "Count the tokens of a conversation",
        about=" A count is one request against limits, and costs no tokens and no money.",
        body=json_of("MessageTokensRequestV1"),
        content=json_of("MessageTokensV1", example={"input_tokens": 14}),
        vendor=f"{_ANTHROPIC}/messages-count-tokens",
    ),
    _slug_call(
        "/v1/responses",
        "create_response",
        RESPONSES,
        "Answer in the Responses dialect",
        about=_TRANSLATED,
        body=json_of("ResponseRequestV1", example={"model": "acme/chat", "input": "Hello"}),
        content=_streamed("ResponseV1", "ResponseEventV1", _RESPONSES_EVENTS),
        vendor=f"{_OPENAI}/responses/create",
    ),
    _slug_call(
        "/v1/completions",
        "create_completion",
        CHAT,
        "Continue a text",
        about=" It is never translated: a target without the path is 400.",
        body=json_of("CompletionRequestV1"),
        content=_streamed("CompletionV1", "CompletionEventV1", _COMPLETION_EVENTS),
        vendor=f"{_OPENAI}/completions/create",
    ),
    _slug_call(
        "/v1/embeddings",
        "create_embeddings",
        CHAT,
        "Embed texts",
        about=" It is never translated: a target without the path is 400.",
        body=json_of("EmbeddingsRequestV1"),
        content=json_of("EmbeddingsV1"),
        vendor=f"{_OPENAI}/embeddings/create",
    ),
)
_PASSED_ON = (
    _slug_call(
        "/v1/moderations",
        "create_moderation",
        PASSED,
        "Judge whether inputs are harmful",
        body=json_of("ModerationRequestV1"),
        content=json_of("ModerationV1"),
        vendor=f"{_OPENAI}/moderations/create",
    ),
    *(
        _slug_call(
            f"/v{version}/rerank",
            f"rerank_v{version}",
            PASSED,
            "Rank documents by a query",
            body=json_of("RerankRequestV1"),
            content=json_of("RankingV1"),
            vendor="https://docs.cohere.com/reference/rerank",
        )
        for version in (1, 2)
    ),
    _slug_call(
        "/v1/images/generations",
        "create_images",
        PASSED,
        "Make pictures",
        body=json_of("ImagesRequestV1"),
        content=_streamed("ImagesV1", "MediaEventV1", _IMAGE_EVENTS),
        vendor=f"{_OPENAI}/images/create",
    ),
    _slug_call(
        "/v1/images/edits",
        "edit_images",
        PASSED,
        "Change pictures",
        body=_form("ImageEditFormV1"),
        content=_streamed("ImagesV1", "MediaEventV1", _IMAGE_EVENTS),
        vendor=f"{_OPENAI}/images/createEdit",
    ),
    _slug_call(
        "/v1/audio/speech",
        "create_speech",
        PASSED,
        "Speak a text",
        body=json_of("SpeechRequestV1"),
        content={
            "audio/*": {
                "schema": {"type": "string", "format": "binary", "description": "Sound, as the target labels it."}
            },
            "text/event-stream": event_stream("With `stream_format: sse`.", "MediaEventV1", _SPEECH_EVENTS),
            "application/json": {"schema": free_object("Of servers that answer with base64.")},
        },
        vendor=f"{_OPENAI}/audio/createSpeech",
    ),
    *(
        _slug_call(
            f"/v1/audio/{kind}s",
            f"create_{kind}",
            PASSED,
            summary,
            body=_form("TranscriptFormV1"),
            content=_streamed("TranscriptV1", "MediaEventV1", _TRANSCRIPT_EVENTS)
            | {
                "text/plain": {
                    "schema": {"type": "string", "description": "With `response_format: text`, `srt` or `vtt`."}
                }
            },
            vendor=f"{_OPENAI}/audio/create{kind.capitalize()}",
        )
        for kind, summary in (("transcription", "Write down speech"), ("translation", "Write down speech in English"))
    ),
)
_VERSION = parameter_references(("x-request-id", "anthropic-version"))
_PAGE = (
    ("limit", "Slugs on a page, in the form of Messages.", {"type": "integer", "minimum": 1, "maximum": 1000}),
    ("after_id", "The page after this slug, in the form of Messages.", {"type": "string"}),
    ("before_id", "The page before this slug, in the form of Messages.", {"type": "string"}),
)
_LISTS = (
    Call(
        method="GET",
        path="/v1/models",
        id="list_models",
        tag=LISTS,
        kind=CallKind.LISTING,
        summary="List slugs",
        description="The slugs that the key may call and that have an endpoint, sorted. `HEAD` is answered likewise.",
        content=json_of("EitherModelListV1"),
        parameters=(
            *_VERSION,
            *(
                {"name": name, "in": "query", "required": False, "description": about, "schema": schema}
                for name, about, schema in _PAGE
            ),
        ),
        vendor=f"{_OPENAI}/models/list",
    ),
    Call(
        method="GET",
        path="/v1/models/{slug}",
        id="get_model",
        tag=LISTS,
        kind=CallKind.LISTING,
        summary="Show a slug",
        description="One slug that the key may call. `HEAD` is answered likewise.",
        content=json_of("EitherModelV1"),
        parameters=(path_parameter("slug", "The slug, `/` as it is or as `%2F`."), *_VERSION),
        vendor=f"{_OPENAI}/models/retrieve",
    ),
)
CALLS = (*_DIALECTS, *_PASSED_ON, *_LISTS)
