"""The program that proves HARD limits: it kills processes of two machines under odd load and adds up what is billed.

`python -m tests.journeys.hard_chaos.run --minutes 15 --seed 7` exits with 0 only if no limit was exceeded by anything,
nothing stayed reserved, and what was left of each limit and balance could be used.
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
from redis.exceptions import RedisError

from tests.journeys.chaos_program import Plan, Say, main, paused, send
from tests.journeys.hard_chaos.books import (
    DEAREST_INPUT,
    DEAREST_OUTPUT,
    EVER,
    PER_CALL,
    SLUGS,
    HardBooks,
    HardLimit,
    faults_of_events,
    faults_of_limits,
    window_costs,
)
from tests.journeys.hard_chaos.callers import CallShape, OddCallers
from tests.journeys.hard_chaos.machines import SecondMachine, flush
from tests.journeys.hard_chaos.orders import Order
from tests.journeys.hard_chaos.prepaid import TOP_UP, WITHDRAWAL, Prepaid
from tests.journeys.hard_chaos.vendor import CHAT, LEAST_CAP, OddVendor
from tests.journeys.product import COMMAND, OperatorClient, Product
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

CALLERS = 200
WORKERS = 2
REPLICAS = 5
"""Replicas of the vendor: the proxy leaves one out for a while that breaks off several times in a row."""
SETTLED_S = 180.0
"""Seconds within which everything is shipped and counted after the last fault, on a busy machine. Control sweeps what
dead workers have reserved, and journaled nothing of, once a minute."""
ADMITTED_S = 60.0
"""Seconds within which HARD calls are admitted again after a fault."""
PROBE = "probe"
FAULTS = (
    *("worker", "workers", "second machine", "supervisor", "control"),
    *("redis", "redis emptied", "flush", "freeze", "stall", "price"),
    *("top-up", "withdrawal"),
)
A_ROUND = 14
"""Faults between two sets of new trees."""
FEW = 5
"""Faults of a run that has no time, as one beside all other tests."""
DRAIN_CAP = 4_000
MOST_DRAINING_CALLS = 400


@dataclass
class HardRig:
    """Two machines, their callers, the odd vendor and the operator's books."""

    product: Product
    second: SecondMachine
    callers: OddCallers
    books: HardBooks
    prepaid: Prepaid
    vendor: OddVendor
    say: Say
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest_refusal_s: float = 0.0

    async def until(self, look: Callable[[], Awaitable[Any]], what: str, within_s: float) -> Any:
        async def look_or_fail() -> Any:
            with contextlib.suppress(aiohttp.ClientError, AssertionError, TimeoutError):
                return await look()

        return await eventually(look_or_fail, lambda: f"{what}\n{self.product.log_tail()}", within_s, 0.1)

    async def is_admitted_everywhere(self) -> bool:
        """Return whether a HARD call with room is admitted on both machines."""
        for front in self.callers.fronts:
            shape = CallShape(CHAT, "acme/chat", 0, 16, 1, stream=False)
            body = self.callers.body(shape, Order(input=1, output=1))
            end = await self.callers.call(PROBE, CHAT, body, front=front)
            if end.status != 200:
                return False
        return True

    async def admitted_again(self, after: str) -> None:
        began_s = time.monotonic()
        try:
            await self.until(self.is_admitted_everywhere, "HARD calls are admitted", ADMITTED_S)
        except AssertionError as error:
            self.faults.append(f"HARD calls are not admitted {ADMITTED_S} s after {after}: {error}")
        self.longest_refusal_s = max(self.longest_refusal_s, time.monotonic() - began_s)

    async def control_is_back(self) -> None:
        async def answers() -> bool:
            status, _ = await self.books.operator.ask("GET", "/v1/gateway/groups", limit=1)
            return status == 200

        await self.until(answers, "control is back", ADMITTED_S)

    async def is_shipped(self) -> bool:
        """Return whether control has all events, and no journal of a dead worker is left."""
        for machine in (self.product, self.second):
            async with self.callers.session.get(machine.admin + "/metrics") as answer:
                lines = (await answer.text()).splitlines()
            pending = [line for line in lines if line.startswith("tollgate_journal_pending_events ")]
            root = machine.data / "journal"
            journals = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
            if [float(line.split()[1]) for line in pending] != [0.0] or journals != sorted(machine.incarnations()):
                return False
        return True

    async def overruns(self) -> list[str]:
        """The metrics of overruns that are not zero, of both machines and of control."""
        token = self.product.environment["TOLLGATE_METRICS_TOKEN"]
        overruns: list[str] = []
        for url in (self.product.admin, self.second.admin, self.product.control):
            headers = {"Authorization": f"Bearer {token}"}
            async with self.callers.session.get(url + "/metrics", headers=headers) as answer:
                lines = (await answer.text()).splitlines()
            overruns += [line for line in lines if line.startswith("tollgate_spend_overrun_total{")]
        return [line for line in overruns if float(line.split()[-1])]


@contextlib.asynccontextmanager
async def running_rig(directory: Path, plan: Plan, say: Say) -> AsyncIterator[HardRig]:
    vendor = OddVendor()
    upstreams = [ScriptedUpstream(default=vendor.answer, port=own_port()) for _ in range(REPLICAS)]
    product = Product(directory / "data", WORKERS, plan.settings)
    second: SecondMachine | None = None
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for upstream in upstreams:
            await upstream.start()
        try:
            await asyncio.to_thread(product.start)
            created = await asyncio.to_thread(product.command, "workspace", "create", "acme", "--prefix", "acme")
            second = SecondMachine(product, directory / "second", WORKERS)
            await asyncio.to_thread(second.start)
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
            books = HardBooks(OperatorClient(session, product, created["api_key"]), began)
            await books.prepare([upstream.url for upstream in upstreams])
            fronts = [product.proxy, second.proxy]
            callers = OddCallers(session, fronts, [*SLUGS], random.Random(plan.seed))
            rng = random.Random(plan.seed + 1)
            yield HardRig(product, second, callers, books, Prepaid(books), vendor, say, rng)
        finally:
            await asyncio.to_thread(product.kill)
            if second is not None:
                await asyncio.to_thread(second.kill)
            for upstream in upstreams:
                await upstream.stop()
            for failure in (failure for upstream in upstreams for failure in upstream.failures):
                raise failure  # an error in the vendor


@dataclass
class HardFaults:
    """Injects faults, in an order that the seed decides."""

    rig: HardRig

    async def inject(self, kind: str) -> None:
        self.rig.counts[kind] += 1
        self.rig.say(f"{kind} ({len(self.rig.callers.ends)} calls so far)")
        await getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))()

    def _machine(self) -> Product:
        return self.rig.rng.choice((self.rig.product, self.rig.second))

    async def _worker(self) -> None:
        workers = self._machine().processes("proxy.worker")
        send(self.rig.rng.sample(workers, min(1, len(workers))), signal.SIGKILL)

    async def _workers(self) -> None:
        for machine in (self.rig.product, self.rig.second):
            send(machine.processes("proxy.worker"), signal.SIGKILL)

    async def _second_machine(self) -> None:
        """Kill the second machine whole, and start it again on the journals that it left."""
        second = self.rig.second
        await asyncio.to_thread(second.kill)
        await asyncio.to_thread(second.start)

    async def _supervisor(self) -> None:
        send(self.rig.product.processes("-m proxy --")[:1], signal.SIGKILL)

    async def _control(self) -> None:
        send(self.rig.product.processes("-m control --"), signal.SIGKILL)

    async def _redis(self) -> None:
        send(self.rig.product.processes("redis-server"), signal.SIGKILL)

    async def _redis_emptied(self) -> None:
        """Kill Redis and let it start without its data."""
        await self._flush()
        await self._redis()

    async def _flush(self) -> None:
        with contextlib.suppress(OSError, RedisError):  # it may be dead
            await flush(self.rig.product)

    async def _freeze(self) -> None:
        with paused(self.rig.product.processes("redis-server")):
            await asyncio.sleep(self.rig.rng.choice((0.3, 1.5)))

    async def _stall(self) -> None:
        """Pause a worker, a supervisor or control for a moment."""
        command_part = self.rig.rng.choice(("proxy.worker", "-m proxy --", "-m control --"))
        with paused(self._machine().processes(command_part)[:1]):
            await asyncio.sleep(self.rig.rng.choice((0.5, 2.0)))

    async def _price(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, AssertionError):  # control may be dead
            await self.rig.books.raise_tomorrows_price()

    async def _top_up(self) -> None:
        await self._change(TOP_UP)

    async def _withdrawal(self) -> None:
        await self._change(WITHDRAWAL)

    async def _change(self, amount: Decimal) -> None:
        """Change some balances at once. The first ones are used up by then, the last ones may not be."""
        rig = self.rig
        some = rig.rng.sample(rig.prepaid.balances, 4)
        for end in await asyncio.gather(*(rig.prepaid.change(balance, amount) for balance in some)):
            rig.counts[f"{amount} {end}"] += 1


async def run(directory: Path, plan: Plan, say: Say) -> list[str]:
    """Run the plan; return the faults. It begins no round after `plan.seconds`; without time it makes a short one."""
    async with running_rig(directory, plan, say) as rig:
        key = await rig.books.group(PROBE, ("HARD", "MONTH", "100000"))
        rig.callers.keys[PROBE] = key
        await rig.admitted_again("the start")
        faults = HardFaults(rig)
        ends_at = time.monotonic() + plan.seconds
        number = 0
        rig.callers.start(CALLERS)
        try:
            while number == 0 or time.monotonic() < ends_at:
                await _round(rig, faults, number, A_ROUND if plan.seconds else FEW)
                number += 1
        finally:
            await rig.callers.stop()
        say(f"callers have left: {dict(rig.callers.outcomes())}")
        await rig.admitted_again("the last fault")
        await rig.control_is_back()  # calls are admitted without it
        return await _verdict(rig)


async def _round(rig: HardRig, faults: HardFaults, number: int, size: int) -> None:
    """New trees, then so many faults. Most wait until calls are admitted again after the one before."""
    await rig.control_is_back()
    rig.callers.keys.update(await rig.books.add_trees(number) | await rig.prepaid.add_trees(number))
    await rig.admitted_again("new trees")
    kinds = rig.rng.sample(FAULTS, min(size, len(FAULTS))) + rig.rng.choices(FAULTS, k=max(0, size - len(FAULTS)))
    for kind in kinds:
        calls = len(rig.callers.ends)
        await rig.until(_more_calls(rig, calls + CALLERS), "callers go on", ADMITTED_S)
        await faults.inject(kind)
        if rig.rng.random() < 0.6:
            await rig.admitted_again(kind)
    await rig.admitted_again("a round")


def _more_calls(rig: HardRig, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(rig.callers.ends) >= count

    return look


async def _verdict(rig: HardRig) -> list[str]:
    """All faults, once everything is shipped and counted, what is left was used, and that is counted too."""
    faults = rig.faults
    limits = [*rig.books.limits, *await rig.prepaid.limits()]
    await _settled(rig, limits, "after the faults")
    before = await rig.until(rig.books.events, "events are listed", SETTLED_S)
    costs = window_costs(before)
    rig.say(f"{len(before)} events cost {sum(cost for (_, w), cost in costs.by_window.items() if len(w) == 7)} EUR")
    faults += faults_of_limits(limits, costs)
    payers = [limit for limit in limits if limit.payer is not None]
    faults += [fault for drained in await asyncio.gather(*(_drain(rig, one) for one in payers)) for fault in drained]
    await _settled(rig, limits, "after what was left was used")
    events = await rig.until(rig.books.events, "events are listed", SETTLED_S)
    costs = window_costs(events)
    faults += faults_of_limits(limits, costs)
    least = least_bound(rig)
    for limit in payers:
        spent = costs.highest(limit)
        if spent + least <= limit.amount:
            faults.append(f"{limit.payer} can spend no more than {spent} of {limit.amount}, less {least}")
    answered = [end.request_id for end in rig.callers.ends if end.status == 200 and end.is_whole]
    faults += faults_of_events(events, answered)
    faults += rig.callers.faults + rig.vendor.faults
    if costs.unpriced:
        faults.append(f"{costs.unpriced} events have no cost")
    faults += [f"an overrun was counted: {line}" for line in await rig.overruns()]
    faults += await _reconciled(rig)
    rest = max((limit.amount - costs.highest(limit) for limit in payers), default=Decimal(0))
    rig.say(f"most that is left of a limit: {rest} (a call needs {least})")
    rig.say(f"faults: {dict(rig.counts)}; endings: {dict(rig.vendor.endings)}; {rig.vendor.calls} calls of the vendor")
    rig.say(f"outcomes: {dict(rig.callers.outcomes())}; longest time without admission {rig.longest_refusal_s:.1f} s")
    caps = sum(end.cap is not None for end in rig.callers.ends)
    rig.say(f"{caps} calls were told a lowered cap")
    return faults


async def _settled(rig: HardRig, limits: Sequence[HardLimit], when: str) -> None:
    try:
        await rig.until(rig.is_shipped, "all events are shipped", SETTLED_S)
    except AssertionError as error:
        rig.faults.append(f"not all is shipped {when}: {error}")
    differences: list[str] = ["never read"]

    async def look() -> bool:
        costs = window_costs(await rig.books.events())
        balances = [limit for limit in limits if limit.unit == EVER]
        differences[:] = await rig.books.unsettled() + await rig.prepaid.unsettled(balances, costs)
        return not differences

    try:
        await rig.until(look, "all is counted", SETTLED_S)
    except AssertionError:
        rig.faults += [f"{when}: {difference}" for difference in differences]


def _draining_call(rig: HardRig) -> tuple[bytes, Order]:
    """A call that is billed all that it can cost: its bytes as an hour's cache writes of the dearest tier."""
    shape = CallShape(CHAT, "acme/chat", 0, DRAIN_CAP, 1, stream=False)
    size = len(rig.callers.body(shape, Order(tier="priority", ending="told")))
    order = Order(input=size, cache_writes=size, cache_writes_1h=size, tier="priority", output=9_999_999, ending="told")
    return rig.callers.body(shape, order), order


def least_bound(rig: HardRig) -> Decimal:
    """The smallest reservation of a draining call. Less than it may be left of a limit."""
    body, _ = _draining_call(rig)
    return len(body) * DEAREST_INPUT + LEAST_CAP * DEAREST_OUTPUT + PER_CALL


async def _drain(rig: HardRig, limit: HardLimit) -> list[str]:
    """Call until the limit refuses, twice: the second time when all calls before are counted."""
    assert limit.payer is not None
    body, _ = _draining_call(rig)
    refusal = 402 if limit.unit == EVER else 429
    for _ in range(2):
        for _ in range(MOST_DRAINING_CALLS):
            end = await rig.callers.call(limit.payer, CHAT, body)
            if end.status == refusal:
                break
            if end.status != 200:
                return [f"{limit.payer} was answered {end.status} {end.code} while its limit was used up"]
        else:
            return [f"{limit.payer} is not refused after {MOST_DRAINING_CALLS} calls"]
        await rig.until(lambda: _is_unreserved(rig, limit), f"nothing is reserved in {limit.payer}", SETTLED_S)
    return []


async def _is_unreserved(rig: HardRig, limit: HardLimit) -> bool:
    if limit.unit == EVER:
        answer = await rig.books.operator.call("GET", f"/v1/gateway/groups/{limit.group_id}/balance")
        return not Decimal(answer["reserved"])
    items = await rig.books.spend(str(limit.payer))
    return not any(Decimal(item["reserved"]) for item in items)


async def _reconciled(rig: HardRig) -> list[str]:
    """The differences that `tollgate events reconcile --spend` tells."""
    api_key = rig.books.operator.api_key
    words = (*COMMAND, "events", "reconcile", "--spend", "--url", rig.product.control)
    environment = rig.product.environment | {"TOLLGATE_API_KEY": api_key}
    process = await asyncio.create_subprocess_exec(*words, env=environment, stdout=PIPE, stderr=PIPE)
    stdout, stderr = await process.communicate()
    if process.returncode == 0:
        return []
    return [f"reconcile --spend: {stdout.decode()[-1000:]} {stderr.decode()[-1000:]}"]


if __name__ == "__main__":
    sys.exit(main(run, __doc__, name="hard-chaos", counted="amount"))
