"""Control's client of what trees spend, on real Redis: one server of each version, a cluster, and sentinels."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
import redis

from control.edges.redis.client import connect
from control.edges.redis.spend.scripts import EVENTS_AT_ONCE, parts_of
from control.edges.redis.spend.spend_hashes import SpendHashes
from control.errors import SpendNotCountedError, UsageUnavailableError
from control.records.spend import AFTER_RESTORE, SpendTree, SpentEvent, TreeBuild, TreeCount
from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.spend.effective import SpendBound
from policy.spend.limits import SpendLimit
from policy.spend.spend_hash import (
    COMMITTED,
    Reserved,
    pack_amount,
    pack_reservation,
    spent_field,
    unpack_amount,
    unpack_spent,
)
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.redis_topologies import SEVERAL, Admin, documented_rules, running_redis

DAY_MS = 86_400_000
AT_MS = 20_000 * DAY_MS + 5
TREES = [SpendTree(f"grp_{n}", "ws", Enforcement.CASCADING, "EUR") for n in range(5)]
TREE = TREES[0]
LARGE = 123_456_789 * 10**22 + 987_654_321
Redises = tuple[SpendHashes, Admin]


@pytest.fixture(scope="module", params=[*REDIS_BINARIES, *SEVERAL])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, Admin]]:
    with running_redis(request.param) as one:
        yield one


@pytest.fixture
async def redises(running: tuple[str, Admin]) -> AsyncIterator[Redises]:
    url, admin = running
    for tree in TREES:
        admin.delete(tree.key)
    async with aclosing(connect(url)) as connected:
        yield SpendHashes(connected), admin


def event(number: int, at_ms: int = AT_MS, units: int = 1) -> SpentEvent:
    return SpentEvent(at_ms, f"key{number}", ("grp_child", TREE.root_id), units)


def spent(admin: Admin, group: str, unit: Unit = Unit.DAY) -> int:
    packed: Any = admin.hget(TREE.key, spent_field(group, unit, AT_MS))
    return unpack_spent(packed) if packed else 0


def count_of(*events: SpentEvent, after_ms: int = AT_MS - 10, through_ms: int = AT_MS + 10) -> TreeCount:
    return TreeCount(TREE, after_ms, through_ms, events)


async def test_trees_are_built_and_count_each_event_once(redises: Redises) -> None:
    hashes, admin = redises
    epochs = await hashes.epochs(TREES)
    counts = [TreeCount(tree, AT_MS - 10, AT_MS + 10, [event(1)] if tree == TREE else []) for tree in TREES]
    assert (await hashes.count(counts, epochs)).to_build == {tree.root_id for tree in TREES}, "nothing counts there"
    for tree in TREES:
        assert await hashes.build(tree, epochs[tree.root_id], TreeBuild(AT_MS - 10, {}))
    for _ in range(2):
        assert (await hashes.count(counts, epochs)).to_build == set()
    assert [spent(admin, group, unit) for group in ("grp_child", TREE.root_id) for unit in (Unit.DAY, Unit.MONTH)] == [
        1
    ] * 4


async def test_amounts_are_exact_beyond_the_numbers_of_lua(redises: Redises) -> None:
    hashes, admin = redises
    epochs = await hashes.epochs([TREE])
    field = spent_field("grp_child", Unit.DAY, AT_MS)
    assert await hashes.build(TREE, epochs[TREE.root_id], TreeBuild(AT_MS - 10, {field: LARGE}))
    events = [event(n, units=LARGE + n) for n in range(3 * EVENTS_AT_ONCE)]
    assert (await hashes.count([count_of(*events)], epochs)).to_build == set()
    total = sum(one.units for one in events)
    assert spent(admin, "grp_child") == LARGE + total
    assert spent(admin, TREE.root_id) == total


async def test_a_build_replaces_what_was_spent_and_keeps_reservations(redises: Redises) -> None:
    hashes, admin = redises
    epoch = (await hashes.epochs([TREE]))[TREE.root_id]
    reservation = pack_reservation(Reserved(5, "a" * 16, (TREE.root_id,)))
    admin.hset(TREE.key, mapping={"sgone:D1": b"", "pkey": reservation, f"r{TREE.root_id}": pack_amount(5)})
    assert await hashes.build(TREE, epoch, TreeBuild(AT_MS, {spent_field("grp_child", Unit.DAY, AT_MS): 7}))
    assert not await hashes.build(TREE, epoch, TreeBuild(AT_MS, {})), "as much is counted"
    assert not await hashes.build(TREE, epoch, TreeBuild(AT_MS - 1, {}))
    field = spent_field("grp_child", Unit.DAY, AT_MS)
    build = TreeBuild(AT_MS - 1, {field: 8}, fields_before=["sgone:D1", field])
    assert await hashes.build(TREE, "another-run EUR", build)
    assert spent(admin, "grp_child") == 8
    assert admin.hget(TREE.key, "pkey") == reservation
    assert not admin.hexists(TREE.key, "sgone:D1")
    assert admin.ttl(TREE.key) > 31 * 86_400


async def test_build_by_other_prices_takes_no_counted_event_back(redises: Redises) -> None:
    """The reservation of such an event is gone: another process may still know the prices of before."""
    hashes, _ = redises
    epoch = (await hashes.epochs([TREE]))[TREE.root_id]
    dearer = (await hashes.epochs([TREE._replace(prices="dearer")]))[TREE.root_id]
    assert await hashes.build(TREE, epoch, TreeBuild(AT_MS, {}))
    assert not await hashes.build(TREE, dearer, TreeBuild(AT_MS - 1, {}))
    assert await hashes.build(TREE, dearer, TreeBuild(AT_MS, {}))
    assert not await hashes.build(TREE, epoch, TreeBuild(AT_MS - 1, {}))
    assert await hashes.build(TREE, epoch, TreeBuild(AT_MS + 1, {}))


async def test_missed_events_and_another_currency_must_be_built(redises: Redises) -> None:
    hashes, _ = redises
    epochs = await hashes.epochs([TREE])
    assert await hashes.build(TREE, epochs[TREE.root_id], TreeBuild(AT_MS - 20, {}))
    assert (await hashes.count([count_of(event(1))], epochs)).to_build == {TREE.root_id}
    dollars = await hashes.epochs([TREE._replace(currency="USD")])
    late = [count_of(event(1), after_ms=AT_MS - 20)]
    assert (await hashes.count(late, dollars)).to_build == {TREE.root_id}
    assert (await hashes.count(late, epochs)).to_build == set()


async def test_a_build_among_thousands_of_reservations_ends_those_that_it_has(redises: Redises) -> None:
    """Each script does some of the work: Redis answers others between them."""
    hashes, admin = redises
    epoch = (await hashes.epochs([TREE]))[TREE.root_id]
    groups = ("grp_child", TREE.root_id)
    fields: dict[Any, Any] = {f"pkey{n}": pack_reservation(Reserved(2, "a" * 16, groups)) for n in range(12_000)}
    admin.hset(TREE.key, mapping={**fields, **{f"r{group}": pack_amount(24_000) for group in groups}, "sold:D1": b""})
    keys = [f"key{n}" for n in range(3, 12_000)]
    assert await hashes.build(TREE, epoch, TreeBuild(AT_MS, {"snew:D2": 1}, keys, ["sold:D1"]))
    reserves = await hashes.reserves(TREE)
    assert (set(reserves.reservations), reserves.reserved) == ({"key0", "key1", "key2"}, dict.fromkeys(groups, 6))
    assert reserves.spent_fields == ["snew:D2"]


async def test_a_hash_with_many_thousands_of_reservations_is_read_in_portions(redises: Redises) -> None:
    hashes, admin = redises
    fields: dict[Any, Any] = {f"pkey{n}": pack_reservation(Reserved(2, "a" * 16, ())) for n in range(40_000)}
    admin.hset(TREE.key, mapping=fields)
    reserves = await hashes.reserves(TREE)
    assert (len(reserves.reservations), reserves.is_of_one_moment) == (40_000, False)


async def test_a_reservation_ends_once(redises: Redises) -> None:
    hashes, admin = redises
    epoch = (await hashes.epochs([TREE]))[TREE.root_id]
    await hashes.build(TREE, epoch, TreeBuild(AT_MS, {}))
    groups = ("grp_child", TREE.root_id)
    admin.hset(TREE.key, "pkey1", pack_reservation(Reserved(10**12 + 3, "a" * 16, groups)))
    admin.hset(TREE.key, "pkey2", b"")
    for group in groups:
        admin.hset(TREE.key, f"r{group}", pack_amount(10**12 + 4))
    keys = ["key1", "key2", "key3"]
    assert await hashes.release(TREE, keys, AT_MS + 1) == 0, "what was read of the hash is lost"
    assert await hashes.release(TREE, keys, AT_MS) == 2
    assert await hashes.release(TREE, keys, AT_MS) == 0
    reserves = await hashes.reserves(TREE)
    assert (reserves.counted_ms, reserves.reservations, reserves.reserved) == (AT_MS, {}, dict.fromkeys(groups, 1))
    amount: Any = admin.hget(TREE.key, f"r{TREE.root_id}")
    assert unpack_amount(amount) == 1


@pytest.fixture
async def built(redises: Redises) -> tuple[SpendHashes, Admin, dict[str, str]]:
    """All trees, counted through AT_MS, and the text of `e` of each by its root."""
    hashes, admin = redises
    epochs = dict(await hashes.epochs(TREES))
    for tree in TREES:
        assert await hashes.build(tree, epochs[tree.root_id], TreeBuild(AT_MS, {}))
    return hashes, admin, epochs


Built = tuple[SpendHashes, Admin, dict[str, str]]


async def incomplete(hashes: SpendHashes, epochs: dict[str, str], tree: SpendTree = TREE) -> bool:
    """Return whether a count tells that reservations may be missing."""
    return tree.root_id in (await hashes.count([TreeCount(tree, AT_MS, AT_MS, [])], epochs)).incomplete


async def test_trees_wait_by_one_name_until_they_are_complete(built: Built) -> None:
    hashes, admin, epochs = built
    states = await hashes.begin_rebuilds(TREES, epochs)
    assert len(set(states.values())) == len(TREES)
    assert await hashes.begin_rebuilds(TREES, epochs) == states, "every process gets the same"
    epoch = epochs[TREE.root_id]
    assert states[TREE.root_id].split()[0] == epoch.split()[0]
    assert await incomplete(hashes, epochs)
    assert not await hashes.complete(TREE, epoch, "another state", [])
    assert not await hashes.complete(TREE, "another EUR ", states[TREE.root_id], [])
    assert await hashes.complete(TREE, epoch, states[TREE.root_id], [])
    assert not await incomplete(hashes, epochs)
    assert TREE.root_id not in await hashes.begin_rebuilds(TREES, epochs), "it misses nothing"
    assert epoch.split()[0] in (await hashes.server_epochs()).values()
    complete: Any = admin.hget(TREE.key, "h")
    assert complete.decode() == epoch.split()[0]
    await hashes.drop_complete([TREE.root_id])
    assert await incomplete(hashes, epochs)


async def test_wait_has_another_name_after_each_loss(built: Built) -> None:
    hashes, admin, epochs = built
    epoch = epochs[TREE.root_id]
    first = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
    admin.delete(TREE.key)
    assert not await hashes.complete(TREE, epoch, first, [])
    assert await hashes.begin_rebuilds([TREE], epochs) == {}, "it does not count"
    await hashes.build(TREE, epoch, TreeBuild(AT_MS, {}))
    second = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
    assert first != second
    admin.hset(TREE.key, "h", f"another-epoch {second.split()[1]}")
    assert (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id] != second, "another server's data"


async def test_other_prices_keep_what_is_known_of_reservations(built: Built) -> None:
    hashes, _, epochs = built
    state = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
    dearer = await hashes.epochs([TREE._replace(prices="dearer")])
    assert await hashes.build(TREE, dearer[TREE.root_id], TreeBuild(AT_MS, {}))
    assert not await hashes.complete(TREE, epochs[TREE.root_id], state, [])
    assert await hashes.complete(TREE, dearer[TREE.root_id], state, [])


async def test_after_a_restore_the_wait_says_so(built: Built) -> None:
    hashes, _, epochs = built
    state = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
    await hashes.complete(TREE, epochs[TREE.root_id], state, [])
    await hashes.forget([TREE])
    assert (await hashes.reserves(TREE)).counted_ms is None
    await hashes.build(TREE, epochs[TREE.root_id], TreeBuild(AT_MS, {}))
    assert await incomplete(hashes, epochs)
    state = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
    assert state.endswith(AFTER_RESTORE)
    assert await hashes.complete(TREE, epochs[TREE.root_id], state, [])


async def test_committed_events_are_reserved_where_they_are_missing(built: Built) -> None:
    hashes, admin, epochs = built
    state = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
    mine = pack_reservation(Reserved(7, "a" * 16, (TREE.root_id,)))
    admin.hset(TREE.key, mapping={"pkey1": mine, "pkey2": b"", f"r{TREE.root_id}": pack_amount(7)})
    events = [event(n, AT_MS + n, LARGE + 1) for n in range(2 * EVENTS_AT_ONCE + 1)]  # the first one is counted
    events.append(SpentEvent(AT_MS + 5, "free", (), 0))
    assert await hashes.complete(TREE, epochs[TREE.root_id], state, events)
    reserves = await hashes.reserves(TREE)
    picos = -(-(LARGE + 1) // 10**10)
    assert reserves.reservations.keys() == {f"key{n}" for n in range(1, 2 * EVENTS_AT_ONCE + 1)}
    assert reserves.reservations["key1"] == Reserved(7, "a" * 16, (TREE.root_id,))
    assert reserves.reservations["key2"] is None, "a marker stays"
    assert reserves.reservations["key3"] == Reserved(picos, COMMITTED, ("grp_child", TREE.root_id))
    count = 2 * EVENTS_AT_ONCE - 2
    assert reserves.reserved == {"grp_child": count * picos, TREE.root_id: count * picos + 7}


def bound(unit: Unit, group: str) -> SpendBound:
    return SpendBound(SpendLimit(unit, Decimal(5), "EUR"), TREE.root_id, group)


async def test_what_is_spent_and_reserved_is_read_at_the_later_of_both_clocks(redises: Redises) -> None:
    hashes, admin = redises
    bounds = [bound(Unit.DAY, TREE.root_id), bound(Unit.MONTH, TREE.root_id), bound(Unit.DAY, "grp_child")]
    with pytest.raises(SpendNotCountedError):
        await hashes.spend_of(bounds, TREE.key)
    later_ms = 40_000 * DAY_MS
    epoch = (await hashes.epochs([TREE]))[TREE.root_id]
    fields = {spent_field(TREE.root_id, unit, later_ms): 15 * 10**21 for unit in (Unit.DAY, Unit.MONTH)}
    await hashes.build(TREE, epoch, TreeBuild(later_ms, fields))
    admin.hset(TREE.key, f"r{TREE.root_id}", pack_amount(25 * 10**10))
    reading = await hashes.spend_of(bounds, TREE.key)
    assert reading.at_ms == later_ms
    assert [use.spent for use in reading.uses] == [Decimal("1.5"), Decimal("1.5"), 0]
    assert [use.reserved for use in reading.uses] == [Decimal("0.25"), Decimal("0.25"), 0]
    admin.hset(TREE.key, "e", "another-run EUR")
    with pytest.raises(SpendNotCountedError):
        await hashes.spend_of(bounds, TREE.key)


async def test_all_needs_no_command_that_is_not_documented() -> None:
    with private_redis() as server:
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            client.execute_command("ACL", "SETUSER", "tollgate", *documented_rules("tollgate"))
        async with aclosing(connect(f"unix://tollgate:PASSWORD@{server.socket_path}")) as connected:
            hashes = SpendHashes(connected)
            epochs = await hashes.epochs([TREE])
            await hashes.build(TREE, epochs[TREE.root_id], TreeBuild(AT_MS - 10, {}))
            assert (await hashes.count([count_of(event(1))], epochs)).to_build == set()
            assert await hashes.server_epochs()
            state = (await hashes.begin_rebuilds([TREE], epochs))[TREE.root_id]
            assert await hashes.complete(TREE, epochs[TREE.root_id], state, [event(2, AT_MS + 20)])
            await hashes.drop_complete([TREE.root_id])
            await hashes.forget([TREE])
            assert await hashes.build(TREE, epochs[TREE.root_id], TreeBuild(AT_MS, {}))
            assert await hashes.repair(TREE, (await hashes.reserves(TREE)).stamp, {TREE.root_id: 5})
            assert await hashes.release(TREE, ["key"], AT_MS) == 0
            await hashes.delete_spent(TREE, [spent_field(TREE.root_id, Unit.DAY, AT_MS)])
            assert (await hashes.spend_of([bound(Unit.DAY, TREE.root_id)], TREE.key)).uses[0].reserved > 0


async def test_without_redis_it_is_unavailable() -> None:
    async with aclosing(connect("redis://127.0.0.1:1")) as connected:
        with pytest.raises(UsageUnavailableError):
            await SpendHashes(connected).epochs([TREE])


def test_parts_of_a_count_follow_each_other_and_split_no_timestamp() -> None:
    events = [event(n, AT_MS + n // 3) for n in range(EVENTS_AT_ONCE * 2)]
    many = [event(n, AT_MS + 1_000) for n in range(EVENTS_AT_ONCE + 1)]
    parts = list(parts_of(count_of(*events, *many, through_ms=AT_MS + 2_000)))
    assert [one for part in parts for one in part.events] == [*events, *many]
    assert (parts[0].after_ms, parts[-1].through_ms) == (AT_MS - 10, AT_MS + 2_000)
    for part, following in pairwise(parts):
        assert part.through_ms == following.after_ms == part.events[-1].at_ms
        assert following.events[0].at_ms > part.through_ms
    assert all(len(part.events) <= EVENTS_AT_ONCE for part in parts[:-1])
