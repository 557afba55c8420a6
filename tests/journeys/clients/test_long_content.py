"""Hostile content on the whole product: it costs a worker little more than plain text of the same size."""

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from control.demo.upstream import USAGE
from tests.journeys.conftest import Stage

SIZE_BYTES = 20_000_000
TIMES = 5
HOSTILE = {
    "an escaped key, then line feeds": (rb'"\u006dodel_":"x",', rb"\n"),
    "an escaped key, then quotes": (rb'"\u006dodel_":"x",', rb"\""),
    "letters spelled out": (b"", rb"\u0061"),
    "backslashes": (b"", rb"\\"),
}


@pytest.fixture
async def roomy_upstream() -> AsyncIterator[str]:
    """A model server that takes bodies of any size and looks at none."""

    async def answer(request: web.Request) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        message = {"role": "assistant", "content": "Read."}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return web.json_response({"object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_body_costs_a_worker_little_more_than_a_plain_one(
    stage: Stage, roomy_upstream: str, name: str
) -> None:
    stage.upstream.url = roomy_upstream
    key = await stage.key_without_limits()
    members, unit = HOSTILE[name]
    plain = await _cpu_s_of(stage, key, b"", b"All is well. ")
    hostile = await _cpu_s_of(stage, key, members, unit)
    assert hostile < TIMES * plain


async def _cpu_s_of(stage: Stage, key: str, members: bytes, unit: bytes) -> float:
    """What the workers spend on one call with a body of `unit` again and again."""
    text = unit * (SIZE_BYTES // len(unit))
    model = stage.slug.encode()
    body = b'{%b"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (members, model, text)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    before_s = _workers_cpu_s(stage)
    url = stage.product.proxy + "/v1/chat/completions"
    async with stage.session.post(url, data=io.BytesIO(body), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    return _workers_cpu_s(stage) - before_s


def _workers_cpu_s(stage: Stage) -> float:
    """User and system time of all workers (proc(5), fields 14 and 15)."""
    ticks = 0
    for pid in stage.product.processes("proxy.worker"):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
