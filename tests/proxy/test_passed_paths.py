"""Paths that are only passed on: moderations, rerank, images, audio; JSON and forms, over in-memory parts."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from policy.billing import Details, Tokens
from policy.endpoints import Target, VendorCConfig
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.token_estimate import AUDIO_TOKENS
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.errors import UpstreamUnreachableError
from proxy.parts import DispatchSettings
from proxy.pipeline import Pipeline
from proxy.refusals import SlowBodyError
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import VENDOR_B, PathRig
from tests.fakes.upstream_client import SSE, FakeAnswer, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing
from tests.waiting import PATIENCE_S

TRANSCRIPTIONS = "/v1/audio/transcriptions"
JSON_PATHS = ["/v1/moderations", "/v1/rerank", "/v2/rerank", "/v1/images/generations", "/v1/audio/speech"]
FORM_PATHS = ["/v1/images/edits", TRANSCRIPTIONS, "/v1/audio/translations"]
AUDIO = bytes(range(256)) * 40
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n' + AUDIO + b"\r\n"
USAGE = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
REPORTED = Tokens(input=14, output=45, cached_input=0)
COUNTED = Tokens(input=AUDIO_TOKENS, output=1, cached_input=0)


@pytest.fixture
def rig() -> PathRig:
    return PathRig()


def field(name: str, value: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def form(path: str, *parts: Any, length: bool = True) -> FakeIncoming:
    """A form that arrives in these pieces."""
    incoming = FakeIncoming(path, content_type="multipart/form-data; boundary=b")
    incoming.parts.extend(parts)
    if length:
        incoming.declared_bytes = sum(len(part) for part in parts if isinstance(part, bytes))
    return incoming


def posted(path: str, **members: Any) -> FakeIncoming:
    return FakeIncoming(path).saying({"model": SLUG, **members})


def events(*payloads: dict[str, Any]) -> FakeAnswer:
    return answer(headers=SSE, pieces=[b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads])


def billed(rig: PathRig) -> Tokens:
    rig.check_settled()
    return rig.journal.closed[-1].tokens


# What passes.


@pytest.mark.parametrize("path", JSON_PATHS)
async def test_json_request_passes_with_the_targets_model(rig: PathRig, path: str) -> None:
    rig.upstream.will(answer(b'{"model":"their-model","results":[]}'))
    outgoing = await rig.serve(posted(path, input="text", documents=["a"]))
    [call] = rig.upstream.calls
    assert call.url == VENDOR_B + path
    assert json.loads(bytes(call.body)) == {"model": "their-model", "input": "text", "documents": ["a"]}
    assert outgoing.status == 200
    if path != "/v1/audio/speech":
        assert outgoing.json == {"model": SLUG, "results": []}


@pytest.mark.parametrize("path", FORM_PATHS)
@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("length", [True, False])
async def test_form_passes_with_the_targets_model(rig: PathRig, path: str, model_first: bool, length: bool) -> None:
    parts = [field("model", SLUG), FILE[:50], FILE[50:], field("language", "en")]
    if not model_first:
        parts = parts[1:] + parts[:1]
    rig.upstream.will(answer(b'{"text":"hello"}'))
    outgoing = await rig.serve(form(path, *parts, b"--b--\r\n", length=length))
    assert (outgoing.status, outgoing.json) == (200, {"text": "hello"})
    [call] = rig.upstream.calls
    assert call.url == VENDOR_B + path
    assert call.headers["content-type"] == "multipart/form-data; boundary=b"
    assert call.headers["authorization"] == "Bearer sk-upstream-secret"
    upload = b"".join(parts).replace(SLUG.encode(), b"their-model") + b"--b--\r\n"
    assert rig.upstream.uploaded == [upload]
    assert call.upload is not None
    assert call.upload.length == (len(upload) if length else None)
    [logged] = rig.meters.calls
    assert logged.request_bytes == sum(map(len, parts)) + len(b"--b--\r\n")


async def test_form_paths_take_json_too(rig: PathRig) -> None:
    rig.upstream.will(answer(b"{}"))
    assert (await rig.serve(posted("/v1/images/edits", prompt="x"))).status == 200
    assert rig.upstream.calls[0].upload is None


async def test_version_in_a_base_url_is_not_repeated(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_B_COMPATIBLE", base_url="https://x.test/v1", target_model="t"))
    rig.upstream.will(answer(b"{}"), answer(b"{}"))
    await rig.serve(posted("/v1/images/generations"))
    await rig.serve(posted("/v2/rerank"))
    assert [call.url for call in rig.upstream.calls] == [
        "https://x.test/v1/images/generations",
        "https://x.test/v2/rerank",
    ]


class FakeTokens:
    """Mints a token for every service account."""

    async def token(self, secret_value: str) -> str:
        return f"token for {secret_value}"


async def test_vendor_c_is_asked_below_its_project(rig: PathRig) -> None:
    place = VendorCConfig("project", "here")
    rig.directory.add_slug(SLUG, Target("VENDOR_C", secret_id="s1", vendor_c_config=place, target_model="their-model"))
    rig.settings = DispatchSettings({"VENDOR_C": "https://{location}-c.test"})
    pipeline = Pipeline(replace(rig.parts(), access_tokens=FakeTokens()))
    rig.upstream.will(answer(b"{}"), answer(b"{}"))
    for incoming in (posted("/v1/images/generations"), form(TRANSCRIPTIONS, field("model", SLUG), FILE, b"--b--\r\n")):
        await pipeline.handle(incoming, FakeOutgoing())
    root = "https://here-c.test/v1/projects/project/locations/here/endpoints/openapi"
    assert [call.url for call in rig.upstream.calls] == [f"{root}/images/generations", f"{root}/audio/transcriptions"]
    assert {call.headers["authorization"] for call in rig.upstream.calls} == {"Bearer token for sk-upstream-secret"}
    assert rig.upstream.uploaded == [field("model", "their-model") + FILE + b"--b--\r\n"]


@pytest.mark.parametrize("incoming", [posted("/v1/moderations"), form(TRANSCRIPTIONS, field("model", SLUG), FILE)])
async def test_messages_target_is_a_400_that_names_the_path(rig: PathRig, incoming: FakeIncoming) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_A", secret_id="s1"))
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
    assert incoming.request_target in outgoing.json["error"]
    assert not rig.upstream.calls


async def test_upload_goes_to_another_replica_if_the_first_is_not_reached(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", "http://one.test", "http://two.test")
    rig.upstream.will(UpstreamUnreachableError(), answer(b"{}"))
    outgoing = await rig.serve(form(TRANSCRIPTIONS, field("model", SLUG), FILE, b"--b--\r\n"))
    assert outgoing.status == 200
    assert len({call.url for call in rig.upstream.calls}) == 2
    assert rig.upstream.uploaded == [field("model", SLUG) + FILE + b"--b--\r\n"]


# What is billed.

IMAGE_EVENTS = (
    {"type": "image_generation.partial_image", "b64_json": "AAAA", "partial_image_index": 0},
    {"type": "image_generation.completed", "b64_json": "BBBB", "usage": USAGE},
)
TRANSCRIPT = ({"type": "transcript.text.delta", "delta": "hello"}, {"type": "transcript.text.done", "text": "hello"})


@pytest.mark.parametrize(
    ("path", "reply", "tokens"),
    [
        ("/v1/moderations", answer(b'{"results":[]}'), Tokens()),
        ("/v1/rerank", answer(b'{"results":[],"usage":{"total_tokens":9}}'), Tokens(input=9, output=0, cached_input=0)),
        ("/v1/rerank", answer(b'{"results":[]}'), Tokens(input=3, output=0, cached_input=0)),
        (
            "/v1/images/generations",
            answer(json.dumps({"data": [{"b64_json": "AAAA"}], "usage": USAGE}).encode()),
            REPORTED,
        ),
        ("/v1/images/generations", answer(b'{"data":[{"b64_json":"AAAA"}]}'), Tokens()),
        ("/v1/images/generations", events(*IMAGE_EVENTS), REPORTED),
        (
            "/v1/audio/speech",
            events({"type": "speech.audio.delta", "audio": "AAAA"}, {"type": "speech.audio.done", "usage": USAGE}),
            REPORTED,
        ),
    ],
)
async def test_tokens_are_billed_as_reported(rig: PathRig, path: str, reply: FakeAnswer, tokens: Tokens) -> None:
    rig.upstream.will(reply)
    incoming = posted(path, input="some text to speak", query="what", documents=["this", {"text": "that"}])
    assert (await rig.serve(incoming)).status == 200
    assert billed(rig) == tokens
    assert rig.meters.unreported == (["missing"] if tokens == Tokens(input=3, output=0, cached_input=0) else [])


@pytest.mark.parametrize(
    ("path", "reply", "details", "source"),
    [
        ("/v1/images/generations", events(*IMAGE_EVENTS), Details(image_output=45), "REPORTED"),
        ("/v1/images/generations", events(IMAGE_EVENTS[0]), Details(image_output=364), "COUNTED"),
        (
            "/v1/audio/speech",
            events({"type": "speech.audio.done", "usage": USAGE}),
            Details(audio_output=45),
            "REPORTED",
        ),
        ("/v1/audio/speech", answer(b"ID3" + b"\0" * 15_997), Details(audio_output=21), "COUNTED"),
    ],
)
async def test_output_that_is_no_text_is_known_as_such(
    rig: PathRig, path: str, reply: FakeAnswer, details: Details, source: str
) -> None:
    rig.upstream.will(reply)
    await rig.serve(posted(path, input="some text to speak"))
    [closed] = rig.journal.closed
    assert (closed.details, closed.source) == (details, source)


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        (answer(json.dumps({"text": "hello", "usage": USAGE}).encode()), REPORTED),
        (answer(b'{"text":"hello","usage":{"type":"duration","seconds":3}}'), COUNTED),
        (answer(b'{"task":"transcribe","text":"hello","segments":[{"text":"hello"}]}'), COUNTED),
        (answer(b"hello", headers=(("content-type", "text/plain"),)), COUNTED),
        (events(TRANSCRIPT[0], TRANSCRIPT[1] | {"usage": USAGE}), REPORTED),
        (events(*TRANSCRIPT), COUNTED),
    ],
)
async def test_transcripts_are_billed_as_reported_or_by_their_text(
    rig: PathRig, reply: FakeAnswer, tokens: Tokens
) -> None:
    rig.upstream.will(reply)
    await rig.serve(form(TRANSCRIPTIONS, field("model", SLUG), FILE, b"--b--\r\n"))
    assert billed(rig) == tokens
    counted_sound = AUDIO_TOKENS if tokens == COUNTED else 0
    assert rig.journal.closed[-1].details == Details(audio_input=counted_sound)


MINUTE = 1250
MPEG = (("content-type", "audio/mpeg"),)


async def test_speech_is_billed_by_the_second(rig: PathRig) -> None:
    rig.upstream.will(answer(b"\xff\xfb" * 8_000 * 60, headers=MPEG))
    await rig.serve(posted("/v1/audio/speech", input="some text to speak"))
    assert billed(rig) == Tokens(input=4, output=MINUTE, cached_input=0)
    assert rig.meters.unreported == [], "no server reports usage beside plain sound"


PARTIAL = {"type": "image_generation.partial_image", "b64_json": "QUJD" * 99, "size": "1024x1024", "quality": "high"}


@pytest.mark.parametrize(
    ("path", "asks", "headers", "first", "output"),
    [
        ("/v1/audio/speech", {"input": "hi"}, MPEG, b"\xff\xfb" * 8_000 * 6, MINUTE // 10),
        (
            "/v1/audio/speech",
            {"input": "hi", "stream_format": "sse", "response_format": "pcm"},
            SSE,
            b'data: {"type": "speech.audio.delta", "audio": "%b"}\n\n' % (b"AAAA" * 16_000 * 6),
            MINUTE // 10,
        ),
        (
            "/v1/images/generations",
            {"prompt": "hi", "stream": True, "partial_images": 3},
            SSE,
            b"data: %b\n\n" % json.dumps(PARTIAL).encode(),
            4160 // 4 + 100,
        ),
    ],
)
async def test_stream_that_is_left_early_costs_what_was_delivered(
    rig: PathRig, path: str, asks: dict[str, Any], headers: Any, first: bytes, output: int
) -> None:
    never = asyncio.Event()
    reply = answer(headers=headers, pieces=[first, b"\xfe", never])
    rig.upstream.will(reply)
    task = asyncio.ensure_future(rig.pipeline.handle(posted(path, **asks), FakeOutgoing()))
    await asyncio.wait_for(reply.wait_start.wait(), PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.meters.calls[0].status == 499
    assert billed(rig) == Tokens(input=1, output=output, cached_input=0)


async def test_audio_streams_through(rig: PathRig) -> None:
    later = asyncio.Event()
    for headers in ((("content-type", "audio/mpeg"),), ()):
        later.clear()
        reply = answer(headers=headers, pieces=[b"\xff" * 5000, b"\xfe" * 5000, later, b"\xfd"])
        rig.upstream.will(reply)
        outgoing = FakeOutgoing()
        task = asyncio.ensure_future(rig.pipeline.handle(posted("/v1/audio/speech", input="hi"), outgoing))
        await asyncio.wait_for(reply.wait_start.wait(), PATIENCE_S)
        assert outgoing.body == b"\xff" * 5000, "all but the last piece"
        later.set()
        await task
        assert outgoing.body == b"\xff" * 5000 + b"\xfe" * 5000 + b"\xfd"


# What is refused.


async def test_form_is_routed_and_limited_as_any_call(rig: PathRig) -> None:
    body = (FILE, b"--b--\r\n")
    assert (await rig.serve(form(TRANSCRIPTIONS, field("model", "acme/unknown"), *body))).status == 404
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.upstream.will(answer(b"{}"))
    incoming = [form(TRANSCRIPTIONS, field("model", SLUG), *body) for _ in range(2)]
    assert [(await rig.serve(one)).status for one in incoming] == [200, 429]
    assert len(incoming[1].parts) == 1, "no more was read than tells where the model ends"


@pytest.mark.parametrize("length", [True, False])
async def test_model_that_comes_twice_cuts_the_upload(rig: PathRig, length: bool) -> None:
    rig.upstream.will(answer(b"{}"))
    parts = (field("model", SLUG), FILE, field("model", "acme/other"), b"--b--\r\n")
    outgoing = await rig.serve(form(TRANSCRIPTIONS, *parts, length=length))
    assert outgoing.status == 400
    assert "model occurs more than once" in outgoing.json["error"]
    [upload] = rig.upstream.uploaded
    assert upload.startswith(field("model", "their-model"))
    assert b"acme/other" not in upload
    assert b"--b--" not in upload
    [closed] = rig.journal.closed
    assert (closed.status, closed.tokens) == (400, Tokens())
    rig.check_settled()


@pytest.mark.parametrize(
    ("parts", "status", "says"),
    [
        ((FILE, b"--b--\r\n"), 400, "'model'"),
        ((b"--b--\r\n",), 400, "'model'"),
        ((b"{}",), 400, "must begin with its boundary"),
        ((field("model", SLUG), FILE), 400, "ends before its last delimiter"),
        ((field("metadata", "{}"), field("model", SLUG)), 400, "x-request-metadata"),
        ((field("model", SLUG), SlowBodyError()), 408, "did not arrive in time"),
    ],
)
async def test_wrong_form_is_refused(rig: PathRig, parts: tuple[Any, ...], status: int, says: str) -> None:
    rig.upstream.will(answer(b"{}"))
    outgoing = await rig.serve(form(TRANSCRIPTIONS, *parts, length=False))
    assert outgoing.status == status
    assert says in outgoing.json["error"]
    rig.check_settled()


async def test_form_above_the_bound_is_a_413(rig: PathRig) -> None:
    rig.upstream.will(answer(b"{}"))
    model = field("model", SLUG)
    outgoing = await rig.serve(form(TRANSCRIPTIONS, model, FILE, *[b"x" * 50_000] * 2, length=False))
    assert (outgoing.status, outgoing.json["error_code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert len(rig.upstream.uploaded) == 1
    assert (await rig.serve(form(TRANSCRIPTIONS, b"x" * 100_001))).status == 413
    assert len(rig.upstream.uploaded) == 1, "a declared size is refused before"


async def test_only_what_comes_before_the_model_is_held() -> None:
    rig = PathRig(capacity=CapacityLimits(max_held_bytes=30_000))
    rig.upstream.will(answer(b"{}"))
    model = field("model", SLUG)
    file = [FILE[:-2], *[b"x" * 10_000] * 5, b"\r\n"]
    outgoing = await rig.serve(form(TRANSCRIPTIONS, model, *file, b"--b--\r\n"))
    assert outgoing.status == 200
    outgoing = await rig.serve(form(TRANSCRIPTIONS, *file, model, b"--b--\r\n"))
    assert (outgoing.status, outgoing.json["error_code"]) == (529, "CAPACITY_EXHAUSTED")


async def test_caller_that_leaves_mid_upload_is_settled(rig: PathRig) -> None:
    never = asyncio.Event()
    rig.upstream.will(answer(b"{}"))
    incoming = form(TRANSCRIPTIONS, field("model", SLUG), FILE, never, length=False)
    task = asyncio.ensure_future(rig.serve(incoming))
    await asyncio.wait_for(incoming.wait_start.wait(), PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.meters.calls[0].status == 499
    assert billed(rig) == Tokens()
