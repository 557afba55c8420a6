"""Estimates a request's input tokens from its text, for a call whose provider reports no usage.

Pure. One function serves all dialects: few members reach the model, and their parts have few types.

See docs/reference/events-and-webhooks.md#token-counts.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

import orjson

from policy.billing import NO_DETAILS, Details
from policy.token_estimate import AUDIO_TOKENS, DOCUMENT_TOKENS, IMAGE_TOKENS, Sample, sample_of, tokens_of
from proxy.json_text.large_json import Outline
from proxy.records.messages import Received

Json = dict[str, Any]

KEPT_BYTES = 8 << 10
"""A request up to this size is kept until the count is asked for, which is rare; of a larger one, only a sample."""
MAX_VALUES = 10_000
"""Most values, or segments of strings, that are examined; the rest is assumed to be like them."""
_VALUE_BYTES = 8
"""The least size of a value in JSON beside its text."""

_TEXT_MEMBERS = ("messages", "input", "prompt", "system", "instructions")
_SERIALIZED_MEMBERS = ("tools", "functions", "response_format")
"""The model sees these as JSON, names of members included."""
_PICTURES = frozenset(("image", "image_url", "input_image"))
_SOUNDS = frozenset(("audio", "audio_url", "input_audio"))
_MEDIA_TOKENS = {
    **dict.fromkeys(_PICTURES, IMAGE_TOKENS),
    **dict.fromkeys(("document", "file", "input_file", "video", "video_url"), DOCUMENT_TOKENS),
    **dict.fromkeys(_SOUNDS, AUDIO_TOKENS),
}
_MEMBERS_WITHOUT_TEXT = frozenset(
    ("type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "signature", "encrypted_content")
)
_NO_TEXT = Sample()


class RequestTokens:
    """A request's text, and its token count once it was asked for."""

    __slots__ = ("_json", "_media", "_media_tokens", "_members", "_sample", "_tokens")

    def __init__(self, request: Received, members: Sequence[str] = _TEXT_MEMBERS) -> None:
        """`members`: those that hold the text that the model sees."""
        self._members = members
        self._tokens: int | None = None
        self._media_tokens = 0
        self._media = NO_DETAILS
        self._sample = _NO_TEXT
        self._json: Json | None = None
        if len(request.body) <= KEPT_BYTES:
            self._json = request.json
        else:
            self._read(request.json, request.outline, len(request.body))

    @property
    def tokens(self) -> int:
        if self._tokens is None:
            if self._json is not None:
                self._read(self._json, None, KEPT_BYTES)
            self._tokens = self._media_tokens + tokens_of(self._sample.weight)
            self._json = None
            self._sample = _NO_TEXT
        return self._tokens

    @property
    def media(self) -> Details:
        """The sound and the pictures in `tokens`."""
        return self._media if self.tokens else NO_DETAILS

    def _read(self, json: Json, outline: Outline | None, size_bytes: int) -> None:
        collected = _TextCollector()
        for name in _SERIALIZED_MEMBERS:
            if isinstance(value := json.get(name), dict | list):  # the format of a sound is a word, which no model sees
                collected.texts.append(_serialized(value))
        collected.read([json[name] for name in self._members if name in json])
        texts: list[str | bytes | memoryview] = [*collected.texts]
        if outline is not None:
            texts = list(islice(outline.original_segments(collected.texts, MAX_VALUES), MAX_VALUES))
        self._media_tokens = collected.tokens
        self._media = Details(audio_input=collected.audio_tokens, image_input=collected.image_tokens)
        self._sample = sample_of(texts)
        if max(collected.values, len(texts)) >= MAX_VALUES:
            seen_bytes = sum(map(len, texts)) + collected.values * _VALUE_BYTES
            self._sample = replace(self._sample, share=Fraction(seen_bytes, max(size_bytes, seen_bytes)))


class _TextCollector:
    """Collects the texts of a request, and counts the tokens of all else: other media, and prompts given as tokens."""

    __slots__ = ("audio_tokens", "image_tokens", "texts", "tokens", "values")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = 0
        self.audio_tokens = 0
        self.image_tokens = 0
        self.values = 0

    def read(self, stack: list[Any]) -> None:
        """Walk these values, up to `MAX_VALUES`."""
        texts = self.texts
        while stack and self.values < MAX_VALUES:
            value = stack.pop()
            self.values += 1
            if isinstance(value, str):
                texts.append(value)
            elif isinstance(value, dict):
                self._read_object(value, stack)
            elif isinstance(value, list):
                if value and type(value[0]) is int:
                    self.tokens += len(value)
                else:
                    stack += value

    def _read_object(self, value: Json, stack: list[Any]) -> None:
        kind = value.get("type")
        tokens = _MEDIA_TOKENS.get(kind) if isinstance(kind, str) else None
        if tokens is not None:
            if (text := _text_of_document(value)) is None:
                self.tokens += tokens
                self.audio_tokens += tokens if kind in _SOUNDS else 0
                self.image_tokens += tokens if kind in _PICTURES else 0
            else:
                stack.append(text)
        elif kind == "tool_use":
            self.texts.append(_serialized(value.get("input")))
            stack.append(value.get("name"))
        else:
            for name, inner in value.items():
                if name not in _MEMBERS_WITHOUT_TEXT:
                    stack.append(inner)


def _text_of_document(part: Json) -> Any:
    """The text of a document that was sent as text; None for a file."""
    source = part.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
        return None
    return source.get("data") or source.get("content")


def _serialized(value: Any) -> str:
    if not value:
        return ""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
        return ""
