"""Schemas of the paths that are only passed on: moderations, rerank, images and audio."""

from control.api.inference_document.chat_schemas import CALLED_SLUG, METADATA, SLUG, STREAM
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

_USAGE = or_null(free_object("The tokens of the call, where the target reports them."))
_FILE: Json = {"description": "A file of a form; base64 or a data URL in JSON, for servers that take it."}
_FORM = {"stream": flag("True to be answered with server-sent events.")}


def _with_model(description: str, members: Json, *required: str) -> Json:
    return record(description, {"model": CALLED_SLUG, **members}, ["model", *required])


SCHEMAS: Json = {
    "ModerationRequestV1": _with_model(
        "A request of Moderations.", {"input": anything("Texts, or parts."), "metadata": METADATA}, "input"
    ),
    "ModerationV1": record(
        "Moderations.", {"model": SLUG, "results": list_of(free_object("Of one input."))}, ["results"]
    ),
    "RerankRequestV1": _with_model(
        "A request to rank documents.",
        {"query": anything("The query, mostly text."), "documents": list_of({}), "metadata": METADATA},
        "query",
        "documents",
    ),
    "RankingV1": record(
        "The ranking, best first.",
        {
            "model": SLUG,
            "results": list_of(
                record("A document.", {"index": integer("Its place in the request."), "relevance_score": number()})
            ),
            "usage": _USAGE,
        },
        ["results"],
    ),
    "ImagesRequestV1": _with_model(
        "A request of images.",
        {
            "prompt": text("The picture in words."),
            "n": or_null(integer("How many pictures.")),
            "stream": STREAM,
            "metadata": METADATA,
        },
        "prompt",
    ),
    "ImageEditFormV1": _with_model(
        "A form. Put `model` before the files: what comes before it is held in memory.",
        {"prompt": text("The picture in words."), "image": _FILE, "n": integer("How many pictures."), **_FORM},
    ),
    "ImagesV1": record(
        "Pictures.",
        {
            "created": number("Seconds since the Unix epoch."),
            "data": list_of(free_object("A picture: `b64_json` or `url`.")),
            "usage": _USAGE,
        },
        ["data"],
    ),
    "SpeechRequestV1": _with_model(
        "A request of speech.",
        {
            "input": text("The text to speak."),
            "voice": anything("The voice."),
            "response_format": or_null(text(examples=["mp3"])),
            "stream_format": or_null(text("`sse` to be answered with server-sent events.", examples=["sse", "audio"])),
            "metadata": METADATA,
        },
        "input",
    ),
    "TranscriptFormV1": _with_model(
        "A form. Put `model` before the file: what comes before it is held in memory.",
        {"file": _FILE, "response_format": text(examples=["json", "text", "srt", "verbose_json", "vtt"]), **_FORM},
    ),
    "TranscriptV1": record("A transcript.", {"text": text(), "usage": _USAGE}, ["text"]),
    "MediaPieceEventV1": record("A piece, or the end.", {"type": text(), "usage": _USAGE}, ["type"]),
    "MediaEventV1": choice(
        "The data of an event of a stream, such as `image_generation.completed`, `speech.audio.delta` or "
        "`transcript.text.done`.",
        reference("MediaPieceEventV1"),
        reference("StreamErrorV1"),
    ),
}
