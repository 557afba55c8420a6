"""The latest figures of deployments by machine: in Redis, so that several control processes agree, or in this process.

Each process also keeps what it heard itself: while Redis is away or after it lost its data, that is what it knows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from redis.exceptions import RedisError

from control.records.loads import HEALTH_LASTS_MS, Heard, Load, sum_of
from policy.deployment_load import DeploymentLoad
from runtime.log_lines import OutageLog, cause_of
from runtime.redis.routed import Keyed, RoutedRedis

_MACHINES = "tg:load:machines"
"""The hash of each machine's last report, in Redis' milliseconds."""
_BATCH = 50
"""Deployments that one round trip reads or writes: a millisecond or two of work."""
_DEADLINE_S = 0.5
_PAUSE_S = 1.0
_EXPIRY_S = 7 * 86_400
"""The expiry of the figures of a deployment that no machine reports any more."""
_SWEEP_MS = 10_000.0
log = logging.getLogger(__name__)
ByMachine = dict[str, Heard]


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


class LocalLoadBook:
    """The reports that this process received. Only tests replace `now_ms`."""

    def __init__(self, now_ms: Callable[[], float] = _monotonic_ms) -> None:
        self._now_ms = now_ms
        self._machines: dict[str, float] = {}
        self._loads: dict[str, dict[str, tuple[DeploymentLoad, float]]] = {}
        self._swept_ms = now_ms()

    async def report(self, machine: str, loads: Sequence[DeploymentLoad]) -> None:
        now_ms = self._now_ms()
        self._machines[machine] = now_ms
        for load in loads:
            self._loads.setdefault(load.deployment_id, {})[machine] = (load, now_ms)
        if now_ms - self._swept_ms > _SWEEP_MS:
            self._swept_ms = now_ms
            self._forget_silent_machines(now_ms)

    async def loads(self, deployment_ids: Sequence[str]) -> Mapping[str, Load]:
        return {id: sum_of(self.heard(id).values()) for id in deployment_ids if id in self._loads}

    def heard(self, deployment_id: str) -> ByMachine:
        now_ms = self._now_ms()
        return {
            machine: Heard(load, now_ms - at_ms, now_ms - self._machines.get(machine, at_ms))
            for machine, (load, at_ms) in self._loads.get(deployment_id, {}).items()
        }

    def _forget_silent_machines(self, now_ms: float) -> None:
        silent = {machine for machine, at_ms in self._machines.items() if now_ms - at_ms > HEALTH_LASTS_MS}
        self._machines = {machine: at_ms for machine, at_ms in self._machines.items() if machine not in silent}
        for id, by_machine in list(self._loads.items()):
            self._loads[id] = {
                machine: (load, at_ms)
                for machine, (load, at_ms) in by_machine.items()
                if machine not in silent and now_ms - at_ms < _EXPIRY_S * 1000
            }
            if not self._loads[id]:
                del self._loads[id]


class RedisLoadBook:
    """The reports that all processes received. While Redis does not answer, those of this process; tries Redis again
    each second."""

    def __init__(self, redis: RoutedRedis, local: LocalLoadBook | None = None) -> None:
        self._redis = redis
        self._local = local or LocalLoadBook()
        self._pause_until_s = float("-inf")
        self._outage = OutageLog(log)

    async def report(self, machine: str, loads: Sequence[DeploymentLoad]) -> None:
        await self._local.report(machine, loads)
        await self._try(lambda: self._write(machine, loads))

    async def loads(self, deployment_ids: Sequence[str]) -> Mapping[str, Load]:
        shared = await self._try(lambda: self._read(deployment_ids)) or {}
        sums: dict[str, Load] = {}
        for id in deployment_ids:
            reports = _newest(shared.get(id, {}), self._local.heard(id))
            if reports:
                sums[id] = sum_of(reports.values())
        return sums

    async def _try(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, or None while Redis does not answer."""
        if time.monotonic() < self._pause_until_s:
            return None
        try:
            async with asyncio.timeout(_DEADLINE_S):
                result = await work()
        except (RedisError, OSError, TimeoutError) as error:
            self._pause_until_s = time.monotonic() + _PAUSE_S
            self._outage.begins(
                f"Deployments' loads are not shared ({cause_of(error)}). Each control process shows what it heard"
                " itself. Check the Redis server, TOLLGATE_REDIS_URL and the permissions of its user."
            )
            return None
        self._outage.ends("Deployments' loads are shared again.")
        return result

    async def _write(self, machine: str, loads: Sequence[DeploymentLoad]) -> None:
        now_ms = await self._time_ms()
        for start in range(0, max(len(loads), 1), _BATCH):
            commands = [_setting(_MACHINES, machine, str(now_ms).encode())]
            for load in loads[start : start + _BATCH]:
                key = _key(load.deployment_id)
                commands += [_setting(key, machine, _encoded(load, now_ms)), _expiring(key)]
            await self._redis.each(commands)

    async def _read(self, deployment_ids: Sequence[str]) -> dict[str, ByMachine]:
        now_ms = await self._time_ms()
        machines = await self._heard_machines(now_ms)
        reports: dict[str, ByMachine] = {}
        for start in range(0, len(deployment_ids), _BATCH):
            ids = deployment_ids[start : start + _BATCH]
            for id, fields in zip(ids, await self._redis.each([_reading(_key(id)) for id in ids]), strict=True):
                reports[id] = await self._read_one(id, fields, machines, now_ms)
        return reports

    async def _read_one(
        self, deployment_id: str, fields: Mapping[bytes, bytes], machines: Mapping[str, int], now_ms: int
    ) -> ByMachine:
        """The figures by machine. Deletes those of machines that have been silent for long."""
        names = [machine.decode() for machine in fields]
        reports = {
            name: _decoded(deployment_id, text, now_ms, machines.get(name, 0))
            for name, text in zip(names, fields.values(), strict=True)
        }
        silent = [machine for machine, one in reports.items() if one.machine_age_ms > HEALTH_LASTS_MS]
        if silent:
            await self._delete(_key(deployment_id), silent)
        return reports

    async def _heard_machines(self, now_ms: int) -> dict[str, int]:
        """The time of each machine's last report. Forgets those that have been silent for long.

        After Redis' clock was set back these are all; who reports still is known again with its next report.
        """
        (fields,) = await self._redis.each([_reading(_MACHINES)])
        times = {machine.decode(): int(at_ms) for machine, at_ms in fields.items()}
        silent = [machine for machine, at_ms in times.items() if abs(now_ms - at_ms) > HEALTH_LASTS_MS]
        if silent:
            await self._delete(_MACHINES, silent)
        return {machine: at_ms for machine, at_ms in times.items() if machine not in silent}

    async def _delete(self, key: str, machines: Sequence[str]) -> None:
        await self._redis.at(key, lambda server: server.hdel(key, *machines))

    async def _time_ms(self) -> int:
        """Read the time of one and the same server of a cluster, so that all processes measure ages by one clock."""
        seconds, microseconds = await self._redis.at(_MACHINES, lambda server: server.time())
        return int(seconds) * 1000 + int(microseconds) // 1000


def _key(deployment_id: str) -> str:
    return f"tg:load:deployment:{deployment_id}"


def _setting(key: str, machine: str, text: bytes) -> Keyed:
    return key, lambda server: server.hset(key, machine, text)


def _expiring(key: str) -> Keyed:
    return key, lambda server: server.expire(key, _EXPIRY_S)


def _reading(key: str) -> Keyed:
    return key, lambda server: server.hgetall(key)


def _newest(*sources: ByMachine) -> ByMachine:
    """The latest report of each machine, from whichever source."""
    newest: ByMachine = {}
    for machine, report in _items(sources):
        if machine not in newest or report.age_ms < newest[machine].age_ms:
            newest[machine] = report
    return newest


def _items(sources: Iterable[ByMachine]) -> Iterable[tuple[str, Heard]]:
    return (item for source in sources for item in source.items())


def _encoded(load: DeploymentLoad, now_ms: int) -> bytes:
    figures = (load.in_flight, load.queued, load.parked, load.last_request_at_ms)
    return orjson.dumps([now_ms, load.model_id, *figures, load.healthy, load.unhealthy])


def _decoded(deployment_id: str, text: bytes, now_ms: int, machine_ms: int) -> Heard:
    at_ms, model_id, in_flight, queued, parked, last_ms, healthy, unhealthy = orjson.loads(text)
    load = DeploymentLoad(model_id, deployment_id, in_flight, queued, parked, last_ms, tuple(healthy), tuple(unhealthy))
    return Heard(load, abs(now_ms - at_ms), abs(now_ms - max(machine_ms, at_ms)))
