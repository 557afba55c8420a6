"""A worker's process: what it holds of a result of 100 MB, and what becomes of a result when it is killed."""

import asyncio
import hashlib
import hmac
import signal
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.supervisor.dead_holders import DeadHolders
from runtime.background import running
from tests import upstream as script
from tests.contracts.async_delivery.delivery_world import PROCESS, SECRET, Place, Requests, delivering
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.redis_server import private_redis
from tests.upstream import Exchange, ScriptedUpstream
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
NAME = "hooks.example.com"
URL = f"https://{NAME}/in"
ANSWER_BYTES = 100_000_000
MAX_GROWTH_BYTES = 20_000_000


@dataclass
class World:
    """A receiver, requests, and where a worker finds both."""

    receiver: ScriptedUpstream
    requests: Requests
    place: Place


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    ca = ThrowawayCa(tmp_path)
    with private_redis() as server:
        client = QueueClient(server.url)
        async with ScriptedUpstream(tls=ca.server_context(NAME), default=script.answer(204)) as receiver:
            place = Place(server.url, f"{NAME}=127.0.0.1:{receiver.port}", str(ca.ca_file))
            yield World(receiver, Requests(client), place)
        await client.close()


@asynccontextmanager
async def process(place: Place) -> AsyncIterator[Process]:
    module = "tests.contracts.async_delivery.deliverer"
    arguments = (place.redis_url, place.links, place.ca_file)
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, cwd=ROOT, stdout=PIPE)
    try:
        assert child.stdout is not None
        assert await asyncio.wait_for(child.stdout.readline(), 60) == b"delivering\n"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@dataclass
class Verifier:
    """A receiver that keeps nothing of a body. `signatures`: those that it computed, as they should have come."""

    expected: list[str] = field(default_factory=list)
    size_bytes: int = 0

    async def __call__(self, exchange: Exchange) -> None:
        header = exchange.received.header
        digest = hmac.new(b64decode(SECRET.removeprefix("whsec_")), digestmod=hashlib.sha256)
        digest.update(f"{header('webhook-id')}.{header('webhook-timestamp')}.".encode())
        remaining = self.size_bytes = int(header("content-length") or 0)
        while remaining:
            piece = await exchange.reader.read(min(remaining, 1 << 20))
            digest.update(piece)
            remaining -= len(piece)
        self.expected.append(f"v1,{b64encode(digest.digest()).decode()}")
        await exchange.send(script.head(200, {"content-length": "0"}))


@pytest.mark.parametrize(
    "is_json", [pytest.param(True, id="JSON"), pytest.param(False, id="text", marks=pytest.mark.soak)]
)
async def test_a_result_of_100_mb_takes_no_memory(world: World, is_json: bool) -> None:
    verifier = Verifier()
    async with process(world.place) as worker:
        warm_up = await world.requests.ended(URL, b'"' + b"x" * 2_000_000 + b'"', is_json)
        await world.requests.until(warm_up, Status.SUCCEEDED)
        before = reset_peak(worker.pid)
        world.receiver.default = verifier
        id = await world.requests.ended(URL, b'"' + b"x" * (ANSWER_BYTES - 2) + b'"', is_json)
        await world.requests.until(id, Status.SUCCEEDED)
        growth = memory_bytes(worker.pid, "VmHWM") - before
    assert verifier.size_bytes > ANSWER_BYTES
    assert [world.receiver.received[-1].header("webhook-signature")] == verifier.expected
    assert growth < MAX_GROWTH_BYTES, f"{growth / 1e6:.1f} MB"


async def test_a_result_whose_worker_is_killed_is_told_by_another_with_the_same_id(world: World) -> None:
    hanging = asyncio.Event()
    world.receiver.plan(script.held(hanging))
    id = await world.requests.ended(URL)
    async with process(world.place) as worker:
        await eventually(lambda: world.receiver.received and world.receiver.received[0].body)
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    dead = DeadHolders(world.requests.client)
    dead.died(PROCESS)
    async with running(dead.run), delivering(world.place):
        state = await world.requests.until(id, Status.SUCCEEDED)
    first, second = world.receiver.received
    assert first.header("webhook-id") == second.header("webhook-id") == id == state.request_id
    assert first.body == second.body


def reset_peak(pid: int) -> int:
    """Let the peak of its memory begin anew. Returns its memory now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_bytes(pid, "VmRSS")


def memory_bytes(pid: int, field: str) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
