"""Settlements reach Redis in order, in batches, until they are confirmed, at servers that the test answers by hand."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import hiredis
import pytest

from policy.limits.effective import Bound, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Reservation, Settlement
from proxy.accounting.reservations import LimitHit
from proxy.edges.redis.admission_requests import CompiledPlan, PlanPlace, TakeTemplate
from proxy.edges.redis.scripts import BATCH_MAX, Script
from proxy.edges.redis.settlement_sender import SettlementSender
from proxy.errors import CountersUnavailableError
from tests.proxy.edges.redis.scripted_nodes import ScriptedClient, ScriptedNodes, SentBatch, sent_batch

SKIPS_IDLE_TIME = True
NO_PLACE = partial(PlanPlace, free=lambda _place: None)
SCRIPT = Script(b"return 0", b"0" * 40)
LEASE_MS = 7000
KEY = "tg:{g|acme/chat}"
OTHER_KEY = "tg:{h|acme/chat}"
NO_SCRIPT = hiredis.ReplyError("NOSCRIPT No matching script. Please use EVAL.")
MOVED = hiredis.ReplyError("MOVED 12 127.0.0.1:7001")
DENIED = hiredis.ReplyError("NOPERM this user has no permissions to run the 'evalsha' command")
FAILURES = [pytest.param(None, id="no reply"), pytest.param(DENIED, id="refused"), pytest.param(b"0", id="odd")]


class World:
    """A sender at scripted servers. `batches_before_journal`: how many had left, each time the journal was written."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes()
        self.batches_before_journal: list[int] = []
        self.soft_refusals: dict[str, list[CompiledPlan]] = {}
        self.sender = SettlementSender(self.nodes, SCRIPT, LEASE_MS, self._write_journal, self.soft_refusals)

    def _write_journal(self) -> None:
        self.batches_before_journal.append(len(self.client.commands))

    @property
    def client(self) -> ScriptedClient:
        return self.nodes.client

    @property
    def sent(self) -> list[SentBatch]:
        """The batches without a reply."""
        return [sent_batch(command) for command in self.client.commands]

    @property
    def numbers_sent(self) -> list[list[int]]:
        return [batch.numbers for batch in self.sent]

    def add(self, *settlements: Settlement, incarnation: str = "worker") -> None:
        for one in settlements:
            self.sender.add(
                incarnation,
                one.reservation,
                number=one.number,
                actual_tokens=one.actual_tokens,
                given_back=one.given_back,
            )

    def send(self, *settlements: Settlement, incarnation: str = "worker") -> None:
        """Add, and flush."""
        self.add(*settlements, incarnation=incarnation)
        self.sender.send_ready()


@pytest.fixture
async def world() -> World:
    return World()


def settlement(number: int, key: str = KEY, groups: int = 1, given_back: bool = False) -> Settlement:
    """A settlement whose figures all differ."""
    buckets = tuple((f"g{group}", 10 + group) for group in range(groups))
    reservation = Reservation(
        key=key,
        buckets=buckets,
        admitted_at_ms=1000 + number,
        reserved_tokens=2000 + number,
        margin_tokens=3000 + number,
    )
    actual_tokens = 0 if given_back else 4000 + number
    return Settlement(reservation=reservation, number=number, actual_tokens=actual_tokens, given_back=given_back)


def local(number: int, given_back: bool = False) -> Settlement:
    """A settlement of a call that was admitted while Redis was away."""
    one = settlement(number, given_back=given_back)
    return one._replace(reservation=one.reservation._replace(local=True))


def compiled_plan() -> CompiledPlan:
    plan = plan_of_limits("acme/chat", "g", KEY, (Limit(LimitType.TOKEN, Unit.MINUTE, 5),))
    return CompiledPlan(plan, TakeTemplate(SCRIPT, LEASE_MS, "worker", lambda _take: None, NO_PLACE))


async def test_settlements_of_a_tick_are_one_batch_in_order(world: World) -> None:
    added = [settlement(1), settlement(2, groups=3), settlement(3)]
    world.add(*added)
    assert world.sent == []
    world.sender.send_ready()
    assert world.sent == [SentBatch(b"EVAL", SCRIPT.text, b"@worker", LEASE_MS, added)]


async def test_batch_tells_apart_how_each_call_was_admitted_and_ended(world: World) -> None:
    added = [settlement(1), settlement(2, given_back=True), local(3), local(4, given_back=True)]
    world.send(*added)
    assert world.sent[0].settlements == added


async def test_flush_is_asked_for_once_a_batch(world: World) -> None:
    world.add(settlement(1), settlement(2))
    assert world.nodes.flushes == 1
    world.sender.send_ready()
    world.add(settlement(3))
    assert world.nodes.flushes == 1
    world.client.reply(2)
    assert world.nodes.flushes == 2
    world.sender.send_ready()
    world.client.reply(1)
    assert world.nodes.flushes == 2


async def test_flush_without_settlements_sends_nothing(world: World) -> None:
    world.sender.send_ready()
    world.send(settlement(1))
    world.sender.send_ready()
    world.client.reply(1)
    world.sender.send_ready()
    assert world.sent == []
    assert world.sender.ready == []


async def test_settlements_wait_while_a_batch_of_theirs_is_in_flight(world: World) -> None:
    world.send(settlement(1))
    world.send(settlement(2))
    world.send(settlement(3))
    assert world.numbers_sent == [[1]]
    world.client.reply(1)
    world.add(settlement(4))
    world.sender.send_ready()
    assert world.numbers_sent == [[2, 3, 4]]


async def test_keys_and_incarnations_do_not_wait_for_each_other(world: World) -> None:
    world.send(settlement(1))
    world.send(settlement(2, OTHER_KEY))
    world.send(settlement(1), incarnation="other")
    assert [(batch.settlements[0].reservation.key, batch.marker) for batch in world.sent] == [
        (KEY, b"@worker"),
        (OTHER_KEY, b"@worker"),
        (KEY, b"@other"),
    ]


async def test_batch_is_no_larger_than_one_script_call_can_take(world: World) -> None:
    numbers = list(range(1, BATCH_MAX + 3))
    world.send(*map(settlement, numbers))
    assert world.numbers_sent == [numbers[:-2]]
    world.client.reply(BATCH_MAX)
    world.sender.send_ready()
    assert world.numbers_sent == [numbers[-2:]]


async def test_script_is_named_by_its_digest_once_the_server_has_it(world: World) -> None:
    world.send(settlement(1))
    world.client.reply(1)
    world.send(settlement(2))
    assert [(batch.command, batch.script) for batch in world.sent] == [(b"EVALSHA", SCRIPT.sha)]


async def test_server_without_the_script_gets_the_batch_again_with_it(world: World) -> None:
    world.nodes.node.has_settle = True
    world.send(settlement(1))
    world.send(settlement(2, OTHER_KEY))
    world.client.reply(NO_SCRIPT)
    assert [(batch.command, batch.numbers) for batch in world.sent] == [(b"EVALSHA", [2]), (b"EVAL", [1])]
    world.send(settlement(3))
    assert world.numbers_sent == [[2], [1]]
    world.client.reply(1)
    world.client.reply(1)
    world.sender.send_ready()
    assert world.numbers_sent == [[3]]


async def test_moved_batch_goes_to_its_new_server_unchanged(world: World) -> None:
    """Settlements that were added meanwhile wait: the new server may still reply to the batch as it was."""
    world.nodes.node.has_settle = True
    world.send(settlement(1))
    world.add(settlement(2))
    world.client.reply(MOVED)
    world.sender.send_ready()
    assert world.sent == []
    [moved] = world.nodes.other_client.commands
    assert (sent_batch(moved).command, sent_batch(moved).numbers) == (b"EVAL", [1])
    world.nodes.other_client.reply(1)
    assert world.nodes.other_node.has_settle
    world.sender.send_ready()
    assert world.numbers_sent == [[2]]


async def test_moved_batch_is_not_sent_again_while_its_new_server_has_it(world: World) -> None:
    world.send(settlement(1), settlement(2, OTHER_KEY))
    world.client.reply(MOVED)
    world.client.reply(None)
    await world.client.next_command()
    assert world.numbers_sent == [[2]]


@pytest.mark.parametrize("failure", FAILURES)
async def test_failed_batch_is_sent_again_before_later_settlements(world: World, failure: Any) -> None:
    world.send(settlement(1), settlement(2))
    world.client.reply(failure)
    world.send(settlement(3))
    assert world.sent == []
    assert world.sender.pending == 3
    await world.client.next_command()
    assert world.numbers_sent == [[1, 2, 3]]


async def test_all_failed_batches_are_sent_again_together(world: World) -> None:
    world.send(settlement(1), settlement(2, OTHER_KEY))
    world.send(settlement(3, "tg:{i|acme/chat}"))
    world.client.reply(None)
    world.client.reply(None)
    world.send(settlement(4, "tg:{j|acme/chat}"))
    world.client.reply(1)
    world.client.reply(1)
    await world.client.next_command()
    assert world.numbers_sent == [[1], [2]]


async def test_batches_are_sent_again_after_each_failure(world: World) -> None:
    world.send(settlement(1))
    for _ in range(3):
        await world.client.next_command()
        assert world.numbers_sent == [[1]]
        world.client.reply(None)
    await world.client.next_command()
    world.client.reply(1)
    assert world.sender.pending == 0
    world.send(settlement(2))
    assert world.numbers_sent == [[2]]


async def test_refused_settlements_are_logged_once_until_redis_takes_them(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number, reply in enumerate([DENIED, DENIED, 1, DENIED], 1):
        world.send(settlement(number, f"key {number}"))
        world.client.reply(reply)
    assert [record.getMessage() for record in caplog.records] == [
        f"Redis refuses settlements ({DENIED}); they are kept and sent again every 250 ms. Check the permissions of "
        "the Redis user and the server's memory."
    ] * 2


async def test_journal_is_written_before_each_batch(world: World) -> None:
    world.send(settlement(1), settlement(2, OTHER_KEY))
    world.client.reply(NO_SCRIPT)
    assert world.batches_before_journal == [0, 1, 1]


async def test_pending_settlements_are_counted_until_they_are_confirmed(world: World) -> None:
    world.send(settlement(1))
    world.add(settlement(2), settlement(3, OTHER_KEY))
    assert world.sender.pending == 3
    world.client.reply(1)
    assert world.sender.pending == 2


async def test_oldest_pending_number_is_that_of_one_incarnation(world: World) -> None:
    world.send(settlement(5), settlement(4, OTHER_KEY), settlement(6, OTHER_KEY))
    world.send(settlement(1), incarnation="other")
    assert [world.sender.oldest_pending(one) for one in ("worker", "other", "none")] == [4, 1, None]
    world.client.reply(1)
    assert world.sender.oldest_pending("worker") == 4
    world.client.reply(2)
    assert world.sender.oldest_pending("worker") is None


async def test_what_is_given_back_does_not_raise_the_last_number(world: World) -> None:
    world.add(settlement(7))
    world.add(settlement(9, given_back=True), incarnation="worker~")
    assert world.sender.last_number == 7


async def test_settlement_lifts_the_soft_refusals_of_its_key(world: World) -> None:
    plans = {key: compiled_plan() for key in (KEY, OTHER_KEY)}
    for key, plan in plans.items():
        bound = Bound(Limit(LimitType.TOKEN, Unit.MINUTE, 5), "g", "g")
        plan.cache_refusal(LimitHit(bound, 60_000), 100.0)
        world.soft_refusals[key] = [plan]
    world.add(settlement(1))
    assert plans[KEY].refused_until == 0.0
    assert plans[OTHER_KEY].refused_until > 100.0
    assert world.soft_refusals.keys() == {OTHER_KEY}


async def test_only_the_queues_of_confirmed_settlements_are_forgotten(world: World) -> None:
    many = [settlement(number, f"tg:{{{number}|acme/chat}}") for number in range(1, 30_001)]
    world.add(*many[:6000])
    for one in many[6000:]:
        world.sender.send_ready()
        world.send(one)
        world.client.commands[-1].on_reply(world.client.commands[-1], 1)
    assert world.sender.pending == 6000
    assert len(world.sender._queues) <= 12_000


async def replaying(world: World, *settlements: Settlement) -> asyncio.Task[None]:
    replay = asyncio.create_task(world.sender.replay("dead", settlements))
    await world.client.next_command()
    return replay


async def test_settlements_of_a_dead_incarnation_are_replayed_under_its_name_by_number(world: World) -> None:
    replay = await replaying(world, settlement(3), settlement(2, OTHER_KEY), settlement(1))
    assert world.sent == [SentBatch(b"EVALSHA", SCRIPT.sha, b"@dead", LEASE_MS, [settlement(1), settlement(3)])]
    world.client.reply(2)
    await world.client.next_command()
    assert [batch.settlements for batch in world.sent] == [[settlement(2, OTHER_KEY)]]
    assert not replay.done()
    world.client.reply(1)
    await replay


async def test_long_replay_goes_in_batches_that_one_script_call_can_take(world: World) -> None:
    numbers = list(range(1, 2 * BATCH_MAX + 1))
    replay = await replaying(world, *(settlement(number, groups=2) for number in numbers))
    replayed: list[int] = []
    sizes = []
    while len(replayed) < len(numbers):
        await world.client.next_command()
        [batch] = world.numbers_sent
        replayed += batch
        sizes.append(len(batch))
        world.client.reply(len(batch))
    await replay
    assert replayed == numbers
    assert max(sizes) < BATCH_MAX
    assert sizes[:-1] == sizes[:1] * (len(sizes) - 1)


async def test_replay_sends_the_script_to_a_server_without_it(world: World) -> None:
    replay = await replaying(world, settlement(1))
    world.client.reply(NO_SCRIPT)
    await world.client.next_command()
    assert world.sent == [SentBatch(b"EVAL", SCRIPT.text, b"@dead", LEASE_MS, [settlement(1)])]
    world.client.reply(1)
    await replay


@pytest.mark.parametrize("failure", FAILURES)
async def test_replay_that_redis_does_not_confirm_fails(world: World, failure: Any) -> None:
    replay = await replaying(world, settlement(1))
    world.client.reply(failure)
    with pytest.raises(CountersUnavailableError):
        await replay
    assert world.sent == []


async def test_replay_fails_if_even_the_script_itself_is_unknown(world: World) -> None:
    replay = await replaying(world, settlement(1))
    for reply in (NO_SCRIPT, NO_SCRIPT):
        await world.client.next_command()
        world.client.reply(reply)
    with pytest.raises(CountersUnavailableError):
        await replay


async def test_close_returns_when_all_is_confirmed(world: World) -> None:
    world.send(settlement(1))
    world.add(settlement(2), settlement(3, OTHER_KEY))
    closing = asyncio.create_task(world.sender.close(60))
    for expected in ([[1], [3]], [[3]]):
        await asyncio.sleep(0)
        assert world.numbers_sent == expected
        assert not closing.done()
        world.client.reply(1)
    world.sender.send_ready()
    assert world.numbers_sent == [[2]]
    await asyncio.sleep(0)
    assert not closing.done()
    world.client.reply(1)
    await closing
    assert asyncio.get_running_loop().time() < 60


async def test_close_sends_at_once_what_waits_for_a_retry(world: World) -> None:
    world.send(settlement(1))
    world.client.reply(None)
    closing = asyncio.create_task(world.sender.close(60))
    await asyncio.sleep(0)
    assert world.numbers_sent == [[1]]
    world.client.reply(1)
    await closing


async def test_close_without_time_sends_nothing(world: World) -> None:
    world.add(settlement(1))
    await world.sender.close(0.0)
    assert world.sent == []
    assert world.sender.pending == 1


async def test_close_ends_without_an_answer(world: World) -> None:
    world.add(settlement(1))
    await world.sender.close(0.01)
    assert world.numbers_sent == [[1]]
    assert world.sender.pending == 1
    world.client.reply(1)
    assert world.sender.pending == 0


@pytest.mark.parametrize("fails_before", [True, False])
@pytest.mark.parametrize("timeout_s", [0.0, 0.01])
async def test_nothing_is_sent_again_after_close(
    world: World, monkeypatch: pytest.MonkeyPatch, fails_before: bool, timeout_s: float
) -> None:
    """No timer is left that would hold the loop, or write to a closed connection."""
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    timers: list[asyncio.TimerHandle] = []

    def remembered(delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, callback, *arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", remembered)
    world.send(settlement(1))
    if fails_before:
        world.client.reply(None)
    await world.sender.close(timeout_s)
    if world.sent:
        world.client.reply(None)
    assert [timer.cancelled() for timer in timers] == [True] * fails_before


async def test_settlement_that_fails_while_the_rest_is_sent_again_has_its_own_retry(world: World) -> None:
    world.send(settlement(1))
    world.send(settlement(2, OTHER_KEY))
    world.client.reply(None)
    closing = asyncio.create_task(world.sender.close(60))
    await asyncio.sleep(0)
    assert world.numbers_sent == [[2], [1]]
    world.client.reply(None)
    world.client.reply(None)
    await world.client.next_command()
    assert world.numbers_sent == [[1], [2]]
    world.client.reply(1)
    world.client.reply(1)
    await closing
