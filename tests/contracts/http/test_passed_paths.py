"""Answers on the paths that are only passed on, and on those without a translation: odd labels, odd bytes.

Over real sockets. Usage is found whatever the label, the target's model stays hidden, and delivered text is never free.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from policy.billing import Tokens
from tests.contracts.http.asking import answer_on, replica
from tests.contracts.http.test_path import Wire
from tests.fakes.directory import SLUG, platform
from tests.upstream.oddities.row import JSON, SSE, TARGET_MODEL, Json, chat_usage, frames, sends

REPORTED = Tokens(input=12, output=5)
INPUT_ONLY = Tokens(input=12, output=0)
USAGE = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}
SOUND = "SUQz" + "QUJDREVG" * 4_000
"""Base64 of 24 kB that begin like an `mp3`."""
PICTURE = "QUJDREVG" * 100


@dataclass(frozen=True, slots=True)
class Case:
    """An answer, as a server of this path sends it."""

    path: str
    asks: Json
    answer: Json | bytes
    """A whole body, or a stream."""
    has: bytes = b"Hello"
    billed: Tokens = REPORTED
    is_text: bool = True
    """True for output that counts where no usage is reported."""


PROMPT: Json = {"prompt": "Say hello"}
SPEECH: Json = {"input": "Hello", "voice": "alloy"}
FORM: Json = {"file": "data:audio/wav;base64,AAAA"}
COMPLETION = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": TARGET_MODEL}
WHOLE = {
    "completion": Case(
        "/v1/completions",
        PROMPT,
        chat_usage() | COMPLETION | {"choices": [{"index": 0, "text": "Hello there", "finish_reason": "stop"}]},
    ),
    "embeddings": Case(
        "/v1/embeddings",
        {"input": "Hello"},
        {
            **{"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": TARGET_MODEL},
            "usage": {"prompt_tokens": 12, "total_tokens": 12},
        },
        has=b"0.5",
        billed=INPUT_ONLY,
        is_text=False,
    ),
    "moderation": Case(
        "/v1/moderations",
        {"input": "Hello"},
        {"id": "modr-1", "model": TARGET_MODEL, "results": [{"flagged": False}]},
        has=b"flagged",
        billed=Tokens(),
        is_text=False,
    ),
    "rerank": Case(
        "/v1/rerank",
        {"query": "Hello", "documents": ["a", "b"]},
        {"results": [{"index": 0, "relevance_score": 0.5}], "model": TARGET_MODEL, "usage": {"total_tokens": 12}},
        has=b"relevance_score",
        billed=INPUT_ONLY,
        is_text=False,
    ),
    "picture": Case(
        "/v1/images/generations",
        PROMPT,
        {"created": 1, "model": TARGET_MODEL, "data": [{"b64_json": PICTURE}], "usage": USAGE},
        has=PICTURE.encode(),
        is_text=False,
    ),
    "transcript": Case(
        "/v1/audio/transcriptions", FORM, {"text": "Hello there", "model": TARGET_MODEL, "usage": USAGE}
    ),
}
STREAMS = {
    "completion": Case(
        "/v1/completions",
        PROMPT | {"stream": True},
        frames(
            *(COMPLETION | {"choices": [{"index": 0, "text": word}]} for word in ("Hello", " there")),
            COMPLETION | {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]},
            chat_usage() | COMPLETION | {"choices": []},
            "[DONE]",
        ),
    ),
    "picture": Case(
        "/v1/images/generations",
        PROMPT | {"stream": True},
        frames(
            {"type": "image_generation.partial_image", "b64_json": PICTURE, "partial_image_index": 0},
            {"type": "image_generation.completed", "b64_json": PICTURE, "model": TARGET_MODEL, "usage": USAGE},
        ),
        has=PICTURE.encode(),
    ),
    "speech": Case(
        "/v1/audio/speech",
        SPEECH | {"stream_format": "sse"},
        frames(
            {"type": "speech.audio.delta", "audio": SOUND},
            {"type": "speech.audio.done", "model": TARGET_MODEL, "usage": USAGE},
        ),
        has=SOUND.encode(),
    ),
    "transcript": Case(
        "/v1/audio/transcriptions",
        FORM | {"stream": True},
        frames(
            {"type": "transcript.text.delta", "delta": "Hello"},
            {"type": "transcript.text.done", "text": "Hello", "model": TARGET_MODEL, "usage": USAGE},
        ),
    ),
}
LABELS = (JSON, SSE, "text/plain", "application/octet-stream", None)


def odd(body: bytes) -> dict[str, bytes]:
    """A JSON object as bytes that a strict parser refuses."""
    start = body[:-1]
    return {
        "with a byte-order mark": codecs.BOM_UTF8 + body,
        "with NaN": start + b',"score":NaN,"low":-Infinity}',
        "with a number beyond a double": start + b',"score":1e999}',
        "with half of a surrogate pair": start + b',"note":"\\ud800"}',
        "in UTF-16": codecs.BOM_UTF16_LE + body.decode().encode("utf-16-le"),
        "in an array": b"[" + body + b"]",
        "cut off behind its usage": start,
    }


def body_of(case: Case) -> bytes:
    return case.answer if isinstance(case.answer, bytes) else json.dumps(case.answer).encode()


async def answered(case: Case, answer: bytes, label: str | None) -> tuple[bytes, Tokens]:
    """The answer that the caller gets, and the tokens that are billed."""
    async with replica(sends(answer[:9], answer[9:], label=label)) as wire:
        name_target(wire)
        received = await answer_on(wire, case.path, {"model": SLUG} | case.asks)
        await wire.until_logged()
        assert received.status == 200
        return received.body, wire.billed


def name_target(wire: Wire) -> None:
    """Give the target a name of its own for the model."""
    wire.rig.directory.add_slug(SLUG, replace(platform(), target_model=TARGET_MODEL))


def labelled() -> Iterator[Any]:
    for kind, cases in (("whole", WHOLE), ("stream", STREAMS)):
        for name, case in cases.items():
            for label in LABELS:
                yield pytest.param(case, body_of(case), label, id=f"{kind} {name} labelled {label}")
    for name, case in WHOLE.items():
        for oddity, body in odd(body_of(case)).items():
            yield pytest.param(case, body, JSON, id=f"{name} {oddity}")


@pytest.mark.parametrize(("case", "answer", "label"), tuple(labelled()))
async def test_usage_is_found_and_the_model_renamed_whatever_the_label(
    case: Case, answer: bytes, label: str | None
) -> None:
    body, billed = await answered(case, answer, label)
    readable = body.replace(b"\0", b"")
    assert case.has in readable
    assert TARGET_MODEL.encode() not in readable
    assert billed == case.billed


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("case", [*(case for case in (*WHOLE.values(), *STREAMS.values()) if case.is_text)])
async def test_delivered_output_counts_where_an_answer_breaks_off_before_its_usage(
    case: Case, label: str | None
) -> None:
    whole = body_of(case)
    answer = whole[: whole.index(case.has) + len(case.has)]
    body, billed = await answered(case, answer, label)
    assert TARGET_MODEL.encode() not in body
    assert billed.output > 0


@pytest.mark.parametrize("oddity", odd(b"{}"))
@pytest.mark.parametrize("name", [name for name, case in WHOLE.items() if case.is_text])
async def test_delivered_text_counts_where_odd_bytes_report_nothing(name: str, oddity: str) -> None:
    case = WHOLE[name]
    whole = json.loads(body_of(case))
    del whole["usage"]
    body, billed = await answered(case, odd(json.dumps(whole).encode())[oddity], JSON)
    assert TARGET_MODEL.encode() not in body.replace(b"\0", b"")
    assert billed.output == 2


@pytest.mark.parametrize("label", LABELS)
async def test_speech_as_json_is_renamed_and_counted(label: str | None) -> None:
    """Some servers put the sound into JSON."""
    case = Case("/v1/audio/speech", SPEECH, {"model": TARGET_MODEL, "audio": SOUND, "usage": USAGE})
    body, billed = await answered(case, body_of(case), label)
    assert SOUND.encode() in body
    assert billed.output > 0
    if label == JSON:
        assert (billed, TARGET_MODEL.encode() in body) == (REPORTED, False)


@pytest.mark.parametrize("label", ["audio/mpeg", *LABELS])
async def test_sound_passes_unchanged_and_counts_whatever_its_label(label: str | None) -> None:
    sound = b'ID3\x04{"model": "x"}' + bytes(range(256)) * 100
    case = Case("/v1/audio/speech", SPEECH, sound)
    body, billed = await answered(case, sound, label)
    assert billed.output > 0
    if label not in (JSON, SSE):
        assert body == sound


@pytest.mark.parametrize("label", LABELS)
async def test_count_of_tokens_passes_and_is_not_billed(label: str | None) -> None:
    case = Case("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}, {"input_tokens": 7})
    body, billed = await answered(case, body_of(case), label)
    assert json.loads(body) == {"input_tokens": 7}
    assert billed == Tokens()
