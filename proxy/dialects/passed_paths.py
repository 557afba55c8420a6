"""Paths of the Chat Completions family that are only passed on: moderations, rerank, images and audio.

Pure. Only `model` changes on its way to the target. A target of another dialect has nothing like them.

See docs/reference/inference.md#paths and docs/reference/events-and-webhooks.md#token-counts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policy.billing import MAX_REPORTED_TOKENS, Details
from policy.token_estimate import AUDIO_TOKENS, IMAGE_TOKENS
from proxy.accounting.answer_form import Form, labelled_form
from proxy.accounting.metering import DeliveredCounter
from proxy.dialects.counting.delivered_media import PictureCounter, SpeechCounter
from proxy.dialects.counting.delivered_text import (
    FixedTokens,
    FormCounter,
    NoTextCounter,
    UnbilledCounter,
    text_counter,
)
from proxy.dialects.counting.request_text import RequestTokens
from proxy.dialects.finish import EventRoles
from proxy.dialects.stream_readers import StreamFormat, StreamReader
from proxy.dialects.usage.details import AUDIO_OUTPUT, IMAGE_OUTPUT
from proxy.dialects.usage.meters import OpenAiMeter, ReportPlace
from proxy.records.messages import Received

Json = dict[str, Any]
_OUTPUT = r".*(?:\.delta|\.partial_image)"
"""The types of events with output."""
Counter = Callable[[Received, str], DeliveredCounter]
"""Makes a counter from the request and the answer's label."""


def _unbilled(_request: Received, _content_type: str) -> DeliveredCounter:
    return UnbilledCounter()


def _ranking(request: Received, _content_type: str) -> DeliveredCounter:
    return NoTextCounter(RequestTokens(request, ("query", "documents")))


def _pictures(request: Received, _content_type: str) -> DeliveredCounter:
    """A stream of pictures; whole ones are billed only as reported."""
    if request.upload is not None:
        pictures = PictureCounter(FixedTokens(IMAGE_TOKENS, Details(image_input=IMAGE_TOKENS)), {})
    else:
        pictures = PictureCounter(RequestTokens(request), request.json)
    return FormCounter(lambda form: pictures if form is Form.STREAM else UnbilledCounter())


def _speech(request: Received, content_type: str) -> DeliveredCounter:
    input_tokens = RequestTokens(request)
    asked_format = request.json.get("response_format")
    if not _may_be_text(request, content_type):
        return SpeechCounter(input_tokens, asked_format, is_encoded=False)
    return FormCounter(lambda form: SpeechCounter(input_tokens, asked_format, is_encoded=form is not Form.OTHER))


def _may_be_text(request: Received, content_type: str) -> bool:
    """Return whether speech may come as base64 in events or in JSON: by the request, or by the answer's label."""
    is_labelled = bool(content_type) and labelled_form(content_type, streaming=False) is not Form.OTHER
    return is_labelled or request.json.get("stream_format") == "sse"


def _transcript(_request: Received, _content_type: str) -> DeliveredCounter:
    return text_counter(FixedTokens(AUDIO_TOKENS, Details(audio_input=AUDIO_TOKENS)), transcript_texts)


def transcript_texts(answer: Json) -> list[str]:
    """The text of a transcript; in a stream, of its deltas only."""
    kind = answer.get("type")
    text = answer.get("text") if kind is None else answer.get("delta") if kind == "transcript.text.delta" else None
    return [text] if isinstance(text, str) else []


@dataclass(frozen=True, slots=True)
class PassedPath:
    """A path's rules: how its answers are read and billed, and whether its requests may be forms."""

    count: Counter = _unbilled
    """Makes the counter for answers without a usage report."""
    takes_forms: bool = False
    has_output: bool = True
    """True if a usage report must tell output tokens."""
    last: str = ""
    """The type of the event that ends a stream, and of the only one that reports usage."""
    is_many: bool = False
    """True if a stream may hold several things, each with such an event."""
    output_part: str = ""
    """The detail that all output is, unless a report says more."""
    answers_are_files: bool = False
    """True if an answer is a file, whose bytes may look like anything, unless it may be text. It is never held."""


_RERANK = PassedPath(_ranking, has_output=False)
_TRANSCRIPT = PassedPath(_transcript, takes_forms=True, last="transcript.text.done")
PATHS = {
    "/v1/moderations": PassedPath(),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/v1/images/generations": PassedPath(
        _pictures, last="image_generation.completed", is_many=True, output_part=IMAGE_OUTPUT
    ),
    "/v1/images/edits": PassedPath(
        _pictures, takes_forms=True, last="image_edit.completed", is_many=True, output_part=IMAGE_OUTPUT
    ),
    "/v1/audio/speech": PassedPath(_speech, last="speech.audio.done", output_part=AUDIO_OUTPUT, answers_are_files=True),
    "/v1/audio/transcriptions": _TRANSCRIPT,
    "/v1/audio/translations": _TRANSCRIPT,
}


def is_file(passed: PassedPath, request: Received, content_type: str) -> bool:
    """Return whether the bytes of an answer do not tell what it is."""
    return passed.answers_are_files and not _may_be_text(request, content_type)


def stream_reader(passed: PassedPath, request: Received, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    """The reader of an answer that is a stream."""
    place = ReportPlace(types=frozenset((None, passed.last)))
    meter = OpenAiMeter(most, place, has_output=passed.has_output, output_part=passed.output_part)
    return StreamReader(_stream(passed, request), request.slug, meter, is_alone=False)


def body_meter(passed: PassedPath, most: int = MAX_REPORTED_TOKENS) -> OpenAiMeter:
    """The meter of an answer that is JSON."""
    return OpenAiMeter(most, has_output=passed.has_output, output_part=passed.output_part)


def _stream(passed: PassedPath, request: Received) -> StreamFormat:
    """The format of a stream. Of several pictures each has an end of its own; how many a form asks for is not known."""
    if passed.is_many and (request.upload is not None or request.json.get("n") not in (None, 1)):
        return StreamFormat(EventRoles(output=_OUTPUT, part_end=re.escape(passed.last)))
    return StreamFormat(EventRoles(output=_OUTPUT, last=frozenset((passed.last,))))
