"""The hashes that count what trees spend, as control uses them: counts, builds and sweeps them, reads what is spent.

What is here counts only under the run id of the server that has it: after a restart or a fail-over it may be older
than what the database has, so it is built again.

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
    build_arguments,
    count_arguments,
    in_portions,
    parts_of,
    repair_arguments,
    script,
)
from control.errors import SpendNotCountedError, UsageUnavailableError
from control.records.spend import SpendReading, SpendTree, SpendUse, TreeBuild, TreeCount, TreeReserves
from policy.spend.effective import SpendBound
from policy.spend.spend_hash import (
    COUNTED_FIELD,
    EPOCH_FIELD,
    REPAIR_FIELD,
    RESERVATION_PREFIX,
    RESERVED_PREFIX,
    SPENT_PREFIX,
    amount_of_picos,
    epoch_text,
    spent_amount,
    spent_field,
    unpack_amount,
    unpack_reservation,
)
from runtime.redis.routed import Keyed, RoutedRedis

_RUNS_AT_ONCE = 50
"""Runs of a script in one round trip: a few milliseconds of work."""
_FIELDS_AT_ONCE = 500
_DEADLINE_S = 2.0
"""The time after which callers get an error instead of waiting on."""
_BUILD_DEADLINE_S = 10.0


class SpendHashes:
    """Control's client. Raises `UsageUnavailableError` while Redis does not answer."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis
        self._count, self._build, self._release, self._repair = map(script, ("count", "build", "release", "repair"))

    async def epochs(self, trees: Sequence[SpendTree]) -> Mapping[str, str]:
        """The text that the field `e` of each tree must be for what its hash has to count, by the tree's root."""
        async with _redis_errors():
            run_ids = await self._run_ids([tree.key for tree in trees])
        return {tree.root_id: epoch_text(run_ids[tree.key], tree.currency, tree.prices) for tree in trees}

    async def count(self, counts: Sequence[TreeCount], epochs: Mapping[str, str]) -> set[str]:
        """Count these events, each once, however often this is done. Returns the roots of trees that must be built:
        nothing counts there, or earlier events are not counted."""
        to_build: set[str] = set()
        parts = list(chain.from_iterable(map(parts_of, counts)))
        for start in range(0, len(parts), _RUNS_AT_ONCE):
            some = parts[start : start + _RUNS_AT_ONCE]
            runs = [(part.tree.key, count_arguments(epochs[part.tree.root_id], part)) for part in some]
            async with _redis_errors():
                replies = await self._count.run_each(self._redis, runs)
            to_build |= {part.tree.root_id for part, reply in zip(some, replies, strict=True) if reply < 0}
        return to_build

    async def build(self, tree: SpendTree, epoch: str, build: TreeBuild) -> bool:
        """Set what the tree's groups have spent. False if as much or more was counted meanwhile."""
        arguments = build_arguments(epoch, build)
        async with _redis_errors(_BUILD_DEADLINE_S):
            return bool(await self._build.run(self._redis, [tree.key], *arguments))

    async def latest_counted_ms(self, trees: Sequence[SpendTree]) -> int:
        """The latest time through which events of one of these trees are counted; 0 if there are none."""
        latest_ms = 0
        for start in range(0, len(trees), _RUNS_AT_ONCE):
            async with _redis_errors():
                times = await self._redis.each([_counted(tree.key) for tree in trees[start : start + _RUNS_AT_ONCE]])
            latest_ms = max(latest_ms, *(int(at_ms or 0) for at_ms in times))
        return latest_ms

    async def forget(self, trees: Sequence[SpendTree]) -> None:
        """Have nothing count in these trees until they are built. Reservations stay."""
        for start in range(0, len(trees), _RUNS_AT_ONCE):
            async with _redis_errors():
                await self._redis.each([_forgetting(tree.key) for tree in trees[start : start + _RUNS_AT_ONCE]])

    async def reserves(self, tree: SpendTree) -> TreeReserves:
        """Read the whole hash by one command, so that all is of one moment."""
        async with _redis_errors(_BUILD_DEADLINE_S):
            fields = await self._redis.at(tree.key, lambda server: server.hgetall(tree.key))
        return _reserves({name.decode(): value for name, value in fields.items()})

    async def repair(self, tree: SpendTree, stamp: bytes, drifts: Mapping[str, int]) -> bool:
        """Add these to what groups have reserved (10^-12). False if another repair was made since that stamp."""
        arguments = repair_arguments(stamp, secrets.token_hex(8), drifts)
        async with _redis_errors():
            return bool(await self._repair.run(self._redis, [tree.key], *arguments))

    async def release(self, tree: SpendTree, event_keys: Sequence[str]) -> int:
        """Delete the reservations of these events, with what they hold of their groups. Returns how many there were."""
        count = 0
        names = [f"{RESERVATION_PREFIX}{key}" for key in event_keys]
        for some in in_portions(names, _FIELDS_AT_ONCE):
            async with _redis_errors():
                count += await self._release.run(self._redis, [tree.key], *some)
        return count

    async def delete_spent(self, tree: SpendTree, fields: Sequence[str]) -> None:
        """Delete what was spent in windows that are past."""
        for some in in_portions(fields, _FIELDS_AT_ONCE):
            async with _redis_errors():
                await self._redis.at(tree.key, _deleting(tree.key, some))

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        """A `SpendSource`. What is reserved may be of calls that have ended and are not counted yet."""
        async with _redis_errors():
            run_id = (await self._run_ids([key]))[key]
            counted, time = await self._redis.each([_counted(key), (key, lambda server: server.time())])
            if at_ms is None:
                at_ms = _moment_ms(counted, time)
            names = [spent_field(bound.counting_group, bound.limit.unit, at_ms) for bound in bounds]
            names += [f"{RESERVED_PREFIX}{bound.counting_group}" for bound in bounds]
            state, *values = await self._redis.at(key, lambda server: server.hmget(key, [EPOCH_FIELD, *names]))
        if bounds and not (state or b"").startswith(epoch_text(run_id, bounds[0].limit.currency).encode()):
            raise SpendNotCountedError
        return SpendReading(at_ms, tuple(map(_use, values[: len(bounds)], values[len(bounds) :])))

    async def _run_ids(self, keys: Sequence[str]) -> dict[str, str]:
        """The run id of the server of each key. Asks each server once."""
        by_server: dict[str, list[str]] = {}
        for key in keys:
            by_server.setdefault((await self._redis.owner(key)).name, []).append(key)
        firsts = [of_server[0] for of_server in by_server.values()]
        answers = await self._redis.each([(key, lambda server: server.info("server")) for key in firsts])
        return {
            key: str(answer["run_id"])
            for of_server, answer in zip(by_server.values(), answers, strict=True)
            for key in of_server
        }


def _counted(key: str) -> Keyed:
    return key, lambda server: server.hget(key, COUNTED_FIELD)


def _forgetting(key: str) -> Keyed:
    return key, lambda server: server.hdel(key, EPOCH_FIELD)


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
async def _redis_errors(within_s: float = _DEADLINE_S) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise UsageUnavailableError from error
