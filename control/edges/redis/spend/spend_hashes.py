"""The hashes that count what trees spend, as control uses them: counts, builds and sweeps them, reads what is spent.

What is here counts only in the epoch of the server that has it: after a restart or a fail-over it may be older than
what the database has, so it is built again.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from redis.exceptions import RedisError

from control.edges.redis.spend.scripts import (
    EVENTS_AT_ONCE,
    begin_arguments,
    build_arguments,
    complete_arguments,
    count_arguments,
    in_portions,
    parts_of,
    repair_arguments,
    script,
    withdraw_arguments,
)
from control.errors import SpendNotCountedError, UsageUnavailableError
from control.records.spend import (
    AFTER_RESTORE,
    BalanceReading,
    SpendReading,
    SpendTree,
    SpendUse,
    SpentEvent,
    TreeBuild,
    TreeCount,
    TreeDraws,
    TreeReserves,
    TreesToMend,
    Withdrawal,
)
from policy.spend.balances import balance_name
from policy.spend.effective import SpendBound
from policy.spend.key_names import key_of_name
from policy.spend.spend_hash import (
    COMPLETE_FIELD,
    COUNTED_FIELD,
    DRAWS_COUNTED,
    EPOCH_FIELD,
    KEYS_COUNTED,
    REPAIR_FIELD,
    RESERVATION_PREFIX,
    RESERVED_PREFIX,
    SPENT_PREFIX,
    amount_of_picos,
    epoch_text,
    spend_key,
    spent_amount,
    spent_field,
    unpack_amount,
    unpack_reservation,
    unpack_spent,
)
from runtime.redis.routed import Keyed, RoutedRedis

_RUNS_AT_ONCE = 50
"""Runs of a script in one round trip: a few milliseconds of work."""
_FIELDS_AT_ONCE = 500
_FIELDS_OF_ONE_MOMENT = 4096
"""About the fields that are read by one command, in some milliseconds."""
_DEADLINE_S = 2.0
"""The time after which callers get an error instead of waiting on."""
_BUILD_DEADLINE_S = 10.0


class SpendHashes:
    """Control's client. Raises `UsageUnavailableError` while Redis does not answer."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis
        self._count, self._build, self._release, self._repair = map(script, ("count", "build", "release", "repair"))
        self._begin, self._complete, self._withdraw = map(script, ("begin", "complete", "withdraw"))

    async def epochs(self, trees: Sequence[SpendTree]) -> Mapping[str, str]:
        """The text that the field `e` of each tree must be for what its hash has to count, by the tree's root."""
        async with _redis_errors(_DEADLINE_S):
            epochs = await self._epochs([tree.key for tree in trees])
        return {
            tree.root_id: epoch_text(
                *(epochs[tree.key], tree.currency, tree.prices), with_draws=tree.is_hard, with_keys=tree.counts_keys
            )
            for tree in trees
        }

    async def server_epochs(self) -> Mapping[str, str]:
        """The epoch of each server that holds data, by its name."""
        async with _redis_errors(_DEADLINE_S):
            servers = await self._redis.data_servers()
            answers = [await server.redis.info("replication") for server in servers]
        return {server.name: _epoch(answer) for server, answer in zip(servers, answers, strict=True)}

    async def count(self, counts: Sequence[TreeCount], epochs: Mapping[str, str]) -> TreesToMend:
        """Count these events, each once, however often this is done."""
        to_build: set[str] = set()
        incomplete: set[str] = set()
        parts = list(chain.from_iterable(map(parts_of, counts)))
        for start in range(0, len(parts), _RUNS_AT_ONCE):
            some = parts[start : start + _RUNS_AT_ONCE]
            runs = [(part.tree.key, count_arguments(epochs[part.tree.root_id], part)) for part in some]
            async with _redis_errors(_DEADLINE_S):
                replies = await self._count.run_each(self._redis, runs)
            for part, reply in zip(some, replies, strict=True):
                if reply != 1:
                    (to_build if reply < 0 else incomplete).add(part.tree.root_id)
        return TreesToMend(frozenset(to_build), frozenset(incomplete))

    async def build(self, tree: SpendTree, epoch: str, build: TreeBuild) -> bool:
        """Set what the tree's groups have spent. False if as much or more was counted meanwhile."""
        arguments = build_arguments(epoch, build)
        async with _redis_errors(_BUILD_DEADLINE_S):
            if not await self._build.run(self._redis, [tree.key], *arguments):
                return False
        # Apart, as there may be thousands: until then they are in both sums. If this stops, the sweep does it.
        await self.release(tree, build.counted_keys, build.through_ms)
        return True

    async def begin_rebuilds(self, trees: Sequence[SpendTree], epochs: Mapping[str, str]) -> dict[str, str]:
        """Have these trees wait for reservations that may be missing. Returns the states that name these waits, which
        may have begun before, by root; none for trees that do not count by their epoch, or miss nothing."""
        states: dict[str, str] = {}
        for some in in_portions(trees, _RUNS_AT_ONCE):
            runs = [(tree.key, begin_arguments(epochs[tree.root_id], secrets.token_hex(8))) for tree in some]
            async with _redis_errors(_DEADLINE_S):
                replies = await self._begin.run_each(self._redis, runs)
            states |= {tree.root_id: reply.decode() for tree, reply in zip(some, replies, strict=True) if reply}
        return states

    async def complete(self, tree: SpendTree, epoch: str, state: str, events: Sequence[SpentEvent]) -> bool:
        """Reserve what these committed events cost where they are not counted and have no reservation. Then all
        reservations of the tree are there. False if it does not wait by this epoch and state any more."""
        portions: list[Sequence[SpentEvent]] = [*in_portions(events, EVENTS_AT_ONCE)] or [()]
        for number, some in enumerate(portions, 1):
            next_state = state if number < len(portions) else epoch.partition(" ")[0]
            arguments = complete_arguments(epoch, state, next_state, some)
            async with _redis_errors(_DEADLINE_S):
                if not await self._complete.run(self._redis, [tree.key], *arguments):
                    return False
        return True

    async def drop_complete(self, root_ids: Sequence[str]) -> None:
        """Have reservations of these trees count as missing."""
        for some in in_portions(root_ids, _RUNS_AT_ONCE):
            async with _redis_errors(_DEADLINE_S):
                await self._redis.each([_deleting_of(spend_key(id), [COMPLETE_FIELD]) for id in some])

    async def latest_counted_ms(self, trees: Sequence[SpendTree]) -> int:
        """The latest time through which events of one of these trees are counted; 0 if there are none."""
        latest_ms = 0
        for start in range(0, len(trees), _RUNS_AT_ONCE):
            async with _redis_errors(_DEADLINE_S):
                times = await self._redis.each([_counted(tree.key) for tree in trees[start : start + _RUNS_AT_ONCE]])
            latest_ms = max(latest_ms, *(int(at_ms or 0) for at_ms in times))
        return latest_ms

    async def forget(self, trees: Sequence[SpendTree]) -> None:
        """Have nothing count in these trees until they are built, after the database was set back. Reservations stay,
        and some may be missing."""
        for some in in_portions(trees, _RUNS_AT_ONCE):
            async with _redis_errors(_DEADLINE_S):
                await self._redis.each([command for tree in some for command in _forgetting(tree.key)])

    async def reserves(self, tree: SpendTree) -> TreeReserves:
        """Read the whole hash: by one command, so that all is of one moment, unless that would hold Redis up."""
        async with _redis_errors(_BUILD_DEADLINE_S):
            cursor, fields = await self._redis.at(tree.key, _scanning(tree.key, 0, _FIELDS_OF_ONE_MOMENT))
            is_of_one_moment = not cursor
            while cursor:
                cursor, more = await self._redis.at(tree.key, _scanning(tree.key, cursor, _FIELDS_AT_ONCE))
                fields |= more
        reserves = _reserves({name.decode(): value for name, value in fields.items()})
        return reserves._replace(is_of_one_moment=is_of_one_moment)

    async def repair(self, tree: SpendTree, stamp: bytes, drifts: Mapping[str, int]) -> bool:
        """Add these to what groups have reserved (10^-12). False if another repair was made since that stamp."""
        arguments = repair_arguments(stamp, secrets.token_hex(8), drifts)
        async with _redis_errors(_DEADLINE_S):
            return bool(await self._repair.run(self._redis, [tree.key], *arguments))

    async def release(self, tree: SpendTree, event_keys: Sequence[str], counted_ms: int) -> int:
        """Delete the reservations of these events, with what they hold of their groups. Returns how many there were.

        Deletes none if less than through `counted_ms` is counted: the hash was lost since that was read.
        """
        count = 0
        names = [f"{RESERVATION_PREFIX}{key}" for key in event_keys]
        for some in in_portions(names, EVENTS_AT_ONCE):
            async with _redis_errors(_DEADLINE_S):
                count += await self._release.run(self._redis, [tree.key], counted_ms, *some)
        return count

    async def delete_spent(self, tree: SpendTree, fields: Sequence[str]) -> None:
        """Delete what was spent in windows that are past."""
        for some in in_portions(fields, _FIELDS_AT_ONCE):
            async with _redis_errors(_DEADLINE_S):
                await self._redis.at(tree.key, _deleting(tree.key, some))

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        """A `SpendSource`. What is reserved may be of calls that have ended and are not counted yet."""
        async with _redis_errors(_DEADLINE_S):
            epoch = (await self._epochs([key]))[key]
            counted, time = await self._redis.each([_counted(key), (key, lambda server: server.time())])
            if at_ms is None:
                at_ms = _moment_ms(counted, time)
            names = [spent_field(bound.counting_group, bound.limit.unit, at_ms) for bound in bounds]
            names += [f"{RESERVED_PREFIX}{bound.counting_group}" for bound in bounds]
            state, *values = await self._redis.at(key, lambda server: server.hmget(key, [EPOCH_FIELD, *names]))
        if bounds and not (state or b"").startswith(epoch_text(epoch, bounds[0].limit.currency).encode()):
            raise SpendNotCountedError
        if any(key_of_name(bound.counting_group) for bound in bounds) and KEYS_COUNTED.encode() not in state:
            raise SpendNotCountedError
        return SpendReading(at_ms, tuple(map(_use, values[: len(bounds)], values[len(bounds) :])))

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        """A `BalanceSource`."""
        name = balance_name(group_id)
        names = [EPOCH_FIELD, COUNTED_FIELD, spent_field(name, None, 0), f"{RESERVED_PREFIX}{name}"]
        async with _redis_errors(_DEADLINE_S):
            epoch = (await self._epochs([tree_key]))[tree_key]
            read = await self._redis.at(tree_key, lambda server: server.hmget(tree_key, names))
        state, counted, drawn, reserved = read
        if not _counts_draws(state, epoch, currency):
            raise SpendNotCountedError
        return BalanceReading(
            counted_ms=int(counted),
            drawn=unpack_spent(drawn) if drawn else 0,
            reserved=unpack_amount(reserved) if reserved else 0,
        )

    async def drawn_of(self, tree: SpendTree, group_ids: Sequence[str]) -> TreeDraws:
        """Read what is drawn from the balances of these groups, by one command. Raises `SpendNotCountedError`."""
        names = [EPOCH_FIELD, COUNTED_FIELD, *(spent_field(balance_name(id), None, 0) for id in group_ids)]
        async with _redis_errors(_DEADLINE_S):
            epoch = (await self._epochs([tree.key]))[tree.key]
            state, counted, *values = await self._redis.at(tree.key, lambda server: server.hmget(tree.key, names))
        if not _counts_draws(state, epoch, tree.currency):
            raise SpendNotCountedError
        drawn = {id: unpack_spent(value) if value else 0 for id, value in zip(group_ids, values, strict=True)}
        return TreeDraws(int(counted), drawn)

    async def count_anew(self, tree: SpendTree) -> None:
        """Have nothing count in this tree until it is built. Its reservations stay, and are all there as before."""
        async with _redis_errors(_DEADLINE_S):
            await self._redis.at(tree.key, _deleting(tree.key, [EPOCH_FIELD]))

    async def withdraw(self, withdrawal: Withdrawal) -> bool:
        """Reserve a withdrawal: see `BalanceSource`."""
        key = withdrawal.tree_key
        async with _redis_errors(_DEADLINE_S):
            epoch = (await self._epochs([key]))[key]
            arguments = withdraw_arguments(epoch, withdrawal)
            reply = await self._withdraw.run(self._redis, [key], *arguments)
            # A server that started between the two still had the epoch of before, and may lack reservations.
            epoch_then = (await self._epochs([key]))[key]
        if reply < 0 or epoch_then != epoch:
            raise SpendNotCountedError
        return bool(reply)

    async def give_back_withdrawal(self, tree_key: str, key: str) -> None:
        """A `BalanceSource`."""
        async with _redis_errors(_DEADLINE_S):
            await self._release.run(self._redis, [tree_key], 0, f"{RESERVATION_PREFIX}{key}")

    async def _epochs(self, keys: Sequence[str]) -> dict[str, str]:
        """The epoch of the server of each key. Asks each server once."""
        by_server: dict[str, list[str]] = {}
        for key in keys:
            by_server.setdefault((await self._redis.owner(key)).name, []).append(key)
        firsts = [of_server[0] for of_server in by_server.values()]
        answers = await self._redis.each([(key, lambda server: server.info("replication")) for key in firsts])
        return {
            key: _epoch(answer)
            for of_server, answer in zip(by_server.values(), answers, strict=True)
            for key in of_server
        }


def _counted(key: str) -> Keyed:
    return key, lambda server: server.hget(key, COUNTED_FIELD)


def _epoch(answer: Mapping[str, Any]) -> str:
    """The epoch of a server: another one after each start and each promotion."""
    return str(answer["master_replid"])


def _counts_draws(state: bytes | None, epoch: str, currency: str) -> bool:
    text = (state or b"").decode()
    return text.startswith(epoch_text(epoch, currency)) and text.endswith(DRAWS_COUNTED)


def _forgetting(key: str) -> tuple[Keyed, Keyed]:
    return _deleting_of(key, [EPOCH_FIELD]), (key, lambda server: server.hset(key, COMPLETE_FIELD, AFTER_RESTORE))


def _scanning(key: str, cursor: int, count: int) -> Callable[[Any], Any]:
    return lambda server: server.hscan(key, cursor, count=count)


def _deleting_of(key: str, fields: Sequence[str]) -> Keyed:
    return key, _deleting(key, fields)


def _deleting(key: str, fields: Sequence[str]) -> Callable[[Any], Any]:
    return lambda server: server.hdel(key, *fields)


def _moment_ms(counted: bytes | None, time: tuple[int, int]) -> int:
    return max(int(time[0]) * 1000 + int(time[1]) // 1000, int(counted or 0))


def _use(spent: bytes | None, reserved: bytes | None) -> SpendUse:
    return SpendUse(
        spent=spent_amount(spent) if spent else amount_of_picos(0),
        reserved=amount_of_picos(unpack_amount(reserved) if reserved else 0),
    )


def _reserves(fields: Mapping[str, bytes]) -> TreeReserves:
    counted = fields.get(COUNTED_FIELD)
    return TreeReserves(
        counted_ms=None if counted is None or EPOCH_FIELD not in fields else int(counted),
        stamp=fields.get(REPAIR_FIELD, b""),
        reservations={
            name[1:]: unpack_reservation(value) for name, value in fields.items() if name[0] == RESERVATION_PREFIX
        },
        reserved={name[1:]: unpack_amount(value) for name, value in fields.items() if name[0] == RESERVED_PREFIX},
        spent_fields=[name for name in fields if name[0] == SPENT_PREFIX],
    )


@asynccontextmanager
async def _redis_errors(within_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise UsageUnavailableError from error
