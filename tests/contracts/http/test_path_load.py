"""One worker's path with many concurrent streams and with stalled readers: all are served, and memory is bounded."""

import asyncio
import gc
import resource
import tracemalloc
from collections.abc import Iterator

import pytest

from policy.hosts import EgressRules
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from tests import upstream as script
from tests.contracts.http.test_path import OPTIONS, SSE, USED, request
from tests.fakes.front import Caller, Front, listening
from tests.fakes.path import PathRig
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually, until_still

BOTH_LOOPS = True
STREAMS = 1000
STALLED = 40
MAX_STALLED_BYTES = 512 * 1024
"""Bytes of a stalled stream, in the upstream's reader, the answer's reader and the caller's transport together."""


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Each stream has four ends in this one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * STREAMS + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_one_worker_serves_a_thousand_concurrent_streams() -> None:
    """All streams are open and have their first piece before any of them continues."""
    go = asyncio.Event()
    frames = script.chat_frames("their-model", ("Hello", " there"), script.Usage())

    async def behave(exchange: script.Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, SSE) + script.chunked(*frames[:2], end=False))
        await go.wait()
        await exchange.send(script.chunked(*frames[2:]))

    rig = PathRig()
    async with ScriptedUpstream(default=behave) as upstream:
        rig.settings = DispatchSettings({"VENDOR_B": upstream.url})
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 30.0))
        rig.over(client)
        async with listening(rig.pipeline.handle, OPTIONS) as front:
            callers = await _open_streams(front)
            assert rig.pipeline._capacity.in_flight == upstream.open_connections == STREAMS
            go.set()
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*(caller.reader.readuntil(b"0\r\n\r\n") for caller in callers))
            assert all(b"data: [DONE]" in answer and b"their-model" not in answer for answer in answers)
            await eventually(lambda: len(rig.meters.calls) == STREAMS)
            rig.check_settled()
        await client.aclose()
    assert {closed.tokens for closed in rig.journal.closed} == {USED}
    assert {call.status for call in rig.meters.calls} == {200}


async def _open_streams(front: Front) -> list[Caller]:
    callers: list[Caller] = []
    for _ in range(STREAMS // 100):  # no more at once than the listener's backlog takes
        some = [await front.caller() for _ in range(100)]
        for caller in some:
            caller.send(request(stream=True))
        async with asyncio.timeout(60):
            await asyncio.gather(*(caller.reader.readuntil(b"Hello") for caller in some))
        callers += some
    return callers


async def test_stalled_readers_take_bounded_memory() -> None:
    frame = script.chunked(script.chat_frames("their-model", ("x" * 4000,), None)[1], end=False)
    sent_bytes = 0

    async def flood(exchange: script.Exchange) -> None:
        nonlocal sent_bytes
        await exchange.read_body()
        await exchange.send(script.head(200, SSE))
        while True:
            await exchange.send(frame)
            sent_bytes += len(frame)

    rig = PathRig()
    async with ScriptedUpstream(default=flood) as upstream:
        rig.settings = DispatchSettings({"VENDOR_B": upstream.url})
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 30.0))
        rig.over(client)
        async with listening(rig.pipeline.handle, OPTIONS) as front:
            gc.collect()
            tracemalloc.start()
            callers = [await front.caller(receive_buffer=4096) for _ in range(STALLED)]
            for caller in callers:
                caller.send(request(stream=True))
            await until_still(lambda: sent_bytes)  # upstream is blocked
            held_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            for caller in callers:
                caller.reset()
            await eventually(lambda: len(rig.meters.calls) == STALLED)
            rig.check_settled()
        await client.aclose()
    assert held_bytes < STALLED * MAX_STALLED_BYTES, f"{held_bytes // STALLED} bytes for each stalled reader"
    assert {closed.status for closed in rig.journal.closed} == {499}
    outputs = [closed.tokens.output for closed in rig.journal.closed]
    assert min(outputs) > 0
    assert sum(outputs) <= sent_bytes / 6 + STALLED, "at most a token per six letters that upstream sent"
