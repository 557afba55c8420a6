"""HARD spend limits and balances on a real Redis: never above the amount, nothing admitted that cannot be verified."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
import redis

from control.edges.redis.client import connect
from control.edges.redis.spend.spend_hashes import SpendHashes
from control.records.spend import SpendTree, SpentEvent, TreeCount, Withdrawal
from policy.limits.groups import Enforcement
from policy.spend.spend_book import SpendBook
from policy.spend.spend_hash import (
    COMPLETE_FIELD,
    LIMB,
    UNITS_PER_PICO,
    amount_of_picos,
    epoch_text,
    pack_amount,
    pack_spent,
    unpack_amount,
    unpack_spent,
)
from proxy.accounting.spend_taken import GUESS_MS, SpendHit, SpendTaken, SpendUnavailable
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from runtime.redis.slots import slot_of
from tests.contracts.redis.spend_world import EPOCH, INCARNATION, hard, limits, plan_of
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, running_cluster
from tests.redis_relay import relay_to
from tests.redis_server import RedisServer, private_redis
from tests.waiting import eventually

OPTIONS = CountersOptions(client=RedisClientOptions(deadline_s=0.3))
PLAN = plan_of(("team", limits(day="2")), ("root", hard(month="1")))
DEPOSITED = 1
BALANCE_PLAN = plan_of(("team", ()), ("root", ()), mode=Enforcement.INDEPENDENT, deposits={"root": str(DEPOSITED)})
SOFT_PLAN = plan_of(("team", limits(day="2")), ("root", ()))
KEYS = tuple(f"{number:026}" for number in range(300))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis(["--appendonly", "yes", "--appendfsync", "always"]) as running:
        yield running


@pytest.fixture
def own(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        build(client)
        yield client


@pytest.fixture
async def counters(server: RedisServer) -> AsyncIterator[RedisCounters]:
    async with _running(server.url) as one:
        yield one


@asynccontextmanager
async def _running(url: str) -> AsyncIterator[RedisCounters]:
    new_counters = RedisCounters(url, INCARNATION, options=OPTIONS)
    await new_counters.start()
    new_counters.spend.may_reserve = True
    yield new_counters
    await new_counters.close()


def epoch_of(client: "redis.Redis") -> str:
    return str(client.info("replication")["master_replid"])


def build(client: "redis.Redis", epoch: str = "", *, is_complete: bool = True) -> None:
    """Count the tree from now on, with nothing spent. `epoch`: the server's, unless it is given."""
    book = SpendBook()
    book.build(epoch or epoch_of(client), 1, {})
    if is_complete:
        book.complete(book.epoch, {})
    client.hdel(PLAN.key, COMPLETE_FIELD)
    for name, value in book.fields().items():
        client.hset(PLAN.key, name, value)


def reserved(client: "redis.Redis", group: str = "root") -> int:
    packed: Any = client.hget(PLAN.key, f"r{group}")
    return unpack_amount(packed or pack_amount(0))


def reservations(client: "redis.Redis") -> dict[str, int]:
    """The amount that each call has reserved; markers are left out."""
    fields: Any = client.hgetall(PLAN.key)
    return {
        name[1:].decode(): unpack_amount(value) for name, value in fields.items() if name[:1] == b"p" and value != b""
    }


async def take(counters: RedisCounters, event_key: str, picos: int = 1, least: int = 0) -> SpendTaken:
    answer = await counters.spend.ask(PLAN, event_key, picos, least)
    assert isinstance(answer, SpendTaken), answer
    return answer


async def unavailable(counters: RedisCounters, event_key: str, picos: int = 5) -> str:
    answer = await counters.spend.ask(PLAN, event_key, picos, picos)
    assert isinstance(answer, SpendUnavailable), answer
    return answer.cause


async def reconnected(counters: RedisCounters, connections: int = 2) -> None:
    client = counters._nodes.of(0).client
    await eventually(lambda: client.connections >= connections and counters.available)


async def quiet(counters: RedisCounters) -> None:
    await eventually(lambda: counters.spend.pending_ends == 0)


async def test_calls_are_granted_what_is_left(own: "redis.Redis", counters: RedisCounters) -> None:
    one = await take(counters, KEYS[0], LIMB - 5, 3)
    other = await take(counters, KEYS[1], 9, 3)
    assert (one.picos, other.picos, other.is_counted) == (LIMB - 5, 5, True)
    assert await counters.spend.ask(PLAN, KEYS[2], 5, 1) == SpendHit(PLAN.bounds[1], GUESS_MS, False)
    counters.spend.end(one, 3)
    counters.spend.give_back(other)
    await quiet(counters)
    assert reserved(own) == 3
    assert counters.spend.open == {}


async def test_a_call_that_needs_much_does_not_refuse_those_that_need_little(
    own: "redis.Redis", counters: RedisCounters
) -> None:
    questions = [
        counters.spend.ask(PLAN, key, need, need) for key, need in zip(KEYS, (2 * LIMB, 5, LIMB), strict=False)
    ]
    answers = [await question for question in questions]
    assert [type(answer) for answer in answers] == [SpendHit, SpendTaken, SpendHit]
    assert reserved(own) == 5


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_calls_never_reserve_more_than_the_amount(
    server: RedisServer, own: "redis.Redis", counters: RedisCounters, seed: int
) -> None:
    """Calls of two workers ask for any amounts, wait a while, then end below what they got, or are given back."""
    source = random.Random(seed)
    other = RedisCounters(server.url, "f" * 16, options=OPTIONS)
    await other.start()
    other.spend.may_reserve = True
    admissions = 0

    async def call(key: str) -> None:
        nonlocal admissions
        spend = source.choice((counters, other)).spend
        least = source.randrange(LIMB // 100)
        await asyncio.sleep(source.random() / 20)
        answer = await spend.ask(PLAN, key, source.randrange(least, LIMB // 5), least)
        if not isinstance(answer, SpendTaken):  # unavailable: a busy machine was late
            return
        admissions += 1
        assert answer.picos >= least
        assert reserved(own) <= LIMB
        await asyncio.sleep(source.random() / 20)
        if source.random() < 0.3:
            spend.give_back(answer)
        else:
            spend.end(answer, source.randrange(answer.picos // 100 + 1))

    async def caller(number: int) -> None:
        for call_number in range(8):
            await call(f"{number:013}{call_number:013}")

    await asyncio.gather(*map(caller, range(200)))
    await quiet(counters)
    await quiet(other)
    assert admissions > 100
    assert reserved(own) == sum(reservations(own).values())
    await take(counters, "z" * 26, 2 * LIMB, 0)
    assert reserved(own) == LIMB, "the last room is granted, too"
    await other.close()


@pytest.mark.parametrize("seed", range(3))
async def test_calls_counts_and_withdrawals_never_draw_more_than_there_is(
    server: RedisServer, own: "redis.Redis", counters: RedisCounters, seed: int
) -> None:
    """Calls ask for any amounts and draw at most what they got; control counts their events and withdraws meanwhile."""
    ledger = Ledger(own, counters, random.Random(seed))
    async with aclosing(connect(server.url)) as connected:
        hashes = SpendHashes(connected)
        ledger.epoch = epoch_text(epoch_of(own), "EUR", with_draws=True)
        own.hset(PLAN.key, "e", ledger.epoch)
        for _ in range(2):  # while there is room for certain
            await ledger.withdraw(hashes)
        callers = asyncio.gather(*(ledger.call_often(number) for number in range(60)))
        while not callers.done():
            await ledger.withdraw(hashes)
            await ledger.count(hashes)
        await callers
        await quiet(counters)
        await ledger.count(hashes)
        assert ledger.drawn < DEPOSITED * LIMB
        rest = await counters.spend.ask(BALANCE_PLAN, "z" * 26, 2 * LIMB, 0)
        assert isinstance(rest, SpendTaken)
        assert rest.picos == DEPOSITED * LIMB - ledger.drawn, "the last room is granted, too"
    assert ledger.admissions
    assert ledger.withdrawals > 1


class Ledger:
    """Calls and withdrawals of one balance. `drawn`: picos of those that are committed."""

    def __init__(self, own: "redis.Redis", counters: RedisCounters, source: random.Random) -> None:
        self.own = own
        self.spend = counters.spend
        self.random = source
        self.epoch = ""
        self.drawn = self.admissions = self.withdrawals = 0
        self._counted_ms = 1
        self._committed: list[SpentEvent] = []

    async def call_often(self, number: int) -> None:
        for call_number in range(8):
            least = self.random.randrange(LIMB // 1000)
            most = self.random.randrange(least, LIMB // 20)
            answer = await self.spend.ask(BALANCE_PLAN, f"{number:013}{call_number:013}", most, least)
            if isinstance(answer, SpendTaken):  # else nothing is left, or a busy machine was late
                self.admissions += 1
                assert answer.picos >= least
                await asyncio.sleep(self.random.random() / 50)
                self._end(answer)

    def _end(self, call: SpendTaken) -> None:
        """End the call, and have its event committed before Redis knows of the end."""
        if self.random.random() < 0.3:
            self.spend.give_back(call)
            return
        picos = self.random.randrange(call.picos // 10 + 1)
        self._commit(call.event_key, ("team",), picos)
        self.spend.end(call, picos)

    async def withdraw(self, hashes: SpendHashes) -> None:
        picos = self.random.randrange(1, LIMB // 100)
        one = Withdrawal(
            tree_key=BALANCE_PLAN.key,
            currency="EUR",
            group_id="root",
            deposited=Decimal(DEPOSITED),
            amount=amount_of_picos(picos),
            key=f"w{self.withdrawals:025}",
        )
        if self.withdrawals < 20 and await hashes.withdraw(one):
            self.withdrawals += 1
            self._commit(one.key, (), picos)

    def _commit(self, key: str, groups: tuple[str, ...], picos: int) -> None:
        at_ms = self._counted_ms + 1
        units = picos * UNITS_PER_PICO
        self._committed.append(SpentEvent(at_ms, key, groups, units if groups else 0, balance="root*", draw=units))
        self.drawn += picos
        assert self.drawn <= DEPOSITED * LIMB

    async def count(self, hashes: SpendHashes) -> None:
        events, self._committed = self._committed, []
        after_ms = self._counted_ms
        self._counted_ms += 1
        tree = SpendTree("root", "ws", Enforcement.INDEPENDENT, "EUR")
        await hashes.count([TreeCount(tree, after_ms, after_ms + 1, events)], {"root": self.epoch})
        drawn: Any = self.own.hget(BALANCE_PLAN.key, "sroot*:B")
        assert unpack_spent(drawn or pack_spent(0)) + reserved(self.own, "root*") * UNITS_PER_PICO <= (
            DEPOSITED * LIMB * UNITS_PER_PICO
        )


async def test_a_worker_that_is_not_registered_reserves_nothing(own: "redis.Redis", counters: RedisCounters) -> None:
    counters.spend.may_reserve = False
    assert "does not know" in await unavailable(counters, KEYS[0])
    assert own.hgetall(PLAN.key).keys() == {b"e", b"c", b"h"}
    answer = await counters.spend.ask(SOFT_PLAN, KEYS[1], 5)
    assert isinstance(answer, SpendTaken)
    assert answer.is_counted


async def test_a_lost_or_incomplete_hash_is_unavailable(
    own: "redis.Redis", counters: RedisCounters, caplog: pytest.LogCaptureFixture
) -> None:
    await take(counters, KEYS[0], 7)
    own.delete(PLAN.key)
    assert "not counted" in await unavailable(counters, KEYS[1])
    build(own, is_complete=False)
    assert "may be missing" in await unavailable(counters, KEYS[2])
    own.hset(PLAN.key, COMPLETE_FIELD, f"{epoch_of(own)} nonce")
    assert "may be missing" in await unavailable(counters, KEYS[2])
    assert reservations(own) == {}
    build(own)
    await take(counters, KEYS[3], 7)
    assert [record.levelno for record in caplog.records if "HARD" in record.message] == [logging.ERROR]


async def test_what_another_epoch_has_counted_is_not_believed(own: "redis.Redis", counters: RedisCounters) -> None:
    build(own, EPOCH)
    assert "another server" in await unavailable(counters, KEYS[0])
    await quiet(counters)
    assert reservations(own) == {}
    assert reserved(own) == 0
    answers = await asyncio.gather(*(counters.spend.ask(PLAN, key, LIMB, LIMB) for key in KEYS[:2]))
    assert all(isinstance(answer, SpendUnavailable) for answer in answers), "a refusal is not believed either"


async def test_a_server_that_became_a_replica_and_a_primary_again(
    own: "redis.Redis", counters: RedisCounters, unused_tcp_port: int
) -> None:
    await take(counters, KEYS[0], 7)
    own.replicaof("127.0.0.1", str(unused_tcp_port))
    assert "refuses" in await unavailable(counters, KEYS[1])
    own.replicaof("NO", "ONE")
    await reconnected(counters)
    assert "another server" in await unavailable(counters, KEYS[2])
    await quiet(counters)
    assert reserved(own) == 7
    build(own)
    await take(counters, KEYS[3], 7)


async def test_a_late_take_is_unavailable_and_given_back(server: RedisServer, own: "redis.Redis") -> None:
    async with relay_to(server.socket_path) as relay, _running(relay.url) as late:
        await take(late, KEYS[0])
        relay.replies.clear()
        assert "in time" in await unavailable(late, KEYS[1])
        relay.replies.set()
        await quiet(late)
        assert reservations(own) == {KEYS[0]: 1}
        assert set(late.spend.open) == {KEYS[0]}


async def test_an_epoch_that_comes_late_is_asked_for_again(server: RedisServer, own: "redis.Redis") -> None:
    async with relay_to(server.socket_path) as relay, _running(relay.url) as late:
        await take(late, KEYS[0])
        relay.cut()
        await reconnected(late)
        assert (await take(late, KEYS[1], 7)).is_counted
        assert reserved(own) == 8


async def test_a_redis_that_starts_again_is_another_epoch(
    server: RedisServer, own: "redis.Redis", counters: RedisCounters
) -> None:
    await take(counters, KEYS[0], 7)
    server.kill()
    assert await unavailable(counters, KEYS[1])
    server.start()
    await reconnected(counters)
    with redis.Redis(unix_socket_path=str(server.socket_path)) as again:
        assert reservations(again) == {KEYS[0]: 7}, "it kept everything, and says so"
        assert "another server" in await unavailable(counters, KEYS[2])
        await quiet(counters)
        assert reservations(again) == {KEYS[0]: 7}
        build(again)
        await take(counters, KEYS[3], 7)


async def test_a_rebuild_puts_open_reservations_once(own: "redis.Redis", counters: RedisCounters) -> None:
    takes = [await take(counters, key, 5) for key in KEYS[:4]]
    soft = await counters.spend.ask(SOFT_PLAN, KEYS[4], 3)
    counters.spend.end(takes[0], 2)
    counters.spend.give_back(takes[1])
    await quiet(counters)
    own.hdel(PLAN.key, f"p{KEYS[2]}", *(f"r{group}" for group in PLAN.groups), f"p{KEYS[0]}", f"p{KEYS[4]}")
    own.hset(PLAN.key, "rroot", pack_amount(5))
    value = f"{epoch_of(own)} first"
    counters.spend.rebuild({PLAN.key: value})
    await eventually(lambda: counters.spend.rebuilt == {PLAN.key: value})
    expected = {KEYS[2]: 5, KEYS[3]: 5, KEYS[4]: 3}
    assert reservations(own) == expected
    assert reserved(own) == 13, "that of the one that was there is not raised twice"
    counters.spend.rebuild({PLAN.key: value})
    own.flushall()
    build(own)
    again = f"{epoch_of(own)} second"
    counters.spend.rebuild({PLAN.key: again})
    assert counters.spend.rebuilt == {}
    await eventually(lambda: counters.spend.rebuilt == {PLAN.key: again})
    assert reservations(own) == expected
    assert reserved(own) == reserved(own, "team") == 13
    counters.spend.end(takes[2], 2)
    assert isinstance(soft, SpendTaken)
    counters.spend.give_back(soft)
    await quiet(counters)
    assert reservations(own) == {KEYS[2]: 2, KEYS[3]: 5}
    counters.spend.rebuild({})
    assert counters.spend.rebuilt == {}


async def test_a_rebuild_waits_for_its_epoch(server: RedisServer, own: "redis.Redis", counters: RedisCounters) -> None:
    one = await take(counters, KEYS[0], 7)
    counters.spend.rebuild({PLAN.key: EPOCH, "tg:{other|group}": epoch_of(own)})
    await eventually(lambda: "tg:{other|group}" in counters.spend.rebuilt)
    assert PLAN.key not in counters.spend.rebuilt
    server.kill()
    server.start()
    with redis.Redis(unix_socket_path=str(server.socket_path)) as again:
        again.flushall()
        build(again)
        counters.spend.rebuild({PLAN.key: epoch_of(again)})
        await eventually(lambda: counters.spend.rebuilt == {PLAN.key: epoch_of(again)})
        assert reservations(again) == {KEYS[0]: 7}
        counters.spend.give_back(one)
        await quiet(counters)
        assert reserved(again) == 0


async def test_after_a_rebuild_replies_of_another_epoch_are_not_believed(
    server: RedisServer, own: "redis.Redis", counters: RedisCounters
) -> None:
    epoch = epoch_of(own)
    counters.spend.rebuild({PLAN.key: epoch})
    await eventually(lambda: counters.spend.rebuilt == {PLAN.key: epoch})
    await take(counters, KEYS[0], 7)
    server.kill()
    server.start()
    await reconnected(counters)
    with redis.Redis(unix_socket_path=str(server.socket_path)) as again:
        build(again)
        assert "another server" in await unavailable(counters, KEYS[1]), "this worker has not put its own there"
        counters.spend.rebuild({PLAN.key: epoch_of(again)})
        await eventually(lambda: counters.spend.rebuilt)
        await take(counters, KEYS[2], 7)
        await quiet(counters)
        assert reservations(again) == {KEYS[0]: 7, KEYS[2]: 7}


async def test_soft_limits_ask_for_no_epoch(own: "redis.Redis", counters: RedisCounters) -> None:
    def infos() -> int:
        return int(own.info("commandstats")["cmdstat_info"]["calls"])

    own.info()
    before = infos()
    for key in KEYS[:5]:
        assert isinstance(await counters.spend.ask(SOFT_PLAN, key, 1), SpendTaken)
    assert infos() == before + 1, "that of asking"
    for key in KEYS[5:9]:
        await take(counters, key)
    assert infos() <= before + 4, "once a second"


async def test_a_user_with_the_documented_rights_suffices(server: RedisServer, own: "redis.Redis") -> None:
    rights = "~tg:*", "+evalsha", "+eval", "+hmget", "+hget", "+hset", "+hdel", "+expire", "+time", "+info"
    administrator: Any = own
    administrator.execute_command("ACL", "SETUSER", "spender", "on", ">secret", *rights, "+select", "+ping")
    async with _running(f"unix://spender:secret@{server.socket_path}") as counters:
        one = await take(counters, KEYS[0], 5)
        counters.spend.rebuild({PLAN.key: epoch_of(own)})
        await eventually(lambda: counters.spend.rebuilt)
        counters.spend.end(one, 4)
        await quiet(counters)
        assert reserved(own) == 4
        administrator.execute_command("ACL", "SETUSER", "spender", "-info")
        await eventually(lambda: not counters._nodes.of(0).epoch.is_fresh)
        assert "in time" in await unavailable(counters, KEYS[1])
        await quiet(counters)
        assert reserved(own) == 4


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_calls_follow_a_slot_that_moves() -> None:
    with running_cluster(3, replicas=0, node_timeout_ms=PATIENT_MS) as cluster:
        async with _running(cluster.url) as counters:
            slot = slot_of(PLAN.key.encode())
            source = cluster.owner(slot)
            target = next(node for node in cluster.primaries if node is not source)
            with source.server.client() as client:
                build(client)
            await take(counters, KEYS[0], 5)
            cluster.move(slot, target)
            assert "another server" in await unavailable(counters, KEYS[1])
            await quiet(counters)
            with target.server.client() as client:
                assert reservations(client) == {KEYS[0]: 5}
                build(client, is_complete=False)
                counters.spend.rebuild({PLAN.key: epoch_of(client)})
                await eventually(lambda: counters.spend.rebuilt)
                build(client)
                await take(counters, KEYS[2], 5)
                assert reserved(client) == 10
