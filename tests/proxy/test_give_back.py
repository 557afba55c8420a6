"""A call refused between admission and dispatch consumes nothing; a dispatched call consumes one request."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from policy.endpoints import Target, VendorCConfig
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from proxy.accounting.recovery import WITHDRAWN_STATUS
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.edges.process.replica_requests import WaitingTimes
from proxy.errors import UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from runtime.exhaustion import NoLocalPortError
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

REQUESTS = Limit(LimitType.REQUEST, Unit.DAY, 10)
LIMITS = {"requests only": (REQUESTS,), "tokens too": (REQUESTS, Limit(LimitType.TOKEN, Unit.DAY, 100_000))}
ANSWER = b'{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}'


@pytest.fixture(params=LIMITS)
def rig(request: pytest.FixtureRequest) -> PathRig:
    path_rig = PathRig()
    path_rig.directory.limit(*LIMITS[request.param])
    return path_rig


def used(rig: PathRig) -> tuple[int, int]:
    """The day's requests and tokens, including reservations."""
    [counts] = [counts for book in rig.counters.books.values() for counts in book.groups.values()]
    reserved = counts.used((LimitType.TOKEN, Unit.DAY))
    return counts.count((LimitType.REQUEST, Unit.DAY)), reserved


def journal_is_full(rig: PathRig) -> PathRig:
    rig.journal.full = True
    return rig


def secret_is_missing(rig: PathRig) -> PathRig:
    rig.directory.secrets.clear()
    return rig


def upstream_is_unreachable(rig: PathRig) -> PathRig:
    rig.upstream.will(UpstreamUnreachableError())
    return rig


def no_descriptor_is_left(rig: PathRig) -> PathRig:
    rig.upstream.will(*(OSError(number, "too many") for number in (errno.EMFILE, errno.ENFILE, errno.EMFILE)))
    return rig


def no_memory_is_left(rig: PathRig) -> PathRig:
    rig.upstream.will(*(OSError(errno.ENOMEM, "cannot allocate memory") for _ in range(3)))
    return rig


def no_local_port_is_left(rig: PathRig) -> PathRig:
    rig.upstream.will(*(NoLocalPortError(errno.EADDRNOTAVAIL, "cannot assign") for _ in range(3)))
    return rig


def provider_is_unknown(rig: PathRig) -> PathRig:
    rig.directory.add_slug(SLUG, Target("VENDOR_NEW", secret_id="s1", target_model="m"))
    return rig


def no_token_is_minted(rig: PathRig) -> PathRig:
    place = VendorCConfig("project", "here")
    rig.directory.add_slug(SLUG, Target("VENDOR_C", secret_id="s1", vendor_c_config=place))
    return rig.rebuilt(settings=type(rig.settings)({"VENDOR_C": "https://vendor-c.test"}))


def nothing_serves(rig: PathRig) -> PathRig:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE")
    return rig


def no_replica_can_be_reached(rig: PathRig) -> PathRig:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", "http://a", "http://b")
    rig.upstream.will(UpstreamUnreachableError(), UpstreamUnreachableError())
    return rig


def parking_ends(rig: PathRig) -> PathRig:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("WAKING_UP")
    return rig.rebuilt(waiting_times=WaitingTimes(parked_s=0.01))


def parking_is_full(rig: PathRig) -> PathRig:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("WAKING_UP")
    return rig.rebuilt(capacity=CapacityLimits(max_parked=0))


REFUSED: list[Callable[[PathRig], PathRig]] = [
    journal_is_full,
    secret_is_missing,
    upstream_is_unreachable,
    no_descriptor_is_left,
    no_memory_is_left,
    no_local_port_is_left,
    provider_is_unknown,
    no_token_is_minted,
    nothing_serves,
    no_replica_can_be_reached,
    parking_ends,
    parking_is_full,
]


@pytest.mark.parametrize("arrange", REFUSED, ids=lambda one: one.__name__)
async def test_call_refused_before_dispatch_returns_its_reservation(
    rig: PathRig, arrange: Callable[[PathRig], PathRig]
) -> None:
    rig = arrange(rig)
    for _ in range(3):
        outgoing = await rig.serve(asking())
        assert outgoing.status in (500, 502, 503, 529), outgoing.body
        assert used(rig) == (0, 0)
    rig.check_settled()
    for closed in rig.journal.closed:
        assert not closed.numbers, "a replay of the journal would settle it again"


@pytest.mark.parametrize(
    "arrange", [no_descriptor_is_left, no_memory_is_left, no_local_port_is_left], ids=lambda one: one.__name__
)
async def test_call_shed_before_a_byte_was_sent_is_closed_without_an_event(
    rig: PathRig, arrange: Callable[[PathRig], PathRig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = arrange(rig)
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (529, "CAPACITY_EXHAUSTED")
    assert outgoing.header("retry-after") == "1"
    assert [call.status for call in rig.journal.closed] == [WITHDRAWN_STATUS]
    assert [call.status for call in rig.meters.calls] == [529]
    assert not caplog.records


UNTRANSLATABLE: list[tuple[str, str, dict[str, Any]]] = [
    ("VENDOR_A", "/v1/embeddings", {}),
    ("VENDOR_A", "/v1/chat/completions", {"n": 2}),
    ("VENDOR_A", "/v1/chat/completions", {"n": 2, "stop": [" " * 20] * 1000, "tools": [{}] * 1000}),
    ("VENDOR_A", "/v1/responses", {"input": "hi", "include": ["file_search_call.results"]}),
    ("VENDOR_B", "/v1/messages", {"top_k": 3}),
    ("VENDOR_C", "/v1/messages", {"top_k": 3}),
]


@pytest.fixture(params=UNTRANSLATABLE, ids=lambda one: f"{one[1]} to {one[0]}")
def untranslatable(request: pytest.FixtureRequest) -> tuple[Target, Callable[[], FakeIncoming]]:
    provider, path, more = request.param
    place = VendorCConfig("project", "here") if provider == "VENDOR_C" else None

    def call() -> FakeIncoming:
        incoming = asking(**more)
        incoming.request_target = path
        return incoming

    return Target(provider, secret_id="s1", target_model="m", vendor_c_config=place), call


async def test_untranslatable_call_returns_all_it_took_and_leaves_no_event(
    rig: PathRig, untranslatable: tuple[Target, Callable[[], FakeIncoming]]
) -> None:
    target, call = untranslatable
    rig.directory.add_slug(SLUG, target)
    for _ in range(3):
        outgoing = await rig.serve(call())
        assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
        assert outgoing.header("x-ratelimit-remaining-requests") == "9"
        assert used(rig) == (0, 0)
    assert (rig.journal.opened, rig.upstream.calls) == ([], [])
    assert [call.tokens for call in rig.meters.calls] == [None] * 3


async def test_call_over_its_limit_is_refused_before_it_is_translated(
    untranslatable: tuple[Target, Callable[[], FakeIncoming]],
) -> None:
    target, call = untranslatable
    rig = PathRig()
    rig.directory.add_slug(SLUG, target)
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.upstream.will(answer(ANSWER))
    count = asking(max_tokens=1)
    count.request_target = "/v1/messages/count_tokens"
    assert (await rig.serve(count)).status == 200
    outgoing = await rig.serve(call())
    assert (outgoing.status, outgoing.json["error_code"]) == (429, "RATE_LIMITED")


async def test_untranslatable_call_returns_what_it_took_of_every_group_above() -> None:
    rig = PathRig()
    limits = SlugLimits(SLUG, (Limit(LimitType.REQUEST, Unit.MINUTE, 2), Limit(LimitType.TOKEN, Unit.MINUTE, 9_000)))
    for id, parent in (("g0", None), ("g1", "g0")):
        rig.directory.groups[id] = Group(id, "w1", parent, f"entity {id}", Enforcement.CASCADING, (limits,))
    rig.directory.add_slug(SLUG, Target("VENDOR_A", secret_id="s1", target_model="m"))
    for _ in range(4):
        assert (await rig.serve(asking(n=2))).status == 400
    groups = [counts for book in rig.counters.books.values() for counts in book.groups.values()]
    assert len(groups) == 2
    for counts in groups:
        assert [counts.used((kind, Unit.MINUTE)) for kind in (LimitType.REQUEST, LimitType.TOKEN)] == [0, 0]


async def test_caller_that_leaves_while_parked_returns_its_reservation(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("WAKING_UP")
    task = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    while not rig.pipeline._capacity.parked:
        await asyncio.sleep(0)
    assert used(rig)[0] == 1
    task.cancel()
    await asyncio.wait([task])
    assert used(rig) == (0, 0)
    rig.check_settled()


@pytest.mark.parametrize(
    "failure",
    [UpstreamResetError(), UpstreamTimeoutError(), RuntimeError("a bug"), answer(b"{}", 500)],
    ids=["reset", "timeout", "bug", "answered 500"],
)
async def test_dispatched_call_counts_as_one_request(rig: PathRig, failure: Exception) -> None:
    rig.upstream.will(failure)
    await rig.serve(asking())
    assert used(rig) == (1, 0)


async def test_retry_at_another_replica_counts_as_one_request(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", "http://a", "http://b")
    rig.upstream.will(UpstreamUnreachableError(), answer(ANSWER))
    assert (await rig.serve(asking())).status == 200
    assert used(rig)[0] == 1


async def test_answered_call_is_settled(rig: PathRig) -> None:
    rig.upstream.will(answer(ANSWER))
    await rig.serve(asking())
    assert used(rig)[0] == 1
    assert not any(one.given_back for one in rig.counters.settled)
