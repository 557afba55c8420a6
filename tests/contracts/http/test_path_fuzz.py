"""Mutated bytes on both sides of the path: no internal error, no hang, no leak, and the next caller is served."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.hosts import EgressRules
from proxy.edges.http.http_limits import ExchangeLimits, HttpLimits
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from tests import upstream as script
from tests.contracts.http.test_path import request
from tests.fakes.directory import KEY
from tests.fakes.front import Caller, Front, listening
from tests.fakes.path import PathRig
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

SHORT_TIMEOUTS = HttpLimits(
    lingering_s=0.05, head_timeout_s=0.1, watch_interval_s=0.02, exchange=ExchangeLimits(body_idle_s=0.1)
)
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SEEDS = (
    request(),
    request(stream=True),
    request() * 3,
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: k\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
)
SNIPPETS = st.sampled_from(
    [
        b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"\t", b"chunked", b"Transfer-Encoding: chunked\r\n", b"\xff",
        b"Content-Length: 0\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"0\r\n\r\n",
        b"HTTP/1.0", b"{", b'"model":1,', b"[" * 2000, b"\\ud800", b"x-request-metadata: {\r\n", b"%00", b"-1",
        b"9" * 30,
    ]
)  # fmt: skip
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), SNIPPETS | st.binary(max_size=20)), max_size=6)

ANSWERS = (
    script.head(200, {"content-type": "application/json", "content-length": "21"}) + b'{"model":"a","usage":',
    script.head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    + script.chunked(*script.chat_frames("their-model", ("a",), script.Usage())),
    script.head(404, {"content-length": "5"}) + b"nope!",
    script.head(200, {"content-type": "application/json"})
    + json.dumps(script.chat_body("their-model", ("a",), script.Usage())).encode(),
    b"HTTP/1.1 103 Early\r\n\r\n" + script.head(529),
)


TERMINATOR = b"\0\0\r\n\r\n"
"""Malformed bytes that end the connection if the message left the parser between two requests."""


def mutated(seed: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """`seed` with the edits applied; each is a relative offset, a count of bytes to remove, and bytes to insert."""
    for where, cut, insertion in edits:
        at = int(where * len(seed))
        seed = seed[:at] + insertion + seed[at + cut :]
    return seed


async def assert_next_call_is_served(rig: PathRig, front: Front) -> None:
    """The next caller gets an answer, and the capacity of the last one is released."""
    caller = await front.caller()
    caller.send(request())
    assert (await caller.answer())[0] == 200
    caller.disconnect()
    await eventually(lambda: rig.pipeline._capacity.in_flight == 0)
    await eventually(lambda: rig.meters.level == 0)
    rig.check_settled()
    assert rig.pipeline._capacity.held_bytes == 0
    assert not [record for record in rig.meters.calls if record.cause == "bug"]


async def wired(attack: Callable[[PathRig, Front, ScriptedUpstream], Awaitable[None]]) -> None:
    rig = PathRig()
    async with ScriptedUpstream() as upstream:
        rig.settings = DispatchSettings({"VENDOR_B": upstream.url})
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 30.0))
        rig.over(client)
        async with listening(rig.pipeline.handle, SHORT_TIMEOUTS) as front:
            await attack(rig, front, upstream)
            await assert_next_call_is_served(rig, front)
        await client.aclose()


async def read_until_silent(caller: Caller) -> bytes:
    """Read until the connection ends, or is silent for longer than every timeout of this file."""
    raw = b""
    try:
        while piece := await asyncio.wait_for(caller.reader.read(65_536), 0.7):
            raw += piece
    except (TimeoutError, ConnectionError):
        pass
    return raw


@FUZZ
@given(st.sampled_from(SEEDS), EDITS, st.integers(1, 400))
def test_mutated_requests_cause_no_bug_and_no_leak(
    seed: bytes, edits: list[tuple[float, int, bytes]], cut: int
) -> None:
    message = mutated(seed, edits)

    async def attack(rig: PathRig, front: Front, upstream: ScriptedUpstream) -> None:
        caller = await front.caller()
        for start in range(0, len(message), cut):
            caller.send(message[start : start + cut])
            if start < 4 * cut:
                await asyncio.sleep(0)
        caller.send(TERMINATOR)
        raw = await read_until_silent(caller)
        assert b"HTTP/1.1 500" not in raw
        assert b"Internal gateway error" not in raw

    uvloop.run(wired(attack))


@FUZZ
@given(st.sampled_from(ANSWERS), EDITS, st.booleans(), st.sampled_from(["close", "reset"]))
def test_mutated_upstream_answers_cause_no_bug_and_no_leak(
    seed: bytes, edits: list[tuple[float, int, bytes]], stream: bool, then: str
) -> None:
    message = mutated(seed, edits)

    async def attack(rig: PathRig, front: Front, upstream: ScriptedUpstream) -> None:
        upstream.plan(script.raw(message, then=then))
        caller = await front.caller()
        caller.send(request(stream=stream).replace(b"Host: us", b"Host: us\r\nConnection: close"))
        raw = await caller.read_to_end()
        assert raw.startswith(b"HTTP/1.1 "), "every mutated answer leads to an answer"
        assert b"Internal gateway error" not in raw
        # Wait for upstream to close a kept connection: a call sent on it meanwhile would fail.
        await upstream.until(lambda: upstream.open_connections == 0)
        await asyncio.sleep(0.01)

    uvloop.run(wired(attack))
