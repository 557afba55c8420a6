"""One try to tell a webhook: what is sent and signed, what counts as accepted, what is said of troubles."""

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from standardwebhooks import Webhook

from policy.hosts import EgressRules, Reach
from policy.sealing import seal
from policy.snapshot import SigningSecrets, WorkspaceRow
from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Delivery
from proxy.async_worker import webhook_teller
from proxy.async_worker.delivery import AnswerLostError
from proxy.async_worker.webhook_teller import SMALL_BYTES, TellerParts, TellerTimeouts, WebhookTeller
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from proxy.records.messages import UpstreamCall
from runtime.exhaustion import NoLocalPortError
from tests.fakes.directory import FakeDirectory
from tests.fakes.upstream_client import FakeAnswer, FakeUpstream, answer
from tests.proxy.async_worker.deliveries import ENDED_MS, URL, delivery, with_answer

KEYS = (b"k" * 32,)
NEW = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
OLD = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="


class Chunks:
    """Stored answers. `gaps`: numbers of chunks that are gone, from the so manieth read on."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.reads = 0
        self.gaps: set[int] = set()
        self.gaps_from_read = 0
        self.unavailable = False

    async def chunk(self, delivery: Delivery, number: int) -> bytes | None:
        self.reads += 1
        await asyncio.sleep(0)
        if self.unavailable:
            raise QueueUnavailableError
        return None if number in self.gaps and self.reads > self.gaps_from_read else self.stored[number]


class World:
    """A teller, its receiver, and a workspace with a secret."""

    def __init__(self) -> None:
        self.chunks = Chunks()
        self.directory = FakeDirectory()
        self.upstream = FakeUpstream()
        self.now_ms = int(datetime.now(UTC).timestamp() * 1000)
        self.timeouts = TellerTimeouts()
        self.shortages: list[Exception] = []
        self.sign(SigningSecrets(self.sealed(NEW)))

    def sealed(self, secret: str, keys: Sequence[bytes] = KEYS) -> str:
        return seal(keys, "ws_1", secret, b"n" * 12)

    def sign(self, secrets: SigningSecrets | None) -> None:
        self.directory.workspaces["ws_1"] = WorkspaceRow("ws_1", "active", "basic", True, None, secrets)

    def delivery(self, *chunks: bytes, is_json: bool = True) -> Delivery:
        self.chunks.stored = list(chunks)
        return with_answer(delivery(), *chunks, is_json=is_json)

    async def tell(self, one: Delivery, *answers: FakeAnswer | Exception) -> str:
        self.upstream.will(*(answers or (answer(status=204),)))
        parts = TellerParts(
            chunks=self.chunks,
            directory=self.directory,
            upstream=self.upstream,
            egress=EgressRules(),
            keys=KEYS,
            wall_ms=lambda: self.now_ms,
            timeouts=self.timeouts,
            on_exhausted=self.shortages.append,
        )
        return await WebhookTeller(parts).tell(one)

    @property
    def call(self) -> UpstreamCall:
        return self.upstream.calls[-1]

    @property
    def body(self) -> bytes:
        """Return the body that the receiver got."""
        assert isinstance(self.call.body, bytes)
        return self.upstream.uploaded[-1] if self.call.upload is not None else self.call.body

    def verified(self, secret: str = NEW) -> Any:
        return Webhook(secret).verify(self.body, dict(self.call.headers))


async def test_a_result_is_told_as_documented() -> None:
    world = World()
    assert await world.tell(world.delivery(b'{"text": "fl\xc3\xa4chig",  "n": 1.50}')) == ""
    assert world.body == (
        b'{"request_id":"req_1","model_id":"mdl_1","deployment_id":"dep_1","type":"async_request_completed",'
        b'"time":"2026-11-18T11:06:40.000Z","data":{"text": "fl\xc3\xa4chig",  "n": 1.50},"errors":[]}'
    )
    assert (world.call.url, world.call.method, world.call.reach) == (URL, "POST", Reach.CUSTOMER)
    headers = dict(world.call.headers)
    assert headers.pop("webhook-signature").startswith("v1,")
    assert headers == {
        "content-type": "application/json",
        "user-agent": "Tollgate-Webhooks/1",
        "webhook-id": "req_1",
        "webhook-timestamp": str(world.now_ms // 1000),
    }
    assert world.verified()["data"]["n"] == 1.5


async def test_a_failure_is_told_with_null_and_its_error() -> None:
    world = World()
    assert await world.tell(delivery()) == ""
    body = world.verified()
    assert (body["data"], body["errors"]) == (
        None,
        [{"code": "MODEL_PREDICT_ERROR", "message": "The model answered 500: no"}],
    )


async def test_result_waits_for_a_first_secret_that_only_control_knows_yet() -> None:
    world = World()
    world.sign(None)
    signed = WorkspaceRow("ws_1", "active", "basic", True, None, SigningSecrets(world.sealed(NEW)))
    world.directory.workspaces_on_confirmation = {"ws_1": signed}
    assert await world.tell(world.delivery(b"1")) == ""
    assert world.verified()["data"] == 1


@pytest.mark.parametrize("control", ["silent", "away"])
async def test_result_is_told_unsigned_when_control_does_not_say_whether_there_is_a_secret(
    control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_teller, "FIRST_SECRET_S", 0.01)
    world = World()
    world.sign(None)
    world.directory.unconfirmable = control == "away"
    world.directory.confirms = asyncio.Event()
    assert await world.tell(world.delivery(b"1")) == ""
    assert "webhook-signature" not in dict(world.call.headers)


@pytest.mark.parametrize(
    "shortage",
    [
        OSError(errno.EMFILE, "x"),
        OSError(errno.ENOBUFS, "x"),
        NoLocalPortError(errno.EADDRNOTAVAIL, "x"),
        RuntimeError("can't start new thread"),
    ],
)
async def test_shortage_of_this_machine_is_named_and_no_bug(shortage: Exception) -> None:
    world = World()
    trouble = await world.tell(world.delivery(b"1"), shortage)
    assert trouble == "this machine has run out of file descriptors, memory, threads or local ports"
    assert world.shortages == [shortage]


async def test_text_is_told_as_a_string() -> None:
    world = World()
    text = 'a "line"\n' + "ä€😀" * 100
    raw = text.encode()
    assert await world.tell(world.delivery(raw[:11], raw[11:15], raw[15:], is_json=False)) == ""
    assert world.verified()["data"] == text


@pytest.mark.parametrize("size_bytes", [SMALL_BYTES - 1000, SMALL_BYTES, 3 * SMALL_BYTES])
async def test_a_large_result_is_sent_as_it_is_read(size_bytes: int) -> None:
    world = World()
    raw = orjson.dumps("x" * (size_bytes - 2))
    chunks = [raw[at : at + 100_000] for at in range(0, size_bytes, 100_000)]
    assert await world.tell(world.delivery(*chunks)) == ""
    assert len(world.verified()["data"]) == size_bytes - 2
    is_large = len(world.body) > SMALL_BYTES
    assert (world.call.upload is not None) == is_large
    assert world.chunks.reads == len(chunks) * (2 if is_large else 1)
    if world.call.upload is not None:
        assert world.call.upload.length == len(world.body)
        assert world.call.body == b""


async def test_both_secrets_sign_until_the_overlap_ends() -> None:
    world = World()
    world.sign(SigningSecrets(world.sealed(NEW), world.sealed(OLD), world.now_ms + 1))
    await world.tell(delivery())
    assert world.verified(NEW) == world.verified(OLD)
    world.now_ms += 1
    await world.tell(delivery())
    assert len(world.call.headers["webhook-signature"].split()) == 1
    assert world.verified(NEW)


async def test_without_a_secret_there_is_no_signature() -> None:
    world = World()
    world.sign(None)
    assert await world.tell(delivery()) == ""
    assert "webhook-signature" not in world.call.headers
    assert world.call.headers["webhook-id"] == "req_1"


async def test_nothing_is_sent_unsigned_when_the_secret_cannot_be_opened() -> None:
    world = World()
    world.sign(SigningSecrets(world.sealed(NEW, (b"x" * 32,))))
    assert "TOLLGATE_SECRET_KEY" in await world.tell(delivery())
    world.directory.away = True
    assert "no policy" in await world.tell(delivery())
    assert world.upstream.calls == []


async def test_a_previous_secret_that_cannot_be_opened_signs_nothing() -> None:
    world = World()
    world.sign(SigningSecrets(world.sealed(NEW), world.sealed(OLD, (b"x" * 32,)), world.now_ms + 1000))
    assert await world.tell(delivery()) == ""
    assert len(world.call.headers["webhook-signature"].split()) == 1


async def test_each_try_has_its_own_time_and_the_same_body() -> None:
    world = World()
    one = world.delivery(b"[1]")
    await world.tell(one, answer(status=500))
    first_body = world.body
    first_time = world.call.headers["webhook-timestamp"]
    world.now_ms += 15_000
    await world.tell(replace(one, attempt=2))
    assert world.body == first_body
    assert int(world.call.headers["webhook-timestamp"]) == int(first_time) + 15
    assert world.verified()["time"] == datetime.fromtimestamp(ENDED_MS / 1000, UTC).isoformat(
        timespec="milliseconds"
    ).replace("+00:00", "Z")


@pytest.mark.parametrize("read_before", [0, 4])
async def test_a_result_of_which_something_is_missing_is_not_sent_in_part(read_before: int) -> None:
    """Lost before the result was signed, or between that and sending."""
    world = World()
    half = b"x" * SMALL_BYTES
    world.chunks.gaps = {1}
    world.chunks.gaps_from_read = read_before
    one = world.delivery(b'"' + half, half, half, half + b'"')
    with pytest.raises(AnswerLostError):
        await world.tell(one)
    assert not any(body.endswith(b"}") for body in world.upstream.uploaded)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_accepts(status: int) -> None:
    world = World()
    assert await world.tell(delivery(), answer(b"thanks", status)) == ""


@pytest.mark.parametrize("status", [300, 302, 307, 400, 404, 410, 413, 429, 500, 503])
async def test_any_other_status_does_not(status: int) -> None:
    world = World()
    reply = answer(b"secret text", status, (("location", "https://127.0.0.1/"),))
    assert await world.tell(delivery(), reply) == f"the receiver answered {status}"
    assert len(world.upstream.calls) == 1
    assert reply.closed


@pytest.mark.parametrize(
    "error",
    [
        UpstreamUnreachableError("the upstream's address may not be dialled"),
        UpstreamResetError("the connection to the upstream broke off"),
        UpstreamTimeoutError("the deadline passed"),
    ],
)
async def test_what_breaks_off_is_not_accepted(error: Exception) -> None:
    world = World()
    assert await world.tell(delivery(), error) == str(error)


async def test_an_endless_answer_is_cut_off_and_counts_by_its_status() -> None:
    world = World()
    endless = answer(pieces=[b"x" * 1000] * 10_000)
    assert await world.tell(delivery(), endless) == ""
    assert endless.closed
    assert len(endless.pieces) > 9_000
    cut = answer(pieces=[b"x", UpstreamCutError("cut")])
    assert await world.tell(delivery(), cut) == ""
    silent = answer(pieces=[b"x", asyncio.Event()])
    assert await asyncio.wait_for(world.tell(delivery(), silent), 20) == ""


async def test_a_receiver_that_does_not_answer_has_a_bounded_time() -> None:
    world = World()
    world.timeouts = TellerTimeouts(head_s=0.05)
    world.upstream.will(asyncio.Event())
    assert await asyncio.wait_for(world.tell(delivery()), 20) == "the receiver did not answer in time"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/in",
        "https://user:pw@hooks.example.com/",
        "https://hooks.example.com:8443/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://localhost/",
        "https://db.internal/",
    ],
)
async def test_a_url_that_the_rules_forbid_now_is_not_called(url: str) -> None:
    world = World()
    assert await world.tell(delivery(url=url)) == "the URL may not be called"
    assert world.upstream.calls == []


async def test_an_answer_that_cannot_be_read_now_is_not_called_lost() -> None:
    world = World()
    one = world.delivery(b"[1]")
    world.chunks.unavailable = True
    assert "Redis" in await world.tell(one)
    assert world.upstream.calls == []
