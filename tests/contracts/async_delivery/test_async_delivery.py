"""Results reach receivers over TLS, signed, at least once, whatever a receiver or a worker does."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import orjson
import pytest
from standardwebhooks import Webhook

from policy.hosts import Address
from proxy.async_requests.states import Status, WebhookStatus
from proxy.async_worker.webhook_teller import TellerTimeouts
from proxy.edges.redis.async_queue import scripts
from proxy.edges.redis.async_queue.client import QueueClient
from tests import upstream as script
from tests.contracts.async_delivery.delivery_world import (
    CHUNK_BYTES,
    SECRET,
    SHORT_LEASE_S,
    WS,
    Place,
    Requests,
    delivering,
    tries,
)
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.redis_server import RedisServer, private_redis
from tests.upstream import Exchange, Received, ScriptedUpstream
from tests.waiting import eventually

BOTH_LOOPS = True
NAME = "hooks.example.com"
OTHER = "other.example.com"
URL = f"https://{NAME}/in"
OTHER_URL = f"https://{OTHER}/in"
OK = script.answer(204)
SHORT = TellerTimeouts(head_s=0.5, progress_s=0.5, whole_s=20)
LARGE = b'"' + b"x" * 3_000_000 + b'"'


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with private_redis() as instance:
        yield instance


@dataclass
class World:
    """A receiver, the requests that are told to it, and where a worker finds both."""

    receiver: ScriptedUpstream
    requests: Requests
    place: Place

    def told(self, id: str) -> list[Received]:
        return [one for one in self.receiver.received if one.header("webhook-id") == id]


@pytest.fixture
async def world(ca: ThrowawayCa, server: RedisServer) -> AsyncIterator[World]:
    client = QueueClient(server.url)
    await client.commands.call("", lambda redis: redis.flushall())
    async with ScriptedUpstream(tls=ca.server_context(NAME), default=OK) as receiver:
        place = Place(server.url, f"{NAME}=127.0.0.1:{receiver.port}", str(ca.ca_file))
        yield World(receiver, Requests(client), place)
    await client.close()


async def test_a_result_is_delivered_signed(world: World) -> None:
    id = await world.requests.ended(URL, b'{"score": 0.90}')
    async with delivering(world.place) as worker:
        state = await world.requests.until(id, Status.SUCCEEDED)
    assert state.webhook_status is WebhookStatus.SUCCEEDED
    (received,) = world.receiver.received
    assert (received.method, received.target, received.header("host")) == ("POST", "/in", NAME)
    body = Webhook(SECRET).verify(received.body, dict(received.headers))
    assert (body["request_id"], body["type"], body["data"], body["errors"]) == (
        id,
        "async_request_completed",
        {"score": 0.9},
        [],
    )
    assert b'"data":{"score": 0.90},' in received.body
    assert tries(worker.counts) == {"delivered": 1}


@pytest.mark.parametrize(("size", "is_json"), [(3_000_000, True), (3_000_000, False), (CHUNK_BYTES, True)])
async def test_a_result_of_many_chunks_arrives_whole(world: World, size: int, is_json: bool) -> None:
    text = "ä\n" * (size // 3)
    id = await world.requests.ended(URL, orjson.dumps(text) if is_json else text.encode(), is_json)
    async with delivering(world.place):
        await world.requests.until(id, Status.SUCCEEDED)
    (received,) = world.told(id)
    assert Webhook(SECRET).verify(received.body, dict(received.headers))["data"] == text


REFUSALS = {
    "500": script.answer(500),
    "404": script.answer(404, b"secret words"),
    "redirect": script.answer(307, headers={"location": "/elsewhere"}),
    "reset": script.raw(then="reset"),
    "closed": script.raw(then="close"),
    "not HTTP": script.raw(b"SSH-2.0-OpenSSH\r\n\r\n"),
    "silent": script.silent(),
    "half a head": script.silent(b"HTTP/1.1 200 OK\r\n"),
    "early refusal": script.early(script.head(413, {"content-length": "0"}), then="close"),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("answer", [b"1", LARGE], ids=["small", "large"])
async def test_a_refused_result_is_repeated_with_the_same_id_and_bytes(world: World, name: str, answer: bytes) -> None:
    world.receiver.plan(REFUSALS[name], REFUSALS[name])
    id = await world.requests.ended(URL, answer)
    async with delivering(world.place, SHORT) as worker:
        await world.requests.until(id, Status.SUCCEEDED)
    messages = world.told(id)
    assert len(messages) == len(world.receiver.received) == 3
    assert len({one.body for one in messages if one.body}) == 1
    Webhook(SECRET).verify(messages[-1].body, dict(messages[-1].headers))
    assert tries(worker.counts) == {"failed": 2, "delivered": 1}
    assert not any(word in trouble for trouble in worker.troubles for word in ("127.0.0.1", NAME, "secret"))


ACCEPTANCES = {
    "HTTP/1.0": script.raw(b"HTTP/1.0 200 OK\r\n\r\nthanks", then="close"),
    "endless answer": script.endless(script.head(200), b"x" * 1000),
    "huge announced": script.raw(script.head(200, {"content-length": "999999999"}) + b"x" * 100_000),
    "interim first": script.raw(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    "cut after its head": script.raw(script.head(200, {"content-length": "10"}) + b"x", then="reset"),
    "silent after its head": script.silent(script.head(200, {"content-length": "10"})),
    "before the body is read": script.early(script.head(202, {"content-length": "0"})),
}


@pytest.mark.parametrize("name", ACCEPTANCES)
@pytest.mark.parametrize("answer", [b"1", LARGE], ids=["small", "large"])
async def test_any_2xx_accepts_a_result(world: World, name: str, answer: bytes) -> None:
    world.receiver.plan(ACCEPTANCES[name])
    id = await world.requests.ended(URL, answer)
    async with delivering(world.place) as worker:
        await world.requests.until(id, Status.SUCCEEDED)
    assert len(world.told(id)) == 1
    assert tries(worker.counts) == {"delivered": 1}


async def test_a_receiver_that_reads_slowly_but_steadily_is_waited_for(world: World) -> None:
    async def read_slowly(exchange: Exchange) -> None:
        remaining = int(exchange.received.header("content-length") or 0)
        while remaining:
            remaining -= len(await exchange.reader.readexactly(min(remaining, 1 << 20)))
            await asyncio.sleep(0.2)
        await exchange.send(script.head(200, {"content-length": "0"}))

    world.receiver.plan(read_slowly)
    id = await world.requests.ended(URL, b'"' + b"x" * 30_000_000 + b'"')
    async with delivering(world.place, TellerTimeouts(head_s=5, progress_s=60, whole_s=600)) as worker:
        await world.requests.until(id, Status.SUCCEEDED)
    assert worker.troubles == []
    assert len(world.told(id)) == 1


async def test_a_receiver_that_stops_reading_is_given_up(world: World) -> None:
    stuck = asyncio.Event()

    async def stop_reading(exchange: Exchange) -> None:
        await exchange.reader.read(1000)
        await stuck.wait()

    world.receiver.plan(stop_reading)
    id = await world.requests.ended(URL, b'"' + b"x" * 30_000_000 + b'"')
    async with delivering(world.place, SHORT) as worker:
        await world.requests.until(id, Status.SUCCEEDED)
        stuck.set()
    assert worker.troubles == ["the receiver did not answer in time"]


async def test_given_up_after_the_last_try(world: World) -> None:
    world.receiver.default = script.answer(503)
    id = await world.requests.ended(URL)
    async with delivering(world.place, again_in_ms=lambda one: 20 if one.attempt < 5 else None) as worker:
        state = await world.requests.until(id, Status.WEBHOOK_FAILED)
    assert state.webhook_status is WebhookStatus.FAILED
    assert [one.header("webhook-id") for one in world.receiver.received] == [id] * 5
    assert tries(worker.counts) == {"failed": 4, "given_up": 1}
    assert "127.0.0.1" not in repr(state)


async def test_a_receiver_that_hangs_delays_no_other_workspace(world: World) -> None:
    async def behave(exchange: Exchange) -> None:
        result = orjson.loads(await exchange.read_body())
        if result["data"] == "hang":
            await exchange.client_closed()
        else:
            await exchange.send(script.head(204))

    world.receiver.default = behave
    hanging = [await world.requests.ended(URL, b'"hang"') for _ in range(100)]
    fine = []
    async with delivering(world.place, workspaces=(WS, "ws_2")):
        await eventually(lambda: len(world.receiver.received) > 5)
        fine = [await world.requests.ended(URL, b"1", workspace_id="ws_2") for _ in range(30)]
        for id in fine:
            await world.requests.until(id, Status.SUCCEEDED, "ws_2")
        assert (await world.requests.state(hanging[0])).status is Status.IN_PROGRESS
    started_ids = {one.header("webhook-id") for one in world.receiver.received} - set(fine)
    assert 5 < len(started_ids) < 64


# --- where nothing may go --------------------------------------------------------------------------------------------


class Names:
    """A name server whose answers change: each look-up of a name gets the next ones."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.lookups = 0

    async def __call__(self, host: str) -> tuple[Address, ...]:
        self.lookups += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not addresses:
            raise OSError("no such name")
        return tuple(ip_address(one) for one in addresses)


FORBIDDEN = [
    ("127.0.0.1",),
    ("8.8.8.8", "10.0.0.1"),
    ("169.254.169.254",),
    ("192.168.1.1",),
    ("::1",),
    ("fe80::1",),
    ("::ffff:127.0.0.1",),
    ("fd00::1",),
    ("100.64.0.1",),
]


@pytest.mark.parametrize("addresses", FORBIDDEN, ids=" ".join)
async def test_a_name_that_resolves_to_a_forbidden_address_is_not_dialled(
    world: World, addresses: Sequence[str]
) -> None:
    id = await world.requests.ended(OTHER_URL)
    place = Place(world.place.redis_url, "", world.place.ca_file, Names(addresses))
    async with delivering(place, again_in_ms=lambda one: None) as worker:
        state = await world.requests.until(id, Status.WEBHOOK_FAILED)
    assert world.receiver.connections == 0
    assert worker.troubles == ["the upstream's address may not be dialled"]
    assert not any(address in repr(state) + "".join(worker.troubles) for address in addresses)


async def test_a_name_is_judged_again_at_each_try(world: World) -> None:
    """The name does not exist at first, as when the request was accepted; then it points to this machine."""
    names = Names((), ("127.0.0.1",))
    id = await world.requests.ended(OTHER_URL)
    place = Place(world.place.redis_url, "", world.place.ca_file, names)
    async with delivering(place, again_in_ms=lambda one: 10 if one.attempt < 3 else None) as worker:
        await world.requests.until(id, Status.WEBHOOK_FAILED)
    assert names.lookups == 3
    refusal = "the upstream's address may not be dialled"
    assert worker.troubles == ["the upstream's name does not resolve", refusal, refusal]
    assert world.receiver.connections == 0


async def test_a_certificate_of_an_untrusted_authority_is_refused(world: World, tmp_path: Path) -> None:
    id = await world.requests.ended(URL)
    place = Place(world.place.redis_url, world.place.links, str(ThrowawayCa(tmp_path).ca_file))
    async with delivering(place, again_in_ms=lambda one: None) as worker:
        await world.requests.until(id, Status.WEBHOOK_FAILED)
    assert worker.troubles == ["the TLS handshake failed"]
    assert world.receiver.received == []


async def test_a_certificate_for_another_name_is_refused(world: World) -> None:
    id = await world.requests.ended(OTHER_URL)
    links = f"{OTHER}=127.0.0.1:{world.receiver.port}"
    place = Place(world.place.redis_url, links, world.place.ca_file)
    async with delivering(place, again_in_ms=lambda one: None) as worker:
        await world.requests.until(id, Status.WEBHOOK_FAILED)
    assert worker.troubles == ["the TLS handshake failed"]
    assert world.receiver.received == []


# --- several workers, crashes ----------------------------------------------------------------------------------------


async def test_a_slow_delivery_keeps_its_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker looks for what it could take over all the time."""
    monkeypatch.setattr(scripts, "LEASE_S", SHORT_LEASE_S)
    slow = asyncio.Event()
    world.receiver.default = script.held(slow, after=script.head(204))
    id = await world.requests.ended(URL)
    async with delivering(world.place), delivering(world.place):
        await eventually(lambda: world.told(id))
        await asyncio.sleep(SHORT_LEASE_S + 3)
        slow.set()
        await world.requests.until(id, Status.SUCCEEDED)
    assert len(world.told(id)) == 1


async def test_several_workers_tell_each_result_once(world: World) -> None:
    ids = [await world.requests.ended(URL, b"1") for _ in range(100)]
    async with delivering(world.place), delivering(world.place), delivering(world.place):
        for id in ids:
            await world.requests.until(id, Status.SUCCEEDED)
    assert sorted(one.header("webhook-id") or "" for one in world.receiver.received) == sorted(ids)


async def test_a_result_is_recorded_after_redis_stood_still(world: World, server: RedisServer) -> None:
    async def pause(exchange: Exchange) -> None:
        await exchange.read_body()
        server.pause()
        await exchange.send(script.head(204))

    world.receiver.plan(pause)
    id = await world.requests.ended(URL)
    async with delivering(world.place) as worker:
        try:
            await eventually(lambda: world.told(id) and world.told(id)[0].body)
            await asyncio.sleep(1)
        finally:
            server.resume()
        await world.requests.until(id, Status.SUCCEEDED)
    assert len(world.told(id)) == 1
    assert tries(worker.counts) == {"delivered": 1}
