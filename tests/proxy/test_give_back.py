"""A call refused between admission and dispatch consumes nothing; a dispatched call consumes one request."""

import asyncio
from collections.abc import Callable

import pytest

from policy.endpoints import Target, VendorCConfig
from policy.limits.limit import Limit, LimitType, Unit
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.exchange import UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import House
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeOutgoing, asking

REQUESTS = Limit(LimitType.REQUEST, Unit.DAY, 10)
LIMITS = {"requests only": (REQUESTS,), "tokens too": (REQUESTS, Limit(LimitType.TOKEN, Unit.DAY, 100_000))}
ANSWER = b'{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}'


@pytest.fixture(params=LIMITS)
def house(request: pytest.FixtureRequest) -> House:
    made = House()
    made.directory.limit(*LIMITS[request.param])
    return made


def used(house: House) -> tuple[int, int]:
    """The day's requests and tokens, including reservations."""
    [counts] = [counts for book in house.counters.books.values() for counts in book.groups.values()]
    reserved = counts.used((LimitType.TOKEN, Unit.DAY))
    return counts.day_requests, reserved


def journal_is_full(house: House) -> House:
    house.journal.full = True
    return house


def secret_is_missing(house: House) -> House:
    house.directory.secrets.clear()
    return house


def upstream_is_unreachable(house: House) -> House:
    house.upstream.will(UpstreamUnreachableError())
    return house


def provider_is_unknown(house: House) -> House:
    house.directory.add_slug(SLUG, Target("VENDOR_NEW", secret_id="s1", target_model="m"))
    return house


def no_token_is_minted(house: House) -> House:
    place = VendorCConfig("project", "here")
    house.directory.add_slug(SLUG, Target("VENDOR_C", secret_id="s1", vendor_c_config=place))
    return house.rebuilt(settings=type(house.settings)({"VENDOR_C": "https://vendor-c.test"}))


def nothing_serves(house: House) -> House:
    house.directory.add_slug(SLUG, platform())
    house.directory.deploy("ACTIVE")
    return house


def no_replica_can_be_reached(house: House) -> House:
    house.directory.add_slug(SLUG, platform())
    house.directory.deploy("ACTIVE", "http://a", "http://b")
    house.upstream.will(UpstreamUnreachableError(), UpstreamUnreachableError())
    return house


def parking_ends(house: House) -> House:
    house.directory.add_slug(SLUG, platform())
    house.directory.deploy("WAKING_UP")
    return house.rebuilt(settings=type(house.settings)({}, parking_timeout_s=0.01))


def parking_is_full(house: House) -> House:
    house.directory.add_slug(SLUG, platform())
    house.directory.deploy("WAKING_UP")
    return house.rebuilt(capacity=CapacityLimits(max_parked=0))


REFUSED: list[Callable[[House], House]] = [
    journal_is_full,
    secret_is_missing,
    upstream_is_unreachable,
    provider_is_unknown,
    no_token_is_minted,
    nothing_serves,
    no_replica_can_be_reached,
    parking_ends,
    parking_is_full,
]


@pytest.mark.parametrize("arrange", REFUSED, ids=lambda one: one.__name__)
async def test_call_refused_before_dispatch_returns_its_reservation(
    house: House, arrange: Callable[[House], House]
) -> None:
    house = arrange(house)
    for _ in range(3):
        outgoing = await house.serve(asking())
        assert outgoing.status in (500, 502, 503, 529), outgoing.body
        assert used(house) == (0, 0)
    house.check_settled()
    for closed in house.journal.closed:
        assert not closed.numbers, "a replay of the journal would settle it again"


async def test_caller_that_leaves_while_parked_returns_its_reservation(house: House) -> None:
    house.directory.add_slug(SLUG, platform())
    house.directory.deploy("WAKING_UP")
    task = asyncio.create_task(house.pipeline.handle(asking(), FakeOutgoing()))
    while not house.pipeline._capacity.parked:
        await asyncio.sleep(0)
    assert used(house)[0] == 1
    task.cancel()
    await asyncio.wait([task])
    assert used(house) == (0, 0)
    house.check_settled()


@pytest.mark.parametrize(
    "failure",
    [UpstreamResetError(), UpstreamTimeoutError(), RuntimeError("a bug"), answer(b"{}", 500)],
    ids=["reset", "timeout", "bug", "answered 500"],
)
async def test_dispatched_call_counts_as_one_request(house: House, failure: Exception) -> None:
    house.upstream.will(failure)
    await house.serve(asking())
    assert used(house) == (1, 0)


async def test_retry_at_another_replica_counts_as_one_request(house: House) -> None:
    house.directory.add_slug(SLUG, platform())
    house.directory.deploy("ACTIVE", "http://a", "http://b")
    house.upstream.will(UpstreamUnreachableError(), answer(ANSWER))
    assert (await house.serve(asking())).status == 200
    assert used(house)[0] == 1


async def test_answered_call_is_settled(house: House) -> None:
    house.upstream.will(answer(ANSWER))
    await house.serve(asking())
    assert used(house)[0] == 1
    assert not any(one.given_back for one in house.counters.settled)
