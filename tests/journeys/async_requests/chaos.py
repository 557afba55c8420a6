"""The chaos program for asynchronous requests: kills processes of the real product, and accounts for every request.

`python -m tests.journeys.async_requests.chaos --minutes 10 --seed 7` prints its progress and a verdict; it exits with 0
only if it found no fault. Two workers, two async workers, the product's own Redis, scripted replicas, a receiver.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from redis.asyncio import Redis

from tests.journeys.async_requests.chaos_callers import AsyncCallers, Lane
from tests.journeys.async_requests.chaos_faults import Evidence, Span, Told, faults_of
from tests.journeys.async_requests.chaos_processes import RedisLog, Replica
from tests.journeys.chaos_program import Plan, Say, main, paused, send
from tests.journeys.product import OperatorClient, Product
from tests.journeys.receivers import Customer, ReceivedMessage, Receiver
from tests.waiting import eventually

WORKERS = ASYNC_WORKERS = 2
STOPPED_S = 8.0, 11.0
"""Seconds that an async worker stands still, from least to most: it keeps its attempts, as their leases last longer."""
LOST_S = 3.0
"""Reach of a crash of Redis: a process must live that long after a write to repeat it."""
SETTLE_S = 120.0
PAUSE_S = 0.3, 2.0
"""Seconds between two disturbances, at least and at most."""
KEPT_MS = 3_600_000
GONE = -2
LANES = {"wide": 3, "narrow": 1, "parked": 0}
"""Deployments, with their numbers of replicas."""
KINDS = (
    *(
        "worker",
        "async worker",
        "async worker",
        "supervisor",
        "control killed",
        "control stopped",
        "replica",
        "replica",
    ),
    *(
        "redis",
        "redis with its last second",
        "redis stopped",
        "async worker stopped",
        "worker stopped",
        "all",
        "restart",
    ),
)


class Results(Receiver):
    """The webhook's receiver. While `moody`, it refuses a first message now and then."""

    moody = True
    secrets: Sequence[str] = ()
    records: list[Told]
    rng: random.Random

    async def _receive(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        message = ReceivedMessage(headers, await request.read())
        first = all(one.id != message.id for one in self.records[-500:])
        accepted = not (self.moody and first and self.rng.random() < 0.05)
        signed = False
        for secret in self.secrets:
            with contextlib.suppress(Exception):
                body = message.verified(secret)
                signed = True
        self.records.append(Told(message.id, body if signed else await request.json(), accepted, signed))
        return web.Response(status=200 if accepted else 500)


@dataclass
class Rig:
    """A product, its callers, its replicas, and the operator's HTTP client."""

    product: Product
    operator: OperatorClient
    callers: AsyncCallers
    replicas: Sequence[Replica]
    results: Results
    redis_log: RedisLog

    async def figures(self) -> Counter[str]:
        """Return the sums of the requests in all queues."""
        counts: Counter[str] = Counter()
        for lane in self.callers.lanes:
            status, answer = await self.callers.ask("GET", lane.path + "/async_queue_status")
            assert status == 200, (status, answer)
            counts["queued"] += answer["num_queued_requests"]
            counts["in progress"] += answer["num_in_progress_requests"]
            counts["by priority"] += sum(answer["priorities"].values())
        return +counts

    async def serves(self) -> bool:
        await self.figures()
        return True

    async def until(self, look: Callable[[], Any], what: str, within_s: float = 60) -> Any:
        async def look_or_fail() -> Any:
            with contextlib.suppress(aiohttp.ClientError, AssertionError, TimeoutError):
                return await look()

        return await eventually(look_or_fail, lambda: f"{what}\n{self.product.log_tail()}", within_s, 0.2)


@contextlib.asynccontextmanager
async def running_rig(directory: Path, plan: Plan) -> AsyncIterator[Rig]:
    """Start everything; callers are idle."""
    results = Results("results")
    results.records = []
    results.rng = random.Random(plan.seed + 2)
    customer = await Customer.with_receivers(directory)
    await results.start(customer.ca)
    customer.receivers.append(results)
    product = Product(directory / "data", WORKERS, customer.settings | plan.settings, ASYNC_WORKERS)
    redis_log = RedisLog(product.data)
    watching = asyncio.create_task(redis_log.watch())
    replicas = [Replica(directory / f"replica-{number}.log") for number in range(sum(LANES.values()))]
    timeout = aiohttp.ClientTimeout(total=20)
    # A DELETE on a connection that was used before is sent again by aiohttp, unseen, if the worker died over the first.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        try:
            for replica in replicas:
                await asyncio.to_thread(replica.start)
            await asyncio.to_thread(product.start)
            created = await asyncio.to_thread(product.command, "workspace", "create", "acme", "--prefix", "acme")
            operator = OperatorClient(session, product, created["api_key"])
            results.secrets = (await operator.call("GET", "/v1/async/webhook_secret"))["secrets"]
            lanes = await _lanes(operator, replicas)
            callers = AsyncCallers(session, product, created["api_key"], results.url, lanes, random.Random(plan.seed))
            yield Rig(product, operator, callers, replicas, results, redis_log)
        finally:
            watching.cancel()
            await asyncio.to_thread(product.kill)
            for replica in replicas:
                replica.kill()
            await customer.stop()


async def _lanes(operator: OperatorClient, replicas: Sequence[Replica]) -> list[Lane]:
    lanes = []
    free_replicas = list(replicas)
    for name, count in LANES.items():
        model = (await operator.call("POST", "/v1/models", {"name": name}))["id"]
        path = f"/v1/models/{model}"
        settings = {"name": "d", "max_concurrency": 1 if name == "narrow" else 6}
        deployment = (await operator.call("POST", f"{path}/deployments", settings))["id"]
        urls = [free_replicas.pop().url for _ in range(count)]
        await operator.call("PUT", f"{path}/deployments/{deployment}/replicas", {"replicas": urls})
        await operator.call("PUT", f"{path}/environments/production", {"deployment_id": deployment})
        lanes.append(Lane(name, f"/models/{model}/production"))
    return lanes


@dataclass
class FaultInjector:
    """Kills and stops random processes, as the seed decides, and records when."""

    rig: Rig
    plan: Plan
    rng: random.Random
    say: Say
    counts: Counter[str] = field(default_factory=Counter)
    lossy: list[Span] = field(default_factory=list)
    stopped: list[Span] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)
    replicas_killed: list[float] = field(default_factory=list)
    _starting: set[Replica] = field(default_factory=set)
    """Replicas that were killed and do not listen yet."""
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    async def inject(self) -> None:
        ends_at = time.monotonic() + self.plan.seconds
        deck: list[str] = []
        while time.monotonic() < ends_at:
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            if not deck:
                deck = self.rng.sample(KINDS, len(KINDS))
            kind = deck.pop()
            self.counts[kind] += 1
            self.say(f"{kind} (requests so far: {len(self.rig.callers.requests)})")
            await getattr(self, "_" + kind.replace(" ", "_"))()
        await asyncio.gather(*self._background)

    def _kill(self, pids: Sequence[int]) -> None:
        self.killed.append(time.time())
        send(pids, signal.SIGKILL)

    def _some(self, command_part: str, most: int = 1) -> list[int]:
        """Return at most `most` of these processes, at random. They may be dead and not restarted yet."""
        pids = self.rig.product.processes(command_part)
        return self.rng.sample(pids, min(len(pids), most))

    async def _worker(self) -> None:
        self._kill(self._some("-m proxy.worker", self.rng.choice((1, 1, 2))))

    async def _async_worker(self) -> None:
        self._kill(self._some("-m proxy.async_worker", self.rng.choice((1, 1, 2))))

    async def _supervisor(self) -> None:
        self._kill(self._some("-m proxy --"))

    async def _control_killed(self) -> None:
        send(self._some("-m control --"), signal.SIGKILL)

    async def _control_stopped(self) -> None:
        self._later(self._stopped_for("-m control --", 5.0))

    async def _replica(self) -> None:
        running = [replica for replica in self.rig.replicas if replica not in self._starting]
        if running:
            replica = self.rng.choice(running)
            self._starting.add(replica)
            self.replicas_killed.append(time.time())
            await asyncio.to_thread(replica.kill)
            self._later(self._started_again(replica, self.rng.uniform(0, 2)))

    async def _started_again(self, replica: Replica, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await asyncio.to_thread(replica.start)
        self._starting.remove(replica)

    async def _redis(self) -> None:
        await self._redis_dies(cut_s=0)

    async def _redis_with_its_last_second(self) -> None:
        await self._redis_dies(cut_s=self.rng.uniform(0.2, 1.0))

    async def _redis_dies(self, cut_s: float) -> None:
        """Redis alone dies: who wrote in its last seconds lives on to repeat it. `up` waits while its log is cut."""
        await asyncio.sleep(max(0.0, (self.killed or [0])[-1] + LOST_S - time.time()))
        product = self.rig.product
        with paused([product.up.pid]):
            died = time.time()
            send(product.processes("redis-server"), signal.SIGKILL)
            if cut_s:
                await asyncio.sleep(0.05)
                self.say(f"  its log lost {self.rig.redis_log.cut(cut_s + 0.05)} bytes")
        await self._redis_is_back()
        await asyncio.sleep(LOST_S)
        self.lossy.append((died - LOST_S, time.time()))

    async def _redis_is_back(self) -> None:
        await self.rig.until(self.rig.serves, "Redis is back")

    async def _redis_stopped(self) -> None:
        with paused(self.rig.product.processes("redis-server")):
            await asyncio.sleep(self.rng.choice((0.1, 0.7, 2.0)))

    async def _async_worker_stopped(self) -> None:
        self._later(self._stopped_for("-m proxy.async_worker", self.rng.uniform(*STOPPED_S)))

    async def _worker_stopped(self) -> None:
        self._later(self._stopped_for("-m proxy.worker", self.rng.choice((0.2, 1.0, 3.0))))

    async def _stopped_for(self, command_part: str, seconds: float) -> None:
        began = time.time()
        with paused(self._some(command_part)):
            await asyncio.sleep(seconds)
        self.stopped.append((began, time.time() + 1))

    async def _all(self) -> None:
        """Kill and start the whole product. Redis' log is in the kernel, so that nothing is lost."""
        self.killed.append(time.time())
        await asyncio.to_thread(self.rig.product.kill)
        await asyncio.to_thread(self.rig.product.start)

    async def _restart(self) -> None:
        """Stop in order and start again, with attempts and deliveries under way."""
        self.killed.append(time.time())
        status = await asyncio.to_thread(self.rig.product.stop)
        assert status == 0, self.rig.product.log_tail()
        await asyncio.to_thread(self.rig.product.start)

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)


async def run(directory: Path, plan: Plan, say: Say) -> list[str]:
    """Run the plan; return the faults."""
    async with running_rig(directory, plan) as rig:
        injector = FaultInjector(rig, plan, random.Random(plan.seed + 1), say)
        await rig.until(rig.serves, "the proxies know the models")
        rig.callers.start()
        calm = asyncio.get_running_loop().call_later(plan.seconds * 0.6, setattr, rig.results, "moody", False)
        await injector.inject()
        calm.cancel()
        rig.results.moody = False
        await rig.callers.stop()
        say(f"{len(rig.callers.requests)} requests made, {len(rig.callers.open)} have not ended; nothing is killed now")
        with contextlib.suppress(AssertionError):
            await rig.until(rig.callers.all_ended, "all requests end", SETTLE_S)
        faults = await verdict(rig, injector)
        say(summary(rig, injector))
        return faults


async def verdict(rig: Rig, injector: FaultInjector) -> list[str]:
    """The faults, once all requests have ended."""
    faults = []
    try:
        await rig.until(lambda: _is_empty(rig), "nothing is queued or running", 30)
    except AssertionError:
        faults.append(f"in the end the queues' figures are {dict(await rig.figures())}")
    await rig.callers.look_once_more()
    faults += await faults_of_keys(rig)
    attempts = [attempt for replica in rig.replicas for attempt in replica.attempts()]
    evidence = Evidence(
        rig.callers.requests,
        attempts,
        rig.results.records,
        injector.lossy,
        injector.stopped,
        injector.killed,
        injector.replicas_killed,
    )
    return faults + faults_of(evidence)


async def faults_of_keys(rig: Rig) -> list[str]:
    """Keys of the queue that are left: what is shown of ended requests for an hour, and marks of deployments."""
    folder = os.open(rig.product.data, os.O_RDONLY)  # a socket's path must be short
    try:
        async with Redis.from_url(f"unix:///proc/self/fd/{folder}/redis.sock", decode_responses=True) as redis:
            keys = [key async for key in redis.scan_iter("tga:*", count=1000) if key != "tga:workspaces"]
            lives = [await redis.pttl(key) for key in keys]
    finally:
        os.close(folder)
    passing = re.compile(r"tga:\{[^}]+\}:(r:areq|d:dep)_\w+")
    return [
        f"Redis still has {key}, for {life} ms"
        for key, life in zip(keys, lives, strict=True)
        if not passing.fullmatch(key) or not (0 < life <= KEPT_MS or life == GONE)
    ]


async def _is_empty(rig: Rig) -> bool:
    return not await rig.figures()


def summary(rig: Rig, injector: FaultInjector) -> str:
    requests = rig.callers.requests
    ends = Counter(request.final or f"answered {request.answered}" for request in requests)
    codes = Counter(code for request in requests if request.final == "FAILED" for code in request.states[-1].errors)
    attempts = Counter(attempt.how for replica in rig.replicas for attempt in replica.attempts())
    return (
        f"{len(requests)} requests: {dict(ends)}, failed by {dict(codes)}; attempts: {dict(attempts)};"
        f" {len(rig.results.records)} messages; {dict(injector.counts)}"
    )


if __name__ == "__main__":
    sys.exit(main(run, __doc__, name="async-chaos", counted="request"))
