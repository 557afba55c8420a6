"""How many tokens a request holds, counted from its text: the input of a call whose provider reported none.

Pure. The same for all dialects: their members that reach the model are few, and so are the types of their parts.
"""

from itertools import islice
from typing import Any

import orjson

from policy.token_estimate import AUDIO_TOKENS, DOCUMENT_TOKENS, IMAGE_TOKENS, Sample, sample_of, tokens_of
from proxy.exchange import Received
from proxy.json_text.large_json import Outline

Json = dict[str, Any]

KEPT_BYTES = 8 << 10
"""A request up to here is kept until its text is asked for, which it hardly ever is; of a larger one, a sample."""
MAX_VALUES = 10_000
"""So many values are looked at, or parts of their strings; the rest is taken to be like them."""
_VALUE_BYTES = 8
"""What a value takes in JSON beside its text, at least."""

_READ = ("messages", "input", "prompt", "system", "instructions")
_WRITTEN_OUT = ("tools", "functions", "response_format")
"""The model is shown these as they are, names of members included."""
_PARTS = {
    **dict.fromkeys(("image", "image_url", "input_image"), IMAGE_TOKENS),
    **dict.fromkeys(("document", "file", "input_file", "video", "video_url"), DOCUMENT_TOKENS),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), AUDIO_TOKENS),
}
_NO_TEXT = frozenset(
    ("type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "signature", "encrypted_content")
)


class RequestTokens:
    """A request's text, until somebody asks how many tokens it is."""

    __slots__ = ("_json", "_parts", "_sample", "_tokens")

    def __init__(self, request: Received) -> None:
        self._tokens: int | None = None
        self._parts = 0
        self._sample = Sample("", 0)
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
            self._tokens = self._parts + tokens_of(self._sample.weight)
            self._json, self._sample = None, Sample("", 0)
        return self._tokens

    def _read(self, json: Json, outline: Outline | None, size_bytes: int) -> None:
        found = _Found()
        for name in _WRITTEN_OUT:
            if name in json:
                found.texts.append(_written_out(json[name]))
        found.read([json[name] for name in _READ if name in json])
        texts: list[str | bytes | memoryview] = [*found.texts]
        if outline is not None:
            texts = list(islice(outline.original_segments(found.texts, MAX_VALUES), MAX_VALUES))
        self._parts, self._sample = found.tokens, sample_of(texts)
        if max(found.values, len(texts)) >= MAX_VALUES:
            seen = sum(map(len, texts)) + found.values * _VALUE_BYTES
            self._sample = Sample(self._sample.text, self._sample.size * max(size_bytes, seen) // seen)


class _Found:
    """The texts of a request, and the tokens of what is none: parts of other media, and prompts that are tokens."""

    __slots__ = ("texts", "tokens", "values")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = 0
        self.values = 0

    def read(self, stack: list[Any]) -> None:
        """What is in these values, as far as `MAX_VALUES` go."""
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
        tokens = _PARTS.get(kind) if isinstance(kind, str) else None
        if tokens is not None:
            if (text := _text_of_document(value)) is None:
                self.tokens += tokens
            else:
                stack.append(text)
        elif kind == "tool_use":
            self.texts.append(_written_out(value.get("input")))
            stack.append(value.get("name"))
        else:
            for name, inner in value.items():
                if name not in _NO_TEXT:
                    stack.append(inner)


def _text_of_document(part: Json) -> Any:
    """What a document holds that was sent as text; None where it is a file."""
    source = part.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
        return None
    return source.get("data") or source.get("content")


def _written_out(value: Any) -> str:
    if not value:
        return ""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it reads deeper than it writes
        return ""
