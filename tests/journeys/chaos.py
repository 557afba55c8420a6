"""The chaos program: kills processes of the real product at random moments under load and accounts for every call.

`python -m tests.journeys.chaos --minutes 10 --seed 7` prints its progress and a verdict; it exits with 0 only
if it found no fault. In the first half Redis is not killed, and the day's usage must equal the events to the token. In
the second half every process may be killed.
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.journeys.billing_faults import REDIS_MAY_LOSE_S, Death
from tests.journeys.books import SLUG, Books, Comparison, create_groups
from tests.journeys.callers import Callers
from tests.journeys.chaos_program import Plan, Say, main, paused, send
from tests.journeys.networks import NETWORKS
from tests.journeys.product import OperatorClient, Product
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import answer_question
from tests.waiting import eventually

CALLERS = 10
WORKERS = 2
DRAIN_S = 60.0
PAUSE_S = 0.3, 2.5
"""Seconds between two disturbances, at least and at most."""
SETTLEMENT_DELAY_S = {"worker": 2.0, "supervisor": 4.0, "control": 0.0, "redis": 12.0}
"""Longest delay of settlements after each kind of disturbance, in seconds; one second if it is not listed."""
HOLDBACK_S = 2.0
SETTINGS = {"TOLLGATE_EVENT_HOLDBACK_S": str(HOLDBACK_S)}
LATE_REDIS = {"TOLLGATE_REDIS_TIMEOUT_S": "0.05"}
"""A short timeout: under load, Redis is often late, as it may be for operators."""
WITHOUT_REDIS_KILLS = ("worker", "worker", "supervisor", "control", "freeze", "stall", "restart")
ALL_KINDS = (*WITHOUT_REDIS_KILLS, "redis", "redis", "all", "all", "all twice", "stop cut short")


@dataclass
class Rig:
    """A product, its callers, and the operator's HTTP client."""

    product: Product
    operator: OperatorClient
    callers: Callers
    books: Books
    upstream: ScriptedUpstream
    worker_deaths: list[float] = field(default_factory=list)
    """Times at which workers were killed: they return no reservation whose reply from Redis was late."""

    @property
    def has_own_redis(self) -> bool:
        """True if the product runs its Redis itself, which then dies with all of it."""
        return not self.product.redis

    async def metrics(self) -> dict[str, float]:
        """The proxy's metrics, summed over labels."""
        async with self.callers.session.get(self.product.admin + "/metrics") as answer:
            text = await answer.text()
        values: dict[str, float] = defaultdict(float)
        for line in text.splitlines():
            if not line.startswith("#"):
                values[line.partition("{")[0].split(" ")[0]] += float(line.rpartition(" ")[2])
        return values

    async def drained(self) -> bool:
        """Return whether control has all events, and no journal of a dead worker is left."""
        try:
            pending = (await self.metrics())["tollgate_journal_pending_events"]
        except aiohttp.ClientError:
            return False
        root = Path(self.product.environment.get("TOLLGATE_JOURNAL_DIR") or self.product.data / "journal")
        journals = [path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return pending == 0 and len(journals) == WORKERS and sorted(journals) == sorted(self.product.incarnations())

    async def until(self, look: Callable[[], Awaitable[Any]], what: str, within_s: float = DRAIN_S) -> Any:
        async def look_or_fail() -> Any:
            with contextlib.suppress(aiohttp.ClientError, AssertionError):
                return await look()

        return await eventually(look_or_fail, lambda: f"{what}\n{self.product.log_tail()}", within_s, 0.1)


@contextlib.asynccontextmanager
async def running_rig(
    directory: Path, seed: int, settings: dict[str, str] | None = None, network: str = "direct"
) -> AsyncIterator[Rig]:
    """Start the product with one tree of groups, a key for each leaf, and idle callers."""
    upstream = ScriptedUpstream(default=answer_question, port=own_port())
    async with aiohttp.ClientSession() as session, NETWORKS[network](seed, directory) as ways:
        redis_url = await ways.redis_url()
        product = Product(directory / "data", WORKERS, SETTINGS | (settings or {}), redis_url=redis_url)
        await upstream.start()
        try:
            await asyncio.to_thread(product.start)
            created = await asyncio.to_thread(product.command, "workspace", "create", "acme", "--prefix", "acme")
            operator = OperatorClient(session, product, created["api_key"])
            groups, keys = await create_groups(operator, await ways.upstream(upstream.url))
            front = await ways.front(product.proxy)
            callers = Callers(session, lambda: front, SLUG, keys, random.Random(seed))
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
            yield Rig(product, operator, callers, Books(operator, groups, began), upstream)
        finally:
            await asyncio.to_thread(product.kill)
            await upstream.stop()


@dataclass
class FaultInjector:
    """Kills and pauses random processes, as the seed decides, and records what it did."""

    rig: Rig
    rng: random.Random
    say: Say
    counts: Counter[str] = field(default_factory=Counter)
    deaths: list[Death] = field(default_factory=list)
    disturbances: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each disturbance that delayed settlements."""

    async def inject(self, seconds: float, kinds: Sequence[str]) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            kind = self.rng.choice(kinds)
            self.counts[kind] += 1
            began = time.time()
            self.say(f"{kind} (calls so far: {len(self.rig.callers.records)})")
            await getattr(self, "_" + kind.replace(" ", "_"))()
            self.disturbances.append((began, time.time() + SETTLEMENT_DELAY_S.get(kind, 1.0)))

    def _kill_one(self, command_part: str) -> None:
        """Kill one process, if it runs. It may be dead and not restarted yet."""
        send(self.rig.product.processes(command_part)[:1], signal.SIGKILL)

    async def _worker(self) -> None:
        workers = self.rig.product.processes("proxy.worker")
        self.rig.worker_deaths.append(time.time())
        send(self.rng.sample(workers, min(len(workers), self.rng.choice((1, 1, 2)))), signal.SIGKILL)

    async def _supervisor(self) -> None:
        self.rig.worker_deaths.append(time.time())  # its workers end with it
        self._kill_one("-m proxy --")

    async def _control(self) -> None:
        self._kill_one("-m control --")

    async def _redis(self) -> None:
        self._record_redis_death()
        self._kill_one("redis-server")

    async def _freeze(self) -> None:
        """Pause Redis for a moment. Sometimes kill a worker that waits for it."""
        with paused(self.rig.product.processes("redis-server")):
            await asyncio.sleep(self.rng.choice((0.03, 0.3, 1.5)))
            if self.rng.random() < 0.3:
                await self._worker()
            await asyncio.sleep(self.rng.choice((0.03, 0.3)))

    async def _stall(self) -> None:
        """Pause a worker, the supervisor or control for a moment."""
        command_part = self.rng.choice(("proxy.worker", "-m proxy --", "-m control --"))
        with paused(self.rig.product.processes(command_part)[: self.rng.choice((1, 2))]):
            await asyncio.sleep(self.rng.choice((0.1, 0.5, 2.0)))

    async def _restart(self) -> None:
        """Stop in order and start again. Nothing may be lost."""
        assert await asyncio.to_thread(self.rig.product.stop) == 0
        await asyncio.to_thread(self.rig.product.start)

    async def _all(self) -> None:
        self._record_redis_death()
        self.rig.worker_deaths.append(time.time())
        await asyncio.to_thread(self.rig.product.kill)
        await asyncio.to_thread(self.rig.product.start)

    async def _all_twice(self) -> None:
        """Kill all processes, and kill them again while they start."""
        self._record_redis_death()
        product = self.rig.product
        await asyncio.to_thread(product.kill)
        self.rig.worker_deaths.append(time.time())
        product.launch()
        await asyncio.sleep(self.rng.uniform(0, 3))
        self._record_redis_death()
        await self._all()

    async def _stop_cut_short(self) -> None:
        self.rig.product.up.terminate()
        await asyncio.sleep(self.rng.uniform(0, 1.5))
        await self._all()

    def _record_redis_death(self) -> None:
        """Record a death of Redis. Settlements that earlier disturbances delayed may be lost with it."""
        now = since = time.time()
        for began, ended in reversed(self.disturbances):
            if ended >= since - REDIS_MAY_LOSE_S:
                since = min(since, began)
        self.deaths.append(Death(now, since))


async def run(directory: Path, plan: Plan, say: Say) -> list[str]:
    """Run the plan; return the faults."""
    async with running_rig(directory, plan.seed, LATE_REDIS | plan.settings, plan.network) as rig:
        injector = FaultInjector(rig, random.Random(plan.seed + 1), say)
        faults: list[str] = []
        for kinds in (WITHOUT_REDIS_KILLS, ALL_KINDS if rig.has_own_redis else (*WITHOUT_REDIS_KILLS, "all")):
            rig.callers.start(CALLERS)
            await injector.inject(plan.seconds / 2, kinds)
            await rig.callers.stop()
            faults += await verdict(rig, injector.deaths, say)
            injector.disturbances.clear()  # everything is settled by now
        say("kill and restart all once more: a replay must settle nothing twice")
        await injector._all()
        faults += await verdict(rig, injector.deaths, say)
        say(summary(rig, injector))
        return faults


async def verdict(rig: Rig, deaths: Sequence[Death], say: Say = print) -> list[str]:
    """The faults in events and counters, once all events and settlements have arrived."""
    await rig.until(rig.drained, "all events are shipped")
    await asyncio.sleep(HOLDBACK_S + 1)

    async def compared() -> Comparison:
        return await Comparison.of(rig.books, rig.callers.records, deaths, rig.worker_deaths)

    async def accounted() -> bool:
        return not (await compared()).faults

    with contextlib.suppress(AssertionError):
        await rig.until(accounted, "events and settlements arrive")
    comparison = await rig.until(compared, "events and usage are listed")
    say(comparison.summary)
    return list(comparison.faults)


def summary(rig: Rig, injector: FaultInjector) -> str:
    records = rig.callers.records
    ends = Counter(call.code or call.broken_by or ("answered" if call.tokens else "cut") for call in records)
    return f"{len(records)} calls: {dict(ends)}; kills and pauses: {dict(injector.counts)}"


if __name__ == "__main__":
    sys.exit(main(run, __doc__, name="chaos", counted="call"))
