"""A call cancelled at any await of the path is settled, logged as a 499, and releases everything."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from policy.billing import Tokens
from policy.endpoints import Target, VendorCConfig
from policy.limits.effective import Plan
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.pipeline import Pipeline
from tests.fakes.counters import FakeCounters, LaterCounters
from tests.fakes.directory import FakeDirectory, platform
from tests.fakes.path import PathRig, now_ms
from tests.fakes.upstream_client import SSE, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking
from tests.proxy.capacity.idle import check_idle
from tests.waiting import PATIENCE_S

DELTA = b'data: {"id":"c","model":"their-model","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USED = b'data: {"id":"c","model":"their-model","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
DELTA_TOKENS = 1
"""Tokens of the text in DELTA."""
REQUEST_TOKENS = 1
"""Tokens of the text in a request."""


@dataclass
class Scene:
    """One call that will wait at a given await. `reached` is set once it waits there."""

    rig: PathRig
    incoming: FakeIncoming
    outgoing: FakeOutgoing
    reached: asyncio.Event


class HeldDirectory(FakeDirectory):
    """A directory that never finishes confirming an unknown key; sets `reached`."""

    reached: asyncio.Event

    async def confirm_unknown(self, *, may_be_ours: bool = True) -> None:
        self.reached.set()
        await asyncio.Event().wait()


class HeldCounters(FakeCounters):
    """Counters that never finish an admission; they set `reached`."""

    reached: asyncio.Event

    async def take(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken | LimitHit:
        self.reached.set()
        await asyncio.Event().wait()
        raise AssertionError


def new_scene() -> Scene:
    rig = PathRig()
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 100_000))
    return Scene(rig, asking(stream=True), FakeOutgoing(), asyncio.Event())


def while_the_key_is_confirmed() -> Scene:
    scene = new_scene()
    directory = HeldDirectory()
    directory.reached = scene.reached
    scene.rig = PathRig(directory=directory)
    return scene


def while_the_body_comes() -> Scene:
    scene = new_scene()
    scene.incoming.parts.appendleft(asyncio.Event())
    scene.reached = scene.incoming.wait_start
    return scene


def while_redis_is_asked() -> Scene:
    scene = new_scene()
    counters = HeldCounters(now_ms)
    counters.reached = scene.reached
    scene.rig = PathRig(directory=scene.rig.directory, counters=counters)
    return scene


def while_parked() -> Scene:
    scene = new_scene()
    scene.rig.directory.add_slug("acme/chat", platform())
    scene.rig.directory.deploy("WAKING_UP")
    scene.reached = scene.rig.replicas.wait_start
    return scene


class HeldTokens:
    """A source of tokens that never returns one; sets `reached`."""

    def __init__(self, reached: asyncio.Event) -> None:
        self._reached = reached

    async def token(self, secret_value: str) -> str:
        self._reached.set()
        await asyncio.Event().wait()
        raise AssertionError


def while_a_token_is_minted() -> Scene:
    scene = new_scene()
    place = VendorCConfig("p", "l")
    scene.rig.directory.add_slug("acme/chat", Target("VENDOR_C", secret_id="s1", vendor_c_config=place))
    scene.rig.pipeline = Pipeline(replace(scene.rig.parts(), access_tokens=HeldTokens(scene.reached)))
    return scene


def while_upstream_is_asked() -> Scene:
    scene = new_scene()
    scene.rig.upstream.will(asyncio.Event())
    scene.reached = scene.rig.upstream.wait_start
    return scene


def while_a_replica_is_asked() -> Scene:
    scene = while_upstream_is_asked()
    scene.rig.directory.add_slug("acme/chat", platform())
    scene.rig.directory.deploy("ACTIVE", "http://a")
    return scene


def before_the_first_bytes() -> Scene:
    scene = new_scene()
    upstream = answer(headers=SSE, pieces=[asyncio.Event()])
    scene.rig.upstream.will(upstream)
    scene.reached = upstream.wait_start
    return scene


def in_the_stream() -> Scene:
    scene = new_scene()
    upstream = answer(headers=SSE, pieces=[DELTA, asyncio.Event()])
    scene.rig.upstream.will(upstream)
    scene.reached = upstream.wait_start
    return scene


def after_the_usage_came() -> Scene:
    scene = new_scene()
    upstream = answer(headers=SSE, pieces=[DELTA, USED, asyncio.Event()])
    scene.rig.upstream.will(upstream)
    scene.reached = upstream.wait_start
    return scene


def in_an_upstreams_error() -> Scene:
    scene = new_scene()
    upstream = answer(status=400, pieces=[b'{"er', asyncio.Event()])
    scene.rig.upstream.will(upstream)
    scene.reached = upstream.wait_start
    return scene


def while_the_caller_is_slow() -> Scene:
    scene = new_scene()
    scene.rig.upstream.will(answer(headers=SSE, pieces=[DELTA, DELTA, DONE]))
    scene.outgoing.room_left.clear()
    scene.reached = scene.outgoing.wait_start
    return scene


def at_the_last_bytes() -> Scene:
    scene = new_scene()
    scene.incoming = asking()
    scene.rig.upstream.will(answer(b'{"model":"their-model","usage":{"prompt_tokens":3,"completion_tokens":2}}'))
    scene.outgoing.room_left.clear()
    scene.reached = scene.outgoing.wait_start
    return scene


NEVER_ADMITTED = None
AWAITS: list[tuple[Callable[[], Scene], Tokens | None, int]] = [
    (while_the_key_is_confirmed, NEVER_ADMITTED, 499),
    (while_the_body_comes, NEVER_ADMITTED, 499),
    (while_redis_is_asked, NEVER_ADMITTED, 499),
    (while_parked, Tokens(), 499),
    (while_a_token_is_minted, Tokens(), 499),
    (while_upstream_is_asked, Tokens(), 499),
    (while_a_replica_is_asked, Tokens(), 499),
    (before_the_first_bytes, Tokens(), 499),
    (in_the_stream, Tokens(input=REQUEST_TOKENS, output=DELTA_TOKENS), 499),
    (after_the_usage_came, Tokens(input=3, output=2), 499),
    (in_an_upstreams_error, Tokens(), 499),
    (while_the_caller_is_slow, Tokens(input=REQUEST_TOKENS, output=DELTA_TOKENS), 499),
    (at_the_last_bytes, Tokens(input=3, output=2), 200),
]


@pytest.mark.parametrize(
    ("arrange", "billed", "journaled_status"), AWAITS, ids=lambda one: getattr(one, "__name__", "")
)
async def test_cancelled_call_is_settled_at_each_await(
    arrange: Callable[[], Scene], billed: Tokens | None, journaled_status: int
) -> None:
    scene = arrange()
    rig = scene.rig
    task = asyncio.create_task(rig.pipeline.handle(scene.incoming, scene.outgoing))
    await asyncio.wait_for(scene.reached.wait(), PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    rig.check_settled()
    assert [record.status for record in rig.meters.calls] == [499]
    check_idle(rig.pipeline._capacity)
    if billed is NEVER_ADMITTED:
        assert not rig.journal.opened
        assert not rig.counters.settled
        return
    [settled] = rig.counters.settled
    assert settled.actual_tokens == billed.total
    if rig.journal.opened:
        [closed] = rig.journal.closed
        assert (closed.status, closed.tokens) == (journaled_status, billed)


async def test_cancelled_call_closes_upstream_and_frees_its_replica() -> None:
    scene = in_the_stream()
    scene.rig.directory.add_slug("acme/chat", platform())
    scene.rig.directory.deploy("ACTIVE", "http://a")
    upstream = scene.rig.upstream.script[0]
    task = asyncio.create_task(scene.rig.pipeline.handle(scene.incoming, scene.outgoing))
    await asyncio.wait_for(scene.reached.wait(), PATIENCE_S)
    assert scene.rig.replicas.in_flight() == {"d1": 1}
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert scene.rig.replicas.in_flight() == {"d1": 0}
    assert upstream.closed  # type: ignore[union-attr] # it is the answer of the scene


async def test_call_cancelled_twice_settles_once() -> None:
    scene = in_the_stream()
    task = asyncio.create_task(scene.rig.pipeline.handle(scene.incoming, scene.outgoing))
    await asyncio.wait_for(scene.reached.wait(), PATIENCE_S)
    task.cancel()
    task.cancel()
    await asyncio.wait([task])
    assert len(scene.rig.journal.closed) == len(scene.rig.counters.settled) == 1


@pytest.mark.parametrize("turns", range(40))
async def test_call_cancelled_at_any_turn_of_the_loop_releases_everything(turns: int) -> None:
    """Cancels at every turn of the loop that the call takes, also between the arranged awaits."""
    scene = new_scene()
    scene.rig.upstream.will(answer(headers=SSE, pieces=[DELTA, DELTA, USED, DONE]))
    task = asyncio.create_task(scene.rig.pipeline.handle(scene.incoming, scene.outgoing))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    scene.rig.check_settled()
    assert len(scene.rig.counters.settled) == len(scene.rig.journal.opened)
    check_idle(scene.rig.pipeline._capacity)


@pytest.mark.parametrize("turns", range(8))
async def test_call_cancelled_in_the_turn_of_its_admission_returns_the_take(turns: int) -> None:
    counters = LaterCounters(now_ms)
    rig = PathRig(directory=new_scene().rig.directory, counters=counters)
    task = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    rig.check_settled()
    assert len(counters.settled) == counters.admitted
