"""Large forms through the whole product: a worker's memory stays small, and no end of a process doubles a bill."""

import asyncio
import io
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import kill
from tests.upstream import Exchange, head, media

SIZE = 90_000_000
PIECE = b"sound" * 20_000
MAX_GROWTH = 16_000_000
BOUNDARY = "----boundary-of-the-journeys"


@pytest.fixture
def media_stage(stage: Stage) -> Stage:
    stage.upstream.default = media.answer_as_media_vendor
    return stage


@pytest.fixture
def killable_media_stage(killable_stage: Stage) -> Stage:
    killable_stage.upstream.default = media.answer_as_media_vendor
    return killable_stage


def part(name: str, value: bytes, filename: str = "") -> bytes:
    more = f'; filename="{filename}"' if filename else ""
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


async def post(stage: Stage, key: str, until: asyncio.Event) -> int:
    """Upload a small form whose end waits for `until`. Return the status."""
    form = [part("model", stage.slug.encode()), part("file", PIECE, "a.mp3"), f"--{BOUNDARY}--\r\n".encode()]

    async def arriving() -> AsyncIterator[bytes]:
        for piece in form[:-1]:
            yield piece
        await until.wait()
        yield form[-1]

    headers = {"Authorization": f"Bearer {key}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    headers["Content-Length"] = str(sum(map(len, form)))
    url = f"{stage.product.proxy}/v1/audio/transcriptions"
    async with stage.session.post(url, data=arriving(), headers=headers) as answer:
        await answer.read()
        return answer.status


async def discard(exchange: Exchange) -> None:
    """Read a request of known length without keeping it, and answer it."""
    remaining = int(exchange.received.header("content-length") or 0)
    while remaining:
        remaining -= len(await exchange.reader.read(min(remaining, 1 << 20)))
    body = json.dumps(media.BODIES["/audio/transcriptions"]).encode()
    await exchange.send(head(200, {"content-type": "application/json", "content-length": str(len(body))}) + body)


async def test_large_recording_takes_no_memory(media_stage: Stage) -> None:
    stage = media_stage
    stage.upstream.default = discard
    key = await stage.key_without_limits()
    async with stage.client(key) as client:
        await client.audio.transcriptions.create(model=stage.slug, file=("a.mp3", io.BytesIO(PIECE)))
        before = _reset_peaks(stage)
        recording = ("a.mp3", io.BytesIO(PIECE * (SIZE // len(PIECE))))
        answer = await client.audio.transcriptions.create(model=stage.slug, file=recording)
    assert answer.text == media.TEXT
    growth = {pid: _memory(pid, "VmHWM") - before[pid] for pid in before}
    assert max(growth.values()) < MAX_GROWTH, growth
    events = await stage.events_of(stage.name, 2)
    assert [(event["tokens"]["inputTokens"], event["tokens"]["outputTokens"]) for event in events] == [(14, 45)] * 2


def _reset_peaks(stage: Stage) -> dict[int, int]:
    """Let the peaks of the workers' memory begin anew. Return their memory now, in bytes, by pid."""
    workers = stage.product.processes("proxy.worker")
    for pid in workers:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return {pid: _memory(pid, "VmRSS") for pid in workers}


def _memory(pid: int, field: str) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


async def test_sigterm_waits_for_an_upload(killable_media_stage: Stage) -> None:
    stage = killable_media_stage
    key = await stage.key_without_limits()
    rest = asyncio.Event()
    call = asyncio.ensure_future(post(stage, key, rest))
    await stage.upstream.until(lambda: bool(stage.upstream.received))
    stage.product.up.send_signal(signal.SIGTERM)
    await stage.until(stage.refuses_connections, "new connections refused")
    rest.set()
    assert await call == 200
    assert await asyncio.to_thread(stage.product.ended, 30) == 0
    stage.product.start()
    (event,) = await stage.events_of(stage.name, 1)
    assert event["tokens"]["outputTokens"] == 45


async def test_worker_killed_in_an_upload_leaves_one_event_without_tokens(killable_media_stage: Stage) -> None:
    stage = killable_media_stage
    key = await stage.key_without_limits()
    call = asyncio.ensure_future(post(stage, key, asyncio.Event()))
    await stage.upstream.until(lambda: bool(stage.upstream.received))
    for pid in stage.product.processes("proxy.worker"):
        kill(pid)
    with pytest.raises(aiohttp.ClientError):
        await call
    await stage.upstream.until(lambda: not stage.upstream.open_connections)
    await stage.until(stage.all_parts_ready, "all processes run again")
    rest = asyncio.Event()
    rest.set()
    assert await post(stage, key, rest) == 200
    events = await stage.events_of(stage.name, 2)
    assert sorted(event["tokens"]["outputTokens"] for event in events) == [0, 45]
