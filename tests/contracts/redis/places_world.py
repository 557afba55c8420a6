"""Workers of several machines with calls in flight, and what is true of them, beside what Redis may count.

The counters, their clients, the supervisors' care and the scripts are the real ones; the network and the time are the
test's (`places_network.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hiredis

from policy.limits.counter_layout import places_field
from policy.limits.effective import Plan
from policy.limits.in_flight.places import RENEWAL_S, SILENT_MS, Places, Says, unpacked
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.scripts import Script, Scripts
from proxy.edges.redis.supervisor.worker_places import LATE_COMMANDS_S, RETRY_S, WorkerPlaces
from tests.contracts.redis.counters_world import REDIS_CLOCK
from tests.contracts.redis.places_network import Link, LinkedLoop, Server
from tests.redis_server import RedisServer

SCRIPTS = Scripts.load(REDIS_CLOCK)
SILENT_S = SILENT_MS / 1000
JUMP_S = 50.0
"""The most that a group's time goes on between two writes of its places."""
RECONNECT_S = 2.5
"""The longest time until a client has noticed that its network is whole."""
TOLD_S = LATE_COMMANDS_S + 2 * RETRY_S + RECONNECT_S
LOCAL_REFUSAL_S = 0.1
ESTIMATE = Estimate(1)
Bucket = tuple[str, str]
"""A hash, and a group that it counts."""
Call = tuple[Taken, tuple[Bucket, ...]]


@dataclass(eq=False)
class Worker:
    """One worker process.

    `calls`: those in flight, each with the buckets that count it. `heard_s`: by bucket, when Redis last heard of it.
    `missing`: by bucket, how many of its calls Redis does not know of since it lost data.
    """

    name: str
    machine: "Machine"
    link: Link
    counters: RedisCounters
    calls: list[Call] = field(default_factory=list)
    heard_s: dict[Bucket, float] = field(default_factory=dict)
    missing: Counter[Bucket] = field(default_factory=Counter)
    is_alive: bool = True

    def in_flight(self, bucket: Bucket) -> int:
        return sum(bucket in buckets for _, buckets in self.calls)


@dataclass(eq=False)
class Machine:
    """One machine: its supervisor and its workers."""

    link: Link
    counters: RedisCounters
    places: WorkerPlaces
    care: "asyncio.Task[None]"
    workers: list[Worker] = field(default_factory=list)
    is_alive: bool = True


@dataclass(eq=False)
class Ghost:
    """Calls that are not in flight, and that Redis may count. `lasts`: until their worker has been silent."""

    worker: Worker
    bucket: Bucket
    number: int
    since_s: float
    lasts: bool = False
    silent_at_s: float | None = None


class World:
    """The machines, their Redis, and what is true of both. `repeats_refusals`: workers do, as in production."""

    def __init__(self, loop: LinkedLoop, redis_server: RedisServer, *, repeats_refusals: bool) -> None:
        self.loop = loop
        self.server = Server(redis_server, loop, self._ran)
        self.server.ask("FLUSHALL")
        self.repeats_refusals = repeats_refusals
        self.machines: list[Machine] = []
        self.workers: list[Worker] = []
        self.ghosts: list[Ghost] = []
        self.jumps: list[tuple[float, float]] = []
        """The times at which Redis' clock was stepped forward, and by how many seconds."""
        self.data_lost_s = 0.0
        self.restored: set[str] = set()
        """The workers of which a fail-over has brought back what was ended: they may have forgotten it."""
        self.unread: set[Bucket] = set()
        """The buckets that were not read since the clock was stepped back."""
        self.announced: dict[str, set[Bucket]] = {}
        self._names = 0
        self._by_name: dict[bytes, Worker] = {}

    @property
    def now_s(self) -> float:
        return self.loop.time()

    # --- processes ---

    async def add_machine(self, workers: int) -> None:
        link, counters = await self._process("supervisor")
        places = WorkerPlaces(counters.places.tell)
        machine = Machine(link, counters, places, asyncio.ensure_future(places.run()))
        self.machines.append(machine)
        for _ in range(workers):
            await self.add_worker(machine)

    async def add_worker(self, machine: Machine) -> None:
        link, counters = await self._process("worker")
        name = f"worker{self._names}"
        worker = Worker(name, machine, link, counters)

        def say(key: str, groups: Iterable[str], *, ended: bool) -> None:
            message = {"is": "places", "key": key, "groups": list(groups), "ended": ended}
            if machine.is_alive and worker.is_alive:
                machine.places.received(name, message)
            now = self.announced.setdefault(name, set())
            buckets = {(key, group) for group in groups}
            self.announced[name] = now - buckets if ended else now | buckets

        counters.places.announce = partial(say, ended=False)
        counters.places.withdraw = partial(say, ended=True)
        machine.workers.append(worker)
        self.workers.append(worker)
        self._by_name[name.encode()] = worker

    async def _process(self, kind: str) -> tuple[Link, RedisCounters]:
        self._names += 1
        name = f"{kind}{self._names}"
        link = self.loop.links[f"/{name}"] = Link(self.server, self.loop)
        options = CountersOptions(local_refusals=self.repeats_refusals, scripts=SCRIPTS)
        counters = RedisCounters(f"unix:///{name}", name, options=options)
        await counters.start()
        return link, counters

    async def kill(self, worker: Worker, *, arrives: bool) -> None:
        """Kill it without a word. `arrives`: what it has sent arrives a second later."""
        worker.link.cut(arrives=arrives)
        worker.is_alive = False
        self.workers.remove(worker)
        worker.machine.workers.remove(worker)
        for bucket in {bucket for _, buckets in worker.calls for bucket in buckets}:
            self.ghosts.append(Ghost(worker, bucket, worker.in_flight(bucket), self.now_s))
        self._begin_silence(worker)
        worker.calls.clear()
        if worker.machine.is_alive:
            worker.machine.places.died(worker.name)
        await asyncio.sleep(LATE_COMMANDS_S / 2)
        worker.link.deliver()
        await worker.counters.close()

    async def kill_machine(self, machine: Machine, *, arrives: bool) -> None:
        machine.is_alive = False
        machine.care.cancel()
        self.machines.remove(machine)
        machine.link.cut(arrives=arrives)
        for worker in list(machine.workers):
            await self.kill(worker, arrives=arrives)
        await machine.counters.close()

    async def retire(self, worker: Worker) -> None:
        """End its calls and have it exit."""
        for call in list(worker.calls):
            self.end(worker, call)
        self.workers.remove(worker)
        worker.machine.workers.remove(worker)
        await worker.counters.close()
        worker.is_alive = False
        worker.machine.places.died(worker.name)
        self._begin_silence(worker)

    def _begin_silence(self, worker: Worker) -> None:
        for ghost in self.ghosts:
            if ghost.worker is worker:
                ghost.since_s = self.now_s
                ghost.silent_at_s = None

    async def close(self) -> None:
        for machine in list(self.machines):
            await self.kill_machine(machine, arrives=False)
        self.server.close()

    # --- calls ---

    async def begin(self, numbers: Mapping[Worker, int], plan: Plan) -> dict[Worker, list[Any]]:
        """Begin calls at once. Returns each worker's answers, or errors."""

        async def of_one(worker: Worker, number: int) -> list[Any]:
            takes = (worker.counters.take(plan, ESTIMATE) for _ in range(number))
            return await asyncio.gather(*takes, return_exceptions=True)

        answers = await asyncio.gather(*(of_one(worker, number) for worker, number in numbers.items()))
        return dict(zip(numbers, answers, strict=True))

    def end(self, worker: Worker, call: Call, *, was_sent: bool = True) -> None:
        worker.calls.remove(call)
        take, buckets = call
        if not was_sent:
            worker.counters.give_back(take)
        elif take.place is not None:
            take.place.release()
        for bucket in buckets:
            self.ghosts.append(Ghost(worker, bucket, 1, self.now_s))

    # --- what is true ---

    def in_flight(self, bucket: Bucket) -> int:
        return sum(worker.in_flight(bucket) for worker in self.workers)

    def certain(self, bucket: Bucket) -> int:
        """The calls in flight that Redis must count."""
        return sum(worker.in_flight(bucket) - self._uncounted(worker, bucket) for worker in self.workers)

    def possible(self, bucket: Bucket) -> int:
        """The most calls that Redis may count."""
        self.ghosts = [ghost for ghost in self.ghosts if self._haunts(ghost)]
        return self.in_flight(bucket) + sum(ghost.number for ghost in self.ghosts if ghost.bucket == bucket)

    def _uncounted(self, worker: Worker, bucket: Bucket) -> int:
        calls = worker.in_flight(bucket)
        heard_s = worker.heard_s.get(bucket, 0.0)
        jumps_s = sum(by_s for at_s, by_s in self.jumps if at_s >= heard_s)
        if self.now_s - heard_s + jumps_s > SILENT_S - 0.01:
            return calls
        missing = min(calls, worker.missing[bucket])
        if missing and worker.link.is_healthy:
            since_s = max(self.data_lost_s, worker.link.healthy_since)
            assert self.now_s - since_s < RENEWAL_S + RECONNECT_S, f"{worker.name} has not said what it has"
        return missing

    def _haunts(self, ghost: Ghost) -> bool:
        """Return whether Redis may count it."""
        worker = ghost.worker
        if ghost.lasts and worker.is_alive:
            return True  # in its own takes; it says so in its next word
        if ghost.lasts or not (worker.is_alive or worker.machine.is_alive):
            return ghost.silent_at_s is None or self.now_s <= ghost.silent_at_s
        if not worker.is_alive:
            link = worker.machine.link
            if not link.is_healthy:
                return True
            if link.healthy_since - ghost.since_s > JUMP_S:  # the supervisor has given it up
                ghost.lasts = True
                return True
            return self.now_s - max(ghost.since_s, link.healthy_since) < TOLD_S
        if not worker.link.is_healthy:
            return True
        if worker.link.healthy_since + RECONNECT_S <= ghost.since_s:
            return self.now_s - ghost.since_s <= (LOCAL_REFUSAL_S if self.repeats_refusals else 0.0)
        return self.now_s - max(ghost.since_s, worker.link.healthy_since) < RENEWAL_S + RECONNECT_S

    # --- what happens to Redis ---

    def step_clock(self, by_s: float) -> None:
        self.server.stepped_ms += round(by_s * 1000)
        if by_s > 0:
            self.jumps.append((self.now_s, by_s))
        else:
            self.unread = {ghost.bucket for ghost in self.ghosts}

    def lose_data(self) -> None:
        """Empty Redis."""
        self.server.ask("FLUSHALL")
        self.data_lost_s = self.now_s
        for worker in self.workers:
            worker.missing = Counter(bucket for _, buckets in worker.calls for bucket in buckets)

    def copy(self) -> dict[bytes, bytes]:
        """Return the data, as a replica has it."""
        return {key: self.server.ask("DUMP", key) for key in self.server.ask("KEYS", "tg:*")}

    def fail_over_to(self, replica: Mapping[bytes, bytes]) -> None:
        """Replace the data by an older state. What was ended since then counts again."""
        self.lose_data()
        for key, data in replica.items():
            self.server.ask("RESTORE", key, 3_600_000, data)
            for bucket, places in self.places(key).items():
                for name, entry in places.entries.items():
                    worker = self._by_name[name.encode()]
                    self.restored.add(name)
                    self.ghosts.append(Ghost(worker, bucket, entry.count, self.now_s, lasts=True))
                    self._note_silence(bucket)

    def places(self, key: bytes) -> dict[Bucket, Places]:
        """Read the places of each group of a hash."""
        suffix = places_field("")
        fields = self.server.ask("HGETALL", key)
        pairs = zip(fields[::2], fields[1::2], strict=True)
        return {
            (key.decode(), name.decode().removesuffix(suffix)): unpacked(value)
            for name, value in pairs
            if name.decode().endswith(suffix)
        }

    # --- what Redis runs ---

    def _ran(self, command: list[bytes], reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            return
        if _is(command, SCRIPTS.places):
            self._heard_word(command[3].decode(), command[4:], is_written=reply > 0)
        elif _is(command, SCRIPTS.take):
            self._heard_take(command[3].decode(), command[4:], reply[1])

    def _heard_word(self, key: str, arguments: list[bytes], *, is_written: bool) -> None:
        values = arguments[1]
        worker = self._by_name[arguments[-1]]
        for place, group in enumerate(arguments[2:-1]):
            bucket = key, group.decode()
            worker.heard_s[bucket] = self.now_s
            if is_written:
                self._note_silence(bucket)
            if values[0] == Says.HOLDS.value and is_written:
                self.ghosts = [
                    one for one in self.ghosts if not (one.lasts and (one.worker, one.bucket) == (worker, bucket))
                ]
                calls = int.from_bytes(values[13 + 4 * place : 17 + 4 * place], "little")
                worker.missing[bucket] = max(0, worker.in_flight(bucket) - calls)

    def _heard_take(self, key: str, arguments: list[bytes], admitted: int) -> None:
        groups = arguments[1][6]
        worker = self._by_name.get(arguments[2 + groups][1:-1])
        for group in arguments[2 : 2 + groups]:
            bucket = key, group.decode()
            self._note_silence(bucket)
            if admitted and worker is not None:
                worker.heard_s[bucket] = self.now_s

    def _note_silence(self, bucket: Bucket) -> None:
        """Note that a bucket's time goes on. Where that waited for Redis' clock, silence begins anew."""
        is_first = bucket in self.unread
        self.unread.discard(bucket)
        for ghost in self.ghosts:
            if ghost.bucket == bucket:
                if is_first:
                    ghost.since_s = self.now_s
                    ghost.silent_at_s = None
                elif ghost.silent_at_s is None and self.now_s - ghost.since_s >= JUMP_S:
                    ghost.silent_at_s = self.now_s + SILENT_S - JUMP_S + 0.01


def _is(command: list[bytes], script: Script) -> bool:
    return command[0] in (b"EVALSHA", b"EVAL") and command[1] in (script.sha, script.text)
