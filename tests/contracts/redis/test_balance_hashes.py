"""Prepaid balances in the hashes of trees, as control counts, reads and withdraws them, on real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import pytest

from control.edges.redis.client import connect
from control.edges.redis.spend.scripts import EVENTS_AT_ONCE
from control.edges.redis.spend.spend_hashes import SpendHashes
from control.errors import SpendNotCountedError, UsageUnavailableError
from control.records.spend import BalanceReading, SpendTree, SpentEvent, TreeBuild, TreeCount, Withdrawal
from policy.limits.groups import Enforcement
from policy.spend.balances import balance_name
from policy.spend.spend_hash import COMMITTED, Reserved, epoch_text, pack_amount, pack_reservation, spent_field
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.redis_topologies import SEVERAL, Admin, documented_rules, running_redis

AT_MS = 20_000 * 86_400_000 + 5
TREE = SpendTree("grp_0", "ws", Enforcement.CASCADING, "EUR", is_hard=True)
OWNER = "grp_child"
NAME = balance_name(OWNER)
PICOS_OF_1 = 10**12
UNITS_OF_1 = 10**22
UNITS_PER_PICO = 10**10


class Hash:
    """The hash of one tree, whole and counted through AT_MS, in which a group has a balance."""

    def __init__(self, hashes: SpendHashes, admin: Admin, epoch: str) -> None:
        self.hashes = hashes
        self.admin = admin
        self.epoch = epoch

    async def complete(self, events: Sequence[SpentEvent] = ()) -> None:
        states = await self.hashes.begin_rebuilds([TREE], {TREE.root_id: self.epoch})
        assert await self.hashes.complete(TREE, self.epoch, states[TREE.root_id], events)

    async def count(self, *events: SpentEvent, through_ms: int) -> None:
        counted = await self.hashes.count([TreeCount(TREE, AT_MS, through_ms, events)], {TREE.root_id: self.epoch})
        assert not counted.to_build

    async def withdraw(self, amount: str, key: str = "withdrawn", deposited: str = "1") -> bool:
        return await self.hashes.withdraw(withdrawal(amount, key, deposited))

    async def reading(self) -> BalanceReading:
        return await self.hashes.balance_of(TREE.key, "EUR", OWNER)

    async def reservations(self) -> Mapping[str, Reserved | None]:
        return (await self.hashes.reserves(TREE)).reservations


def withdrawal(amount: str, key: str = "withdrawn", deposited: str = "1", currency: str = "EUR") -> Withdrawal:
    return Withdrawal(
        tree_key=TREE.key,
        currency=currency,
        group_id=OWNER,
        deposited=Decimal(deposited),
        amount=Decimal(amount),
        key=key,
    )


def draw(
    number: int, units: int, *, at_ms: int = AT_MS + 1, groups: Sequence[str] = (OWNER, TREE.root_id)
) -> SpentEvent:
    """An event that costs as much as it draws."""
    return SpentEvent(at_ms, f"key{number}", groups, units if groups else 0, balance=NAME, draw=units)


@pytest.fixture(scope="module", params=[*REDIS_BINARIES, *SEVERAL])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, Admin]]:
    with running_redis(request.param) as one:
        yield one


@pytest.fixture
async def built(running: tuple[str, Admin]) -> AsyncIterator[Hash]:
    """A hash that may miss reservations."""
    url, admin = running
    admin.delete(TREE.key)
    async with aclosing(connect(url)) as connected:
        hashes = SpendHashes(connected)
        epoch = (await hashes.epochs([TREE]))[TREE.root_id]
        assert await hashes.build(TREE, epoch, TreeBuild(AT_MS, {}))
        yield Hash(hashes, admin, epoch)


@pytest.fixture
async def whole(built: Hash) -> Hash:
    await built.complete()
    return built


async def test_draws_are_counted_once_and_exactly(whole: Hash) -> None:
    large = 123_456_789 * UNITS_OF_1 + 987_654_321
    draws = [draw(n, large + n, at_ms=AT_MS + 1 + n) for n in range(2 * EVENTS_AT_ONCE + 1)]
    for _ in range(2):
        await whole.count(*draws, through_ms=AT_MS + 10_000)
    total = sum(one.draw for one in draws)
    assert await whole.reading() == BalanceReading(counted_ms=AT_MS + 10_000, drawn=total, reserved=0)


async def test_draw_is_not_the_cost(whole: Hash) -> None:
    """The one is priced at the commit, the other by the prices of now."""
    events = [
        draw(1, 7)._replace(units=9),
        draw(2, 5, groups=()),
        SpentEvent(AT_MS + 1, "key3", (OWNER,), 3),
        SpentEvent(AT_MS + 1, "key4", (OWNER,), 3, balance=NAME, draw=0),
    ]
    await whole.count(*events, through_ms=AT_MS + 1)
    spent = (await whole.hashes.reserves(TREE)).spent_fields
    assert sorted(field.rpartition(":")[0] for field in spent) == sorted(
        ["s" + NAME] + ["s" + OWNER] * 2 + ["s" + TREE.root_id] * 2
    )
    assert (await whole.reading()).drawn == 12


async def test_build_sets_what_is_drawn(whole: Hash) -> None:
    await whole.count(draw(1, 7), through_ms=AT_MS + 1)
    field = spent_field(NAME, None, 0)
    dearer = (await whole.hashes.epochs([TREE._replace(prices="dearer")]))[TREE.root_id]
    assert await whole.hashes.build(TREE, dearer, TreeBuild(AT_MS + 1, {field: 8}, fields_before=[field]))
    assert await whole.reading() == BalanceReading(counted_ms=AT_MS + 1, drawn=8, reserved=0)


async def test_what_counts_anew_is_not_built_by_a_process_that_has_counted_less(whole: Hash) -> None:
    """The events between have no reservation any more, so the tree would admit calls for what they have drawn."""
    field = spent_field(NAME, None, 0)
    await whole.count(draw(1, 7), through_ms=AT_MS + 2)
    await whole.hashes.count_anew(TREE)
    assert not await whole.hashes.build(TREE, whole.epoch, TreeBuild(AT_MS, {}, fields_before=[field]))
    with pytest.raises(SpendNotCountedError):
        await whole.reading()
    assert await whole.hashes.build(TREE, whole.epoch, TreeBuild(AT_MS + 2, {field: 8}, fields_before=[field]))
    assert (await whole.reading()).drawn == 8
    assert await whole.withdraw("0.1"), "its reservations were never missing"


async def test_what_is_not_counted_here_is_not_read(whole: Hash) -> None:
    with pytest.raises(SpendNotCountedError):
        await whole.hashes.balance_of(TREE.key, "USD", OWNER)
    assert (await whole.hashes.balance_of(TREE.key, "EUR", "grp_other")).drawn == 0
    whole.admin.hset(TREE.key, "e", epoch_text(whole.epoch.split()[0], "EUR"))
    with pytest.raises(SpendNotCountedError):
        await whole.reading()
    whole.admin.hset(TREE.key, "e", "another-epoch EUR +")
    with pytest.raises(SpendNotCountedError):
        await whole.reading()
    whole.admin.delete(TREE.key)
    with pytest.raises(SpendNotCountedError):
        await whole.reading()


async def test_hash_of_a_control_of_before_balances_is_built_again(whole: Hash) -> None:
    """It has built the hash by its own text of `e`, and has counted on without draws."""
    await whole.count(draw(1, 7), through_ms=AT_MS + 1)
    older = epoch_text(whole.epoch.split()[0], "EUR")
    assert await whole.hashes.build(TREE, older, TreeBuild(AT_MS + 1, {}, fields_before=[spent_field(NAME, None, 0)]))
    counted = await whole.hashes.count([TreeCount(TREE, AT_MS + 1, AT_MS + 2, [])], {TREE.root_id: whole.epoch})
    assert counted.to_build == {TREE.root_id}
    assert await whole.hashes.build(TREE, whole.epoch, TreeBuild(AT_MS + 1, {spent_field(NAME, None, 0): 7}))
    assert (await whole.reading()).drawn == 7
    assert await whole.withdraw("0.1"), "its reservations were never missing"


async def test_missing_reservations_of_draws_are_made(built: Hash) -> None:
    events = [
        draw(1, 5 * UNITS_PER_PICO)._replace(units=2),
        draw(2, 2 * UNITS_PER_PICO)._replace(units=5 * UNITS_PER_PICO - 1),
        draw(3, 1, groups=()),
        SpentEvent(AT_MS + 1, "key4", (OWNER,), 3),
        SpentEvent(AT_MS + 1, "free", (), 0, balance=NAME),
    ]
    await built.complete(events)
    assert await built.reservations() == {
        "key1": Reserved(5, COMMITTED, (OWNER, TREE.root_id, NAME)),
        "key2": Reserved(5, COMMITTED, (OWNER, TREE.root_id, NAME)),
        "key3": Reserved(1, COMMITTED, (NAME,)),
        "key4": Reserved(1, COMMITTED, (OWNER,)),
    }
    assert (await built.reading()).reserved == 11
    await built.count(*events, through_ms=AT_MS + 1)
    assert await built.reservations() == {}
    reading = await built.reading()
    assert (reading.drawn, reading.reserved) == (7 * UNITS_PER_PICO + 1, 0)


async def test_withdrawal_is_reserved_until_it_is_counted(whole: Hash) -> None:
    assert await whole.withdraw("0.4")
    assert await whole.reservations() == {"withdrawn": Reserved(4 * PICOS_OF_1 // 10, COMMITTED, (NAME,))}
    assert await whole.withdraw("0.4"), "the same again is one"
    assert (await whole.reading()).reserved == 4 * PICOS_OF_1 // 10
    withdrawn = SpentEvent(AT_MS + 1, "withdrawn", (), 0, balance=NAME, draw=4 * UNITS_OF_1 // 10)
    await whole.count(withdrawn, through_ms=AT_MS + 1)
    assert await whole.reading() == BalanceReading(AT_MS + 1, drawn=4 * UNITS_OF_1 // 10, reserved=0)
    assert not await whole.withdraw("0.600000000001", "more")
    assert await whole.withdraw("0.6", "rest")
    assert not await whole.withdraw("0.000000000001", "nothing is left")


async def test_withdrawal_leaves_what_calls_have_reserved_and_drawn(whole: Hash) -> None:
    await whole.count(draw(1, UNITS_OF_1 // 2 + 1), through_ms=AT_MS + 1)
    whole.admin.hset(TREE.key, "pcall", pack_reservation(Reserved(7, "a" * 16, (OWNER, NAME))))
    whole.admin.hset(TREE.key, f"r{NAME}", pack_amount(7))
    assert not await whole.withdraw("0.499999999993"), "a pico is drawn as soon as it is begun"
    assert await whole.withdraw("0.499999999992")
    assert (await whole.reading()).reserved == PICOS_OF_1 // 2 - 1


async def test_more_than_is_there_leaves_no_room_whatever_it_is_drawn_by(whole: Hash) -> None:
    await whole.count(draw(1, 2 * UNITS_OF_1), through_ms=AT_MS + 1)
    assert not await whole.withdraw("0.000000000001")
    assert await whole.withdraw("0.000000000001", deposited="2.000000000001"), "it was topped up"


async def test_withdrawals_at_once_take_no_more_than_there_is(whole: Hash) -> None:
    outcomes = await asyncio.gather(*(whole.withdraw("0.3", f"key{n}") for n in range(8)))
    assert sorted(outcomes) == [False] * 5 + [True] * 3
    assert (await whole.reading()).reserved == 9 * PICOS_OF_1 // 10


async def test_withdrawal_that_is_given_back_leaves_nothing(whole: Hash) -> None:
    assert await whole.withdraw("1")
    for _ in range(2):
        await whole.hashes.give_back_withdrawal(TREE.key, "withdrawn")
    assert await whole.reservations() == {}
    assert (await whole.reading()).reserved == 0
    assert await whole.withdraw("1", "another")


async def test_nothing_is_withdrawn_while_reservations_may_be_missing(built: Hash) -> None:
    async def refused(one: Withdrawal) -> bool:
        with pytest.raises(SpendNotCountedError):
            await built.hashes.withdraw(one)
        return await built.reservations() == {}

    assert await refused(withdrawal("0.1"))
    await built.hashes.begin_rebuilds([TREE], {TREE.root_id: built.epoch})
    assert await refused(withdrawal("0.1"))
    await built.complete()
    assert await refused(withdrawal("0.1", currency="USD"))
    assert await built.withdraw("0.1", "withdrawn")
    await built.hashes.give_back_withdrawal(TREE.key, "withdrawn")
    built.admin.hset(TREE.key, "e", "another-epoch EUR +")
    built.admin.hset(TREE.key, "h", "another-epoch")
    assert await refused(withdrawal("0.1"))
    built.admin.delete(TREE.key)
    assert await refused(withdrawal("0.1"))


async def test_withdrawal_from_a_server_that_starts_meanwhile_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data that it has loaded says that it is in the epoch of before, and may lack reservations."""
    with private_redis() as server, server.client() as admin:
        async with aclosing(connect(server.url)) as connected:
            hashes = SpendHashes(connected)
            epoch = (await hashes.epochs([TREE]))[TREE.root_id]
            assert await hashes.build(TREE, epoch, TreeBuild(AT_MS, {}))
            await Hash(hashes, admin, epoch).complete()
            read_epochs = hashes._epochs

            async def and_become_another(keys: Sequence[str]) -> dict[str, str]:
                epochs = await read_epochs(keys)
                admin.replicaof("127.0.0.1", "1")
                admin.replicaof("NO", "ONE")
                return epochs

            monkeypatch.setattr(hashes, "_epochs", and_become_another)
            with pytest.raises(SpendNotCountedError):
                await hashes.withdraw(withdrawal("0.1"))


async def test_withdrawals_need_no_command_that_is_not_documented() -> None:
    with private_redis() as server, server.client() as client:
        administrator: Any = client
        administrator.execute_command("ACL", "SETUSER", "tollgate", *documented_rules("tollgate"))
        async with aclosing(connect(f"unix://tollgate:PASSWORD@{server.socket_path}")) as connected:
            hashes = SpendHashes(connected)
            epoch = (await hashes.epochs([TREE]))[TREE.root_id]
            await hashes.build(TREE, epoch, TreeBuild(AT_MS, {}))
            own = Hash(hashes, administrator, epoch)
            await own.complete()
            assert await own.withdraw("1")
            assert (await own.reading()).reserved == PICOS_OF_1
            await hashes.give_back_withdrawal(TREE.key, "withdrawn")
            assert (await own.reading()).reserved == 0


async def test_without_redis_balances_are_unavailable() -> None:
    async with aclosing(connect("redis://127.0.0.1:1")) as connected:
        hashes = SpendHashes(connected)
        with pytest.raises(UsageUnavailableError):
            await hashes.withdraw(withdrawal("1"))
        with pytest.raises(UsageUnavailableError):
            await hashes.balance_of(TREE.key, "EUR", OWNER)
