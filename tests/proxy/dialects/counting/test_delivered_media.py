"""Pictures and speech that were delivered, counted by picture and by second."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import Details
from policy.token_estimate import picture_tokens
from proxy.dialects.counting.delivered_media import PictureCounter, SpeechCounter
from proxy.dialects.counting.delivered_text import FixedTokens
from tests.proxy.dialects.samples import (
    CHAT,
    CUTS,
    SLUG,
    cut,
    delivered_counter,
    received,
)

ASKED = FixedTokens(7)
SECONDS = 60
MINUTE = 1250
SOUNDS = {
    "mp3": (b"\xff\xfb\x90\x00", 16_000),
    "aac": (b"\xff\xf1\x50\x80", 12_000),
    "opus": (b"OggS", 6_000),
    "flac": (b"fLaC", 25_000),
    "wav": (b"RIFF", 48_000),
}


def picture(kind: str, **members: Any) -> bytes:
    event = {"type": f"image_generation.{kind}", "b64_json": "iVBORw0K" * 4_000} | members
    return b"event: image\ndata: " + orjson.dumps(event) + b"\n\n"


def output(counter: SpeechCounter | PictureCounter, *pieces: bytes) -> int:
    for piece in pieces:
        counter.pending.append(piece)
        counter.count()
    tokens = counter.tokens(None)
    assert tokens.input == 7
    assert counter.media.audio_output + counter.media.image_output == tokens.output
    return tokens.output


@pytest.mark.parametrize("name", SOUNDS)
@pytest.mark.parametrize("response_format", ["mp3", "wav", None, 3])
def test_sound_counts_by_its_own_format(name: str, response_format: object) -> None:
    opening, bytes_per_s = SOUNDS[name]
    sound = opening + b"\0" * (bytes_per_s * SECONDS - len(opening))
    assert output(SpeechCounter(ASKED, response_format, is_encoded=False), sound[:5000], sound[5000:]) == MINUTE


@pytest.mark.parametrize(("response_format", "seconds"), [("pcm", 1), ("odd", 3), (None, 3)])
def test_sound_without_a_mark_counts_as_it_was_asked_for(response_format: object, seconds: int) -> None:
    counter = SpeechCounter(ASKED, response_format, is_encoded=False)
    assert output(counter, b"\0" * 48_000) == -(-seconds * MINUTE // 60)


def test_encoded_sound_counts_as_the_sound() -> None:
    encoded = base64.b64encode(b"ID3" + b"\0" * (16_000 * SECONDS - 3)).decode()
    deltas = [encoded[start : start + 4_000] for start in range(0, len(encoded), 4_000)]
    frames = [b"data: " + orjson.dumps({"type": "speech.audio.delta", "audio": delta}) + b"\n\n" for delta in deltas]
    assert output(SpeechCounter(ASKED, "pcm", is_encoded=True), *frames) == MINUTE


@pytest.mark.parametrize(
    ("size", "quality", "tokens"),
    [
        ("1024x1024", "low", 272),
        ("1024x1536", "low", 408),
        ("1024x1024", "medium", 1056),
        ("1536x1024", "high", 6240),
        ("1024x1024", "hd", 4160),
        ("auto", "auto", 1056),
        (None, None, 1056),
        ("0x0", 3, 1056),
        ("512x512", "standard", 264),
        ("1024x1024", "max", 7024),
        ("2048x2048", "high", 8453),
        ("3840x2160", "medium", 2006),
        ("2160x3840", "low", 517),
        ("9999x999", "high", 1635),
    ],
)
def test_tokens_of_a_picture(size: object, quality: object, tokens: int) -> None:
    assert picture_tokens(size, quality) == tokens


@given(CUTS)
def test_pictures_count_however_they_are_cut(places: list[int]) -> None:
    stream = b": hello\n\n" + picture("partial_image") + picture("partial_image") + picture("completed", quality="low")
    options = {"quality": "low", "partial_images": 2}
    assert output(PictureCounter(ASKED, options), *cut(stream, places)) == 272 + 2 * 100


@given(st.integers(100, 30_000))
def test_picture_that_began_to_arrive_counts(at: int) -> None:
    whole = picture("completed")
    assert output(PictureCounter(ASKED, {"quality": "high"}), whole[: min(at, len(whole) - 2)]) == 4160


@pytest.mark.parametrize("parts", [None, 0, 4, 10**6, "3", True])
def test_partial_picture_is_a_fixed_part_whatever_is_asked_for(parts: object) -> None:
    counter = PictureCounter(ASKED, {"quality": "high", "partial_images": parts})
    assert output(counter, picture("partial_image")) == 4160 // 4 + 100


def test_each_of_several_pictures_counts() -> None:
    stream = (picture("partial_image") + picture("completed")) * 2
    assert output(PictureCounter(ASKED, {"partial_images": 1}), stream) == 2 * (1056 + 100)


@pytest.mark.parametrize("junk", [b"data: {\n\n", b"data: [1]\n\n", b"\n\n", b'data: {"type": 3}\n\n', b"x" * 99_999])
def test_junk_costs_nothing(junk: bytes) -> None:
    assert output(PictureCounter(ASKED, {}), junk) == 0


def delivered(path: str, asks: dict[str, Any], *events: dict[str, Any]) -> tuple[int, Details]:
    """The output tokens, and what of them is sound or pictures."""
    request = received({"model": SLUG, "stream": True} | asks, path)
    counter = delivered_counter(request, "text/event-stream")
    counter.pending.extend(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    return counter.tokens(None).output, counter.media


def test_sound_among_text_counts_beside_its_transcript() -> None:
    data = base64.b64encode(bytes(48_000 * SECONDS)).decode()
    asks = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
    deltas: list[dict[str, Any]] = [{"audio": {"data": data}}, {"audio": {"transcript": "hello"}}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    assert delivered(CHAT, asks, *chunks) == (MINUTE + 1, Details(audio_output=MINUTE))


def test_pictures_among_text_count_beside_it() -> None:
    asks = {"tools": [{"type": "image_generation", "size": "1024x1024", "quality": "low", "partial_images": 1}]}
    partial = {"type": "response.image_generation_call.partial_image", "partial_image_b64": "QUJD" * 999}
    whole = {"type": "response.image_generation_call.completed"}
    text = {"type": "response.output_text.delta", "delta": "hello"}
    end = {"type": "response.completed", "response": {}}
    assert delivered("/v1/responses", asks, partial) == (236, Details(image_output=236))
    assert delivered("/v1/responses", asks, partial, whole, text, end) == (373, Details(image_output=372))
