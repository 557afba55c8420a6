"""Forms and media over real sockets on both sides: the stock SDK, slow and broken ends, drain in mid-upload."""

import asyncio
import io
import random
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from policy.billing import Tokens
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.token_estimate import AUDIO_TOKENS
from tests import upstream as script
from tests.contracts.http.test_path import SSE, Wire, wired
from tests.fakes.directory import KEY, SLUG
from tests.fakes.front import Caller
from tests.fakes.path import PathRig
from tests.proxy.capacity.idle import check_idle
from tests.upstream import Exchange, media
from tests.waiting import eventually, until_still

BOTH_LOOPS = True
AUDIO = media.AUDIO * 30
REPORTED = Tokens(input=14, output=45, cached_input=0)
BOUNDARY = "----formdata-undici-012345678901"


@pytest.fixture
def rig() -> PathRig:
    rig = PathRig(max_body_bytes=100_000_000)
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 1_000_000))
    return rig


@pytest.fixture
async def wire(rig: PathRig) -> AsyncIterator[Wire]:
    async with wired(rig) as wire:
        wire.upstream.default = media.answer_as_media_vendor
        yield wire


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{wire.front.port}/v1", api_key=KEY, max_retries=0, timeout=20
    ) as client:
        yield client


def sent_fields(wire: Wire) -> dict[str, Any]:
    received = wire.upstream.received[-1]
    return media.fields_of(received.header("content-type") or "", received.body)


# The stock SDK.


async def test_sdk_transcribes_and_translates(wire: Wire, client: openai.AsyncOpenAI) -> None:
    file = ("speech.mp3", AUDIO, "audio/mpeg")
    answer = await client.audio.transcriptions.create(model=SLUG, file=file, language="en")
    assert answer.text == media.TEXT
    assert sent_fields(wire) == {"model": b"their-model", "language": b"en", "file": AUDIO}
    assert next(iter(sent_fields(wire))) == "model", "so the file is not held"
    await wire.until_logged()
    assert wire.billed == REPORTED
    text = await client.audio.transcriptions.create(model=SLUG, file=file, response_format="text")
    assert text == media.TEXT
    await wire.until_logged(2)
    assert wire.billed.input == AUDIO_TOKENS
    assert wire.billed.output > 0
    with pytest.warns(DeprecationWarning, match="deprecated"):  # the SDK's, for all translations
        assert (await client.audio.translations.create(model=SLUG, file=file)).text == media.TEXT
    assert wire.upstream.received[-1].path == "/v1/audio/translations"


async def test_sdk_streams_a_transcription(wire: Wire, client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(model=SLUG, file=("a.mp3", AUDIO), stream=True)
    events = [event async for event in stream]
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == media.TEXT
    assert events[-1].type == "transcript.text.done"
    await wire.until_logged()
    assert (wire.status, wire.billed) == (200, REPORTED)


async def test_sdk_generates_and_edits_images(wire: Wire, client: openai.AsyncOpenAI) -> None:
    generated = await client.images.generate(model=SLUG, prompt="a cat")
    assert generated.data is not None
    assert generated.data[0].b64_json == media.IMAGE
    images = [("a.png", b"one"), ("b.png", b"two")]
    edited = await client.images.edit(model=SLUG, prompt="a dog", image=images)
    assert edited.usage is not None
    assert sent_fields(wire) == {"model": b"their-model", "prompt": b"a dog", "image[]": b"two"}
    await wire.until_logged(2)
    assert wire.billed == REPORTED
    stream = await client.images.generate(model=SLUG, prompt="a cat", stream=True, partial_images=1)
    assert [event.type async for event in stream][-1] == "image_generation.completed"
    await wire.until_logged(3)
    assert wire.billed == REPORTED


async def test_sdk_reads_speech_as_it_comes(wire: Wire, client: openai.AsyncOpenAI) -> None:
    async with client.audio.speech.with_streaming_response.create(model=SLUG, voice="alloy", input="Hello") as answer:
        assert answer.headers["content-type"] == "audio/mpeg"
        assert b"".join([piece async for piece in answer.iter_bytes()]) == media.AUDIO
    await wire.until_logged()
    assert (wire.status, wire.billed) == (200, Tokens(input=1, output=134)), "6.4 seconds, which nobody reports"
    async with client.audio.speech.with_streaming_response.create(
        model=SLUG, voice="alloy", input="Hello", stream_format="sse"
    ) as answer:
        assert (await answer.read()).count(b"event: ") == 2
    await wire.until_logged(2)
    assert wire.billed == REPORTED


async def test_sdk_moderates(wire: Wire, client: openai.AsyncOpenAI) -> None:
    answer = await client.moderations.create(model=SLUG, input=["one", "two"])
    assert answer.model == SLUG
    assert wire.upstream.received[0].json == {"model": "their-model", "input": ["one", "two"]}
    await wire.until_logged()
    assert wire.billed == Tokens()


async def test_sdk_shows_what_is_wrong_with_a_form(wire: Wire, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.audio.transcriptions.create(model="acme/unknown", file=io.BytesIO(AUDIO))
    with pytest.raises(openai.BadRequestError) as raised:
        await client.audio.transcriptions.create(model=SLUG, file=("a.mp3", AUDIO), extra_body={"metadata": "x"})
    assert "x-request-metadata" in raised.value.response.reason_phrase


# Both ends as they please.


def part(name: str, value: bytes, filename: str = "") -> bytes:
    more = f'; filename="{filename}"' if filename else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


MODEL = part("model", SLUG.encode())
FILE_HEAD = part("file", b"", "a.mp3")[:-2]
END = f"\r\n--{BOUNDARY}--\r\n".encode()


async def uploading(wire: Wire, size: int, more: str = "") -> Caller:
    """A caller that has sent the head of a form of `size` bytes."""
    caller = await wire.front.caller()
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\n{more}"
    head += f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {size}\r\n\r\n"
    caller.send(head.encode())
    return caller


async def test_file_before_the_model_is_uploaded_too(wire: Wire) -> None:
    body = FILE_HEAD + AUDIO + b"\r\n" + MODEL[:-2] + END
    caller = await uploading(wire, len(body))
    caller.send(body)
    status, _, answer = await caller.answer()
    assert (status, b"What was said." in answer) == (200, True)
    assert sent_fields(wire) == {"model": b"their-model", "file": AUDIO}


async def test_upload_moves_at_the_upstreams_pace(wire: Wire) -> None:
    size = 60_000_000
    piece = b"x" * 100_000
    opened = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await opened.wait()
        await script.answer_json(200, {"text": "heard"})(exchange)

    wire.upstream.plan(behave)
    caller = await uploading(wire, len(MODEL) + len(FILE_HEAD) + size + len(END))
    sent_bytes = 0

    async def upload() -> None:
        nonlocal sent_bytes
        caller.send(MODEL + FILE_HEAD)
        for _ in range(size // len(piece)):
            caller.send(piece)
            await caller.writer.drain()
            sent_bytes += len(piece)
        caller.send(END)

    task = asyncio.ensure_future(upload())
    capacity = wire.rig.meters.capacity
    assert capacity is not None
    await eventually(lambda: bool(wire.upstream.received))
    await until_still(lambda: sent_bytes)
    assert sent_bytes < size / 2, "the rest waits at the caller"
    assert capacity.held_bytes <= 1_000_000, "no more than was just read"
    opened.set()
    await task
    assert (await caller.answer())[0] == 200
    assert len(wire.upstream.received[0].body) > size
    assert capacity.held_bytes == 0


async def test_second_model_after_the_file_reaches_no_server_complete(wire: Wire) -> None:
    received: list[bytes] = []

    async def behave(exchange: Exchange) -> None:
        try:
            while data := await exchange.reader.read(65_536):
                received.append(data)
        except ConnectionError:
            pass
        exchange.keep = False

    wire.upstream.plan(behave)
    body = MODEL + FILE_HEAD + AUDIO + b"\r\n" + part("model", b"acme/other")[:-2] + END
    caller = await uploading(wire, len(body))
    caller.send(body)
    status, _, answer = await caller.answer()
    assert (status, b"model occurs more than once" in answer) == (400, True)
    await wire.until_logged()
    assert (wire.status, wire.billed) == (400, Tokens())
    await wire.upstream.until(lambda: not wire.upstream.open_connections)
    assert b"acme/other" not in b"".join(received)
    assert BOUNDARY.encode() + b"--" not in b"".join(received)


async def test_caller_that_leaves_cuts_the_upload(wire: Wire) -> None:
    caller = await uploading(wire, 10_000_000)
    caller.send(MODEL + FILE_HEAD + AUDIO)
    await wire.upstream.until(lambda: bool(wire.upstream.received))
    caller.reset()
    await wire.upstream.until(lambda: not wire.upstream.open_connections)
    await wire.until_logged()
    assert (wire.status, wire.billed) == (499, Tokens())


async def test_caller_that_leaves_a_stalled_upload_is_noticed(wire: Wire) -> None:
    wire.upstream.plan(script.early(b""))
    caller = await uploading(wire, 90_000_000)
    caller.send(MODEL + FILE_HEAD + b"x" * 60_000_000)
    await wire.upstream.until(lambda: bool(wire.upstream.received))
    await asyncio.sleep(0.2)  # until the gateway stops reading from the caller
    caller.reset()
    await wire.until_logged()
    assert (wire.status, wire.billed) == (499, Tokens())


async def test_upload_that_outlasts_the_request_timeout_is_a_504(rig: PathRig) -> None:
    async with wired(rig, request_timeout_s=0.3) as wire:
        caller = await uploading(wire, 10_000_000)
        caller.send(MODEL + FILE_HEAD + AUDIO)
        assert (await caller.answer())[0] == 504
        await wire.until_logged()
        await wire.upstream.until(lambda: not wire.upstream.open_connections)


async def test_early_refusal_of_the_upstream_reaches_the_caller(wire: Wire) -> None:
    refusal = script.head(422, {"content-length": "14", "content-type": "application/json"}) + b'{"error":"no"}'
    wire.upstream.plan(script.early(refusal))
    caller = await uploading(wire, 10_000_000)
    caller.send(MODEL + FILE_HEAD + AUDIO)
    status, head, body = await caller.answer()
    assert (status, body) == (422, b'{"error":"no"}')
    assert b"connection: close" in head
    await wire.until_logged()
    assert wire.status == 422


async def test_upstream_that_breaks_off_is_a_502(wire: Wire) -> None:
    async def behave(exchange: Exchange) -> None:
        exchange.reset()

    wire.upstream.plan(behave)
    caller = await uploading(wire, 10_000_000)
    caller.send(MODEL + FILE_HEAD + AUDIO)
    assert (await caller.answer())[0] == 502
    await wire.until_logged()


async def test_answer_that_begins_before_the_uploads_end_passes(wire: Wire) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.send(script.head(200, SSE) + script.chunked(b'data: {"type":"one"}\n\n', end=False))
        await exchange.read_body()
        await exchange.send(script.chunked(b'data: {"type":"two"}\n\n'))

    wire.upstream.plan(behave)
    body = MODEL + FILE_HEAD + AUDIO + END
    caller = await uploading(wire, len(body))
    caller.send(body[:-100])
    await caller.until(b'"one"')
    caller.send(body[-100:])
    assert b'"two"' in await caller.read_to_end()
    assert wire.upstream.received[0].body.endswith(END)
    await wire.until_logged()


async def test_100_continue_comes_after_the_checks_of_the_head(wire: Wire) -> None:
    body = MODEL + FILE_HEAD + AUDIO + END
    caller = await uploading(wire, len(body), "Expect: 100-continue\r\n")
    assert (await caller.head()).startswith(b"HTTP/1.1 100 ")
    caller.send(body)
    assert (await caller.answer())[0] == 200


async def test_drain_lets_an_upload_end(wire: Wire) -> None:
    body = MODEL + FILE_HEAD + AUDIO + END
    caller = await uploading(wire, len(body))
    caller.send(body[:-100])
    await wire.upstream.until(lambda: bool(wire.upstream.received))
    drain = asyncio.create_task(wire.front.server.drain(10))
    await asyncio.sleep(0.2)
    assert not drain.done()
    caller.send(body[-100:])
    status, head, _ = await caller.answer()
    assert (status, b"connection: close" in head) == (200, True)
    await drain
    await wire.until_logged()
    assert wire.billed == REPORTED


async def test_uploads_that_end_in_any_way_leave_nothing_behind(wire: Wire) -> None:
    chance = random.Random(7)
    wire.upstream.default = script.answer_json(200, {"text": "heard"})
    sounds = [chance.randbytes(chance.randrange(1, 400_000)) for _ in range(60)]
    statuses: list[int] = []

    async def one(sound: bytes) -> None:
        model_first = chance.random() < 0.5
        ending = chance.choice(("whole", "whole", "leaves", "twice"))
        file = FILE_HEAD + sound + b"\r\n"
        body = (MODEL + file if model_first else file + MODEL) + (MODEL if ending == "twice" else b"")
        body = body[:-2] + END
        caller = await uploading(wire, len(body))
        length = len(body) if ending != "leaves" else chance.randrange(len(body) - 4)
        for start in range(0, length, 50_000):
            caller.send(body[start : min(start + 50_000, length)])
            await asyncio.sleep(0)
        if ending == "leaves":
            caller.disconnect()
        else:
            statuses.append((await caller.answer())[0])
            assert statuses[-1] == (400 if ending == "twice" else 200), ending

    for start in range(0, len(sounds), 10):
        await asyncio.gather(*map(one, sounds[start : start + 10]))
    assert statuses.count(200) > 10
    assert statuses.count(400) > 5
    await wire.until_logged(len(sounds))
    capacity = wire.rig.meters.capacity
    assert capacity is not None
    check_idle(capacity)
