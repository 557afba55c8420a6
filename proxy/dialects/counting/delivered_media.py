"""Counts pictures and speech that were delivered to a caller, for the bill of a stream whose provider reports no usage.

Pure. Pictures count by their events, speech by its bytes. Nothing is decoded but the first bytes of a sound, which tell
its format.

See docs/reference/events-and-webhooks.md#token-counts.
"""

import binascii
import re
from collections.abc import Mapping
from typing import Any

import orjson

from policy.billing import Details, Tokens
from policy.token_estimate import (
    PARTIAL_PICTURE_TOKENS,
    SPEECH_TOKENS_PER_MINUTE,
    TOKEN,
    picture_tokens,
    tokens_of,
)
from proxy.accounting.metering import DeliveredCounter
from proxy.dialects.counting.delivered_text import AskedTokens, FixedTokens

Json = dict[str, Any]

MAX_UNFINISHED_BYTES = 64 << 10
MAX_PARTIAL_PICTURES = 3
"""The most partial pictures that may be asked for."""
_ENCODED = re.compile(rb"[A-Za-z0-9+/=]{32,}+")
"""Base64, of a length that no other text of an event has."""
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*)")
_PICTURE = re.compile(rb'"type"\s*+:\s*+"[a-z_]*+\.(partial_image|completed)"')
_PARTIAL = ".partial_image"
_COMPLETED = ".completed"
_OF_PICTURES = "image_"
"""Occurs in the types of all events of pictures."""

_BYTES_PER_S: Mapping[str, int] = {
    "mp3": 16_000,  # 128 kbit/s
    "aac": 12_000,  # 96 kbit/s
    "opus": 6_000,  # 48 kbit/s
    "flac": 25_000,  # 200 kbit/s: half of
    "wav": 48_000,  # 24 000 samples of 16 bits
    "pcm": 48_000,
    "pcm16": 48_000,
}
_USUAL = "mp3"
_OPENINGS = (
    *((b"RIFF", "wav"), (b"OggS", "opus"), (b"fLaC", "flac"), (b"ID3", "mp3")),
    *((b"\xff\xf1", "aac"), (b"\xff\xf9", "aac")),
    *((b"\xff\xf2", "mp3"), (b"\xff\xf3", "mp3"), (b"\xff\xfa", "mp3"), (b"\xff\xfb", "mp3")),
)
"""The first bytes of a sound by its format; of `pcm` they may be any."""


_NO_INPUT = FixedTokens(0)


class SpeechCounter:
    """Counts the seconds of a sound, from its bytes, or from the base64 in events."""

    __slots__ = ("_asked_format", "_bytes", "_is_encoded", "_opening", "_request", "expects_usage", "pending")

    def __init__(self, request: AskedTokens, asked_format: object, *, is_encoded: bool) -> None:
        """`asked_format`: what the caller asks for; the sound's first bytes outrank it."""
        self.pending: list[bytes] = []
        self.expects_usage = is_encoded  # no server reports usage beside plain sound
        self._request = request
        self._asked_format = asked_format
        self._is_encoded = is_encoded
        self._opening = b""
        self._bytes = 0

    def count(self) -> None:
        for piece in self.pending:
            for sound in _ENCODED.findall(piece) if self._is_encoded else (piece,):
                self._opening = self._opening or (_decoded(sound[:16]) if self._is_encoded else sound[:4])
                self._bytes += len(sound) * 3 // 4 if self._is_encoded else len(sound)
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        return Tokens(input=self._request.tokens, output=self.media.audio_output)

    @property
    def media(self) -> Details:
        weight = self._bytes * SPEECH_TOKENS_PER_MINUTE * TOKEN // (60 * self._bytes_per_s())
        return self._request.media._replace(audio_output=tokens_of(weight))

    def _bytes_per_s(self) -> int:
        format_of_bytes = next((name for opening, name in _OPENINGS if self._opening.startswith(opening)), None)
        format_of_request = self._asked_format if isinstance(self._asked_format, str) else ""
        return _BYTES_PER_S[format_of_bytes or (format_of_request if format_of_request in _BYTES_PER_S else _USUAL)]


class PictureCounter:
    """Counts the pictures of a stream. A partial picture counts as the part of its picture that was made by then."""

    __slots__ = ("_partial_tokens", "_parts", "_quality", "_request", "_size", "_tokens", "_unfinished", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens, members: Json) -> None:
        """`members`: those of the request; of a form, none that count."""
        self.pending: list[bytes] = []
        self._request = request
        self._size = members.get("size")
        self._quality = members.get("quality")
        self._parts = 1 + _partial_pictures(members.get("partial_images"))
        self._tokens = 0
        self._partial_tokens = 0
        """The tokens of the open picture that its partial pictures have counted."""
        self._unfinished = b""

    def count(self) -> None:
        if not self.pending:
            return
        text = self._unfinished + b"".join([_ENCODED.sub(b"", piece) for piece in self.pending])
        self.pending.clear()
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._unfinished = text[end:][:MAX_UNFINISHED_BYTES]
        for data in _DATA.findall(text[:end]):
            self._add(_payload_object(data))

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        """A picture whose event has begun to arrive counts as if all of it had."""
        self.count()
        if (match := _PICTURE.search(self._unfinished)) is not None:
            self._unfinished = b""
            self._add({"type": f"image_.{match[1].decode()}"})
        return Tokens(input=self._request.tokens, output=self._tokens)

    @property
    def media(self) -> Details:
        return self._request.media._replace(image_output=self._tokens)

    def _add(self, event: Json) -> None:
        kind = event.get("type")
        if not isinstance(kind, str) or _OF_PICTURES not in kind or not kind.endswith((_PARTIAL, _COMPLETED)):
            return
        whole = picture_tokens(event.get("size") or self._size, event.get("quality") or self._quality)
        part = max(0, whole - self._partial_tokens)
        if kind.endswith(_PARTIAL):
            part = min(part, whole // self._parts)
            self._partial_tokens += part
            part += PARTIAL_PICTURE_TOKENS
        else:
            self._partial_tokens = 0
        self._tokens += part


class MixedCounter:
    """Counts a stream of text that has sound or pictures among it. The input is that of the text."""

    __slots__ = ("_media", "_text", "pending")

    def __init__(self, text: DeliveredCounter, media: DeliveredCounter) -> None:
        self.pending: list[bytes] = []
        self._text = text
        self._media = media

    @property
    def expects_usage(self) -> bool:
        return self._text.expects_usage

    def count(self) -> None:
        for counter in (self._text, self._media):
            counter.pending.extend(self.pending)
            counter.count()
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        text = self._text.tokens(reported_input)
        return text._replace(output=text.output + self._media.tokens(None).output)

    @property
    def media(self) -> Details:
        request = self._text.media
        return self._media.media._replace(audio_input=request.audio_input, image_input=request.image_input)


def with_media(text: DeliveredCounter, members: Json) -> DeliveredCounter:
    """Return the counter of a stream of text, and of the sound or the pictures that its request asks for."""
    modalities = members.get("modalities")
    audio = members.get("audio")
    if isinstance(modalities, list) and "audio" in modalities:
        asked_format = audio.get("format") if isinstance(audio, dict) else None
        return MixedCounter(text, SpeechCounter(_NO_INPUT, asked_format, is_encoded=True))
    tools = members.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("type") == "image_generation":
            return MixedCounter(text, PictureCounter(_NO_INPUT, tool))
    return text


def _partial_pictures(number: object) -> int:
    """Return the most partial pictures that come before each picture."""
    return number if type(number) is int and 0 < number <= MAX_PARTIAL_PICTURES else MAX_PARTIAL_PICTURES


def _decoded(base64: bytes) -> bytes:
    try:
        return binascii.a2b_base64(base64)
    except binascii.Error:
        return b""


def _payload_object(data: bytes) -> Json:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}
