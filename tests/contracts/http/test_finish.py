"""The finish and the end of streams on the wire, for each dialect of callers and of targets.

Who leaves before the finish has not got it; what ends an answer is the dialect's own last event.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product

import pytest

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES, Target
from policy.hosts import EgressRules
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.upstream import connection as upstream_connection
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from proxy.stages import relay
from tests.contracts.http.test_oddities import MODEL_API, SPOKEN_PATHS, parsed
from tests.fakes.directory import KEY, SLUG
from tests.fakes.front import Caller, Front, listening
from tests.fakes.path import PathRig
from tests.upstream import Behaviour, Exchange, ScriptedUpstream, answer_json
from tests.upstream.behaviours import chunked, head
from tests.upstream.oddities.reading import PATHS, request_body, understood
from tests.upstream.oddities.row import CALLERS, Json, chat_text, chat_usage, frames, message_text, response_text
from tests.waiting import eventually

BOTH_LOOPS = True
NEVER_S = 600.0
SOON_S = 0.05
USED = Tokens(input=12, output=5, cached_input=0)
WORD = b"there"
STREAMS: dict[str, tuple[list[Json | str], int]] = {
    CHAT_COMPLETIONS: ([*chat_text("Hello", " there"), chat_usage(), "[DONE]"], -2),
    MESSAGES: ([*message_text("Hello", " there")], -2),
    RESPONSES: ([*response_text("Hello", " there")], -1),
}
"""The events of a stream by dialect, and where the usage comes: those before it are sent first."""
FINISHES = {
    CHAT_COMPLETIONS: b'"finish_reason":"',
    MESSAGES: b"message_delta",
    RESPONSES: b"response.output_text.done",
}
"""Bytes that mark the finish of a stream, by the caller's dialect."""
PAIRS = [pytest.param(*pair, id=f"{pair[0]} from {pair[1]}") for pair in product(CALLERS, STREAMS)]


@dataclass
class Wire:
    rig: PathRig
    front: Front
    upstream: ScriptedUpstream
    spoken: str

    async def call(self, caller_dialect: str) -> Caller:
        caller = await self.front.caller()
        caller.send(request(caller_dialect))
        return caller

    async def until_logged(self, count: int = 1) -> None:
        await eventually(lambda: len(self.rig.meters.calls) == count)
        self.rig.check_settled()

    @property
    def logged(self) -> tuple[int, Tokens]:
        closed = self.rig.journal.closed[-1]
        return closed.status, closed.tokens


def request(caller_dialect: str) -> bytes:
    body = frames_json(request_body(caller_dialect, SLUG, stream=True))
    head = f"POST {PATHS[caller_dialect]} HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def frames_json(value: Json) -> bytes:
    return frames(value).partition(b"data: ")[2].strip()


def pausing(target_dialect: str, pause: asyncio.Event, then: str = "end", before: int | None = None) -> Behaviour:
    """The stream of a dialect, which pauses before its usage, or this event, until the test sets `pause`."""
    events, usage_at = STREAMS[target_dialect]
    usage_at = usage_at if before is None else before

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        if not exchange.received.path.endswith(SPOKEN_PATHS[target_dialect]):
            await answer_json(404, {"detail": "Not Found"})(exchange)
            return
        await exchange.send(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        for event in events[:usage_at]:
            await exchange.send(chunked(frames(event), end=False))
        await pause.wait()
        await exchange.send(chunked(frames(*events[usage_at:]), end=False))
        if then == "end":
            await exchange.send(chunked())
        elif then == "stay":
            await exchange.client_closed()
            exchange.keep = False

    return behave


@asynccontextmanager
async def wired(target_dialect: str, behaviour: Behaviour) -> AsyncIterator[Wire]:
    rig = PathRig()
    async with ScriptedUpstream(default=behaviour) as upstream:
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 5.0, None))
        provider = "VENDOR_A" if target_dialect == MESSAGES else MODEL_API
        rig.directory.add_slug(SLUG, Target(provider, secret_id="s1", target_model="their-model"))
        rig.directory.secrets["s1"] = "sk-upstream-secret"
        rig.settings = DispatchSettings({"VENDOR_A": upstream.url, MODEL_API: upstream.url})
        rig.over(client)
        async with listening(rig.pipeline.handle, HttpLimits(watch_interval_s=SOON_S)) as front:
            yield Wire(rig, front, upstream, target_dialect)
        await client.aclose()


@pytest.mark.parametrize(("caller_dialect", "target_dialect"), PAIRS)
async def test_caller_who_leaves_at_the_finish_has_not_got_it(
    monkeypatch: pytest.MonkeyPatch, caller_dialect: str, target_dialect: str
) -> None:
    monkeypatch.setattr(relay, "HELD_S", NEVER_S)
    pause = asyncio.Event()
    async with wired(target_dialect, pausing(target_dialect, pause)) as wire:
        caller = await wire.call(caller_dialect)
        received = await caller.until(WORD) + await until_silent(caller)
        caller.disconnect()
        await wire.until_logged()
        assert wire.logged[0] == 499
        assert wire.logged[1].output == 2, "the text that was delivered"
        assert FINISHES[caller_dialect] not in received


async def until_silent(caller: Caller) -> bytes:
    """All that comes until nothing has come for a while."""
    received = b""
    while True:
        try:
            async with asyncio.timeout(0.1):
                received += await caller.reader.read(65_536)
        except TimeoutError:
            return received


@pytest.mark.parametrize("target_dialect", [CHAT_COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("caller_dialect", CALLERS)
async def test_caller_who_leaves_after_the_usage_pays_all_of_it(
    monkeypatch: pytest.MonkeyPatch, caller_dialect: str, target_dialect: str
) -> None:
    monkeypatch.setattr(relay, "HELD_S", NEVER_S)
    async with wired(target_dialect, pausing(target_dialect, asyncio.Event(), before=-1)) as wire:
        caller = await wire.call(caller_dialect)
        received = await caller.until(WORD) + await until_silent(caller)
        assert caller_dialect != target_dialect or FINISHES[caller_dialect] in received
        caller.disconnect()
        await wire.until_logged()
        assert wire.logged == (499, USED)


@pytest.mark.parametrize(("caller_dialect", "target_dialect"), PAIRS)
async def test_finish_leaves_when_the_upstream_falls_silent_before_the_usage(
    monkeypatch: pytest.MonkeyPatch, caller_dialect: str, target_dialect: str
) -> None:
    monkeypatch.setattr(relay, "HELD_S", SOON_S)
    pause = asyncio.Event()
    async with wired(target_dialect, pausing(target_dialect, pause)) as wire:
        caller = await wire.call(caller_dialect)
        received = (
            await caller.until(FINISHES[caller_dialect])
            if leaves_without_usage(caller_dialect, target_dialect)
            else b""
        )
        pause.set()
        received += await caller.until(b"\r\n0\r\n\r\n")
        await wire.until_logged()
        assert wire.logged == (200, USED)
        understanding = understood(caller_dialect, "text/event-stream", parsed(received).body)
        assert (understanding.text, understanding.ended) == ("Hello there", "complete")


def leaves_without_usage(caller_dialect: str, target_dialect: str) -> bool:
    """Return whether the target has sent the caller's finish when it pauses."""
    return target_dialect == CHAT_COMPLETIONS or caller_dialect == target_dialect == RESPONSES


@pytest.mark.parametrize(("caller_dialect", "target_dialect"), PAIRS)
async def test_last_bytes_do_not_wait_for_the_end_of_the_upstream(caller_dialect: str, target_dialect: str) -> None:
    pause = asyncio.Event()
    pause.set()
    async with wired(target_dialect, pausing(target_dialect, pause, then="stay")) as wire:
        caller = await wire.call(caller_dialect)
        for _ in range(2):  # the caller's connection goes on
            answer = await caller.until(b"\r\n0\r\n\r\n")
            assert understood(caller_dialect, "text/event-stream", parsed(answer).body).ended == "complete"
            caller.send(request(caller_dialect))
        await caller.until(b"\r\n0\r\n\r\n")
        await wire.until_logged(3)
        assert wire.logged == (200, USED)
        await wire.upstream.until(lambda: wire.upstream.open_connections == 0)


@pytest.mark.parametrize("target_dialect", STREAMS)
async def test_connection_whose_end_follows_soon_carries_the_next_call(
    monkeypatch: pytest.MonkeyPatch, target_dialect: str
) -> None:
    monkeypatch.setattr(upstream_connection, "END_WAIT_S", NEVER_S)
    ends = asyncio.Event()
    events, _ = STREAMS[target_dialect]

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        await exchange.send(chunked(frames(*events), end=False))
        await ends.wait()
        await exchange.send(chunked(b": the end\n\n"))

    async with wired(target_dialect, behave) as wire:
        caller = await wire.call(target_dialect)
        await caller.until(b"\r\n0\r\n\r\n")
        ends.set()

        async def is_used_again() -> bool:
            caller.send(request(target_dialect))
            await caller.until(b"\r\n0\r\n\r\n")
            carriers = [received.connection for received in wire.upstream.received]
            return len(set(carriers)) < len(carriers)

        await eventually(is_used_again)


@pytest.mark.parametrize("target_dialect", STREAMS)
async def test_connection_that_goes_on_after_the_last_event_is_closed(
    monkeypatch: pytest.MonkeyPatch, target_dialect: str
) -> None:
    monkeypatch.setattr(upstream_connection, "END_WAIT_S", SOON_S)
    events, _ = STREAMS[target_dialect]

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        await exchange.send(chunked(frames(*events), end=False))
        while True:
            await exchange.send(chunked(b": still there\n\n" * 100, end=False))

    async with wired(target_dialect, behave) as wire:
        caller = await wire.call(target_dialect)
        await caller.until(b"\r\n0\r\n\r\n")
        await wire.until_logged()
        await wire.upstream.until(lambda: wire.upstream.open_connections == 0)
        assert wire.logged == (200, USED)
