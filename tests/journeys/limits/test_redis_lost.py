"""Redis is unavailable for seconds under load. No call hangs and no process restarts.

Calls with limits are refused (`closed`), or each worker enforces its share (`local`), as the operator has chosen.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product, kill, models
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import answer_question
from tests.waiting import eventually

QUESTION = [{"role": "user", "content": "10/5/0/1/0"}]
TIMEOUT_S = 0.25
"""A busy machine delays replies by less, and the pauses here are longer."""
CALLERS = 8
AWAY_S = 4.0
"""Seconds without Redis: more than every deadline of the proxy for it."""
HANGS_S = 5.0
"""A call that takes longer hangs, however busy the machine is."""
SHARES_KNOWN_S = 4.0
"""Seconds after a start within which workers know their shares."""
NEVER_REACHED = 1_000_000_000


@dataclass(frozen=True)
class CallResult:
    began_s: float
    ended_s: float
    status: int
    code: str


@dataclass
class Load:
    """Callers that call again and again, and record each answer and its time."""

    stage: Stage
    key: str
    results: list[CallResult] = field(default_factory=list)
    _is_stopping: bool = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        callers = [asyncio.create_task(self._call_until_stopped()) for _ in range(CALLERS)]
        try:
            yield
        finally:
            self._is_stopping = True
            await asyncio.gather(*callers)

    async def _call_until_stopped(self) -> None:
        while not self._is_stopping:
            await self.call()
            await asyncio.sleep(0.01)

    async def call(self) -> CallResult:
        """Make one call on a connection of its own, so that the kernel spreads calls over the workers."""
        began_s = time.monotonic()
        headers = {"Authorization": f"Bearer {self.key}", "Connection": "close"}
        body = {"model": self.stage.slug, "messages": QUESTION}
        url = self.stage.product.proxy + "/v1/chat/completions"
        timeout = aiohttp.ClientTimeout(total=HANGS_S)
        async with self.stage.session.post(url, json=body, headers=headers, timeout=timeout) as answer:
            code = (await answer.json()).get("error_code", "")
        result = CallResult(began_s, time.monotonic(), answer.status, code)
        self.results.append(result)
        return result

    def since(self, moment_s: float) -> Counter[tuple[int, str]]:
        return Counter((result.status, result.code) for result in self.results if result.began_s >= moment_s)

    async def answered_since(self, moment_s: float) -> None:
        """Return when each caller may have had some answers to calls that began after this time."""
        await eventually(lambda: self.since(moment_s).total() >= 3 * CALLERS, "calls end")

    async def answered_again(self) -> None:
        """Call until all workers admit calls. After that each of 50 calls must be answered."""

        async def answered() -> bool:
            return {(await self.call()).status for _ in range(20)} == {200}

        await self.stage.until(answered, "calls are admitted again")
        for _ in range(50):
            assert (await self.call()).status == 200


def product_with_mode(directory: Path, mode: str) -> Iterator[Workspace]:
    settings = {"TOLLGATE_LIMITS_ON_REDIS_LOSS": mode, "TOLLGATE_REDIS_TIMEOUT_S": str(TIMEOUT_S)}
    product = Product(directory / "data", settings=settings)
    with started(product) as workspace:
        yield workspace


@pytest.fixture(scope="module")
def closed_product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    yield from product_with_mode(tmp_path_factory.mktemp("closed"), "closed")


@pytest.fixture(scope="module")
def local_product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    yield from product_with_mode(tmp_path_factory.mktemp("local"), "local")


@pytest.fixture
async def question_upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


@pytest.fixture
async def closed(
    closed_product: Workspace,
    session: aiohttp.ClientSession,
    question_upstream: ScriptedUpstream,
    numbers: Iterator[int],
) -> Stage:
    """A stage of the product with TOLLGATE_LIMITS_ON_REDIS_LOSS=closed."""
    return await with_endpoint(stage_of(closed_product, session, question_upstream, f"lost-{next(numbers)}"))


@pytest.fixture
async def local(
    local_product: Workspace,
    session: aiohttp.ClientSession,
    question_upstream: ScriptedUpstream,
    numbers: Iterator[int],
) -> Stage:
    """A stage of the product with TOLLGATE_LIMITS_ON_REDIS_LOSS=local."""
    return await with_endpoint(stage_of(local_product, session, question_upstream, f"lost-{next(numbers)}"))


async def with_endpoint(stage: Stage) -> Stage:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    return stage


async def load_with(stage: Stage, name: str, *limits: tuple[str, str, int]) -> Load:
    group = await stage.operator.group(f"{stage.name}-{name}", models(stage.slug, *limits))
    load = Load(stage, await stage.operator.key(group))

    async def known() -> bool:
        return (await load.call()).status == 200

    await stage.until(known, "the key is known")
    return load


@contextlib.contextmanager
def redis_paused(stage: Stage) -> Any:
    (redis,) = stage.product.processes("redis-server")
    os.kill(redis, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis, signal.SIGCONT)


async def health(stage: Stage, path: str) -> int:
    async with stage.session.get(stage.product.admin + path, timeout=aiohttp.ClientTimeout(total=HANGS_S)) as answer:
        return answer.status


async def readyz_is(stage: Stage, ready: int) -> bool:
    assert await health(stage, "/healthz") == 200, "liveness does not depend on Redis"
    return await health(stage, "/readyz") == ready


@pytest.fixture(params=[pytest.param("stopped", marks=pytest.mark.soak), "killed"])
def away(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def redis_away(stage: Stage, how: str) -> AsyncIterator[None]:
    """Make Redis unavailable: stopped, or killed and not restarted."""
    if how == "stopped":
        with redis_paused(stage):
            yield
        return

    os.kill(stage.product.up.pid, signal.SIGSTOP)  # it would restart Redis
    try:
        for pid in stage.product.processes("redis-server"):
            kill(pid)
        yield
    finally:
        os.kill(stage.product.up.pid, signal.SIGCONT)


async def test_closed_mode_answers_503_until_redis_is_back(closed: Stage, away: str) -> None:
    stage = closed
    load = await load_with(stage, "roomy", ("REQUEST", "MINUTE", NEVER_REACHED), ("TOKEN", "MINUTE", NEVER_REACHED))
    workers = stage.product.processes("proxy.worker")
    free = await load_with(stage, "free")
    async with load.running():
        await stage.until(lambda: readyz_is(stage, 200), "ready")
        async with redis_away(stage, away):
            await stage.until(lambda: readyz_is(stage, 503), "not ready")
            lost_s = time.monotonic()
            await asyncio.sleep(AWAY_S)
            assert set(load.since(lost_s)) == {(503, "LIMITS_UNAVAILABLE")}
            assert (await free.call()).status == 200, "calls without limits need no Redis"
            assert await readyz_is(stage, 503)
        await load.answered_again()
        await stage.until(lambda: readyz_is(stage, 200), "ready again")
    answered = load.since(0)[200, ""] + len(free.results)
    assert len(stage.upstream.received) == answered, "a call went upstream past its limits"
    assert {code for _, code in load.since(0)} == {"", "LIMITS_UNAVAILABLE"}
    assert stage.product.processes("proxy.worker") == workers, "a worker was restarted"


async def test_short_redis_pause_refuses_only_calls_made_during_it(closed: Stage) -> None:
    stage = closed
    load = await load_with(stage, "roomy", ("REQUEST", "MINUTE", NEVER_REACHED))
    async with load.running():
        for _ in range(5):
            with redis_paused(stage):
                await asyncio.sleep(2 * TIMEOUT_S)
            over_s = time.monotonic()
            await stage.until(lambda: _three_answered(load), "answers")
            recovered_s = time.monotonic()
            await load.answered_since(recovered_s)
            assert set(load.since(recovered_s)) == {(200, "")}
            results = load.since(over_s)
            assert results.total() - results[200, ""] < 3 * CALLERS, "the breaker stayed open"


async def test_call_waits_for_a_late_redis_up_to_its_timeout(closed: Stage) -> None:
    stage = closed
    load = await load_with(stage, "roomy", ("REQUEST", "MINUTE", NEVER_REACHED))
    with redis_paused(stage):
        call = asyncio.create_task(load.call())
        await asyncio.sleep(TIMEOUT_S / 2)
        assert not call.done()
    assert (await call).status == 200


async def _three_answered(load: Load) -> bool:
    return {(await load.call()).status for _ in range(3)} == {200}


@pytest.mark.parametrize(
    ("callers", "stopped_s"), [pytest.param(40, 3 * TIMEOUT_S, marks=pytest.mark.soak), (60, 8 * TIMEOUT_S)]
)
async def test_refused_calls_consume_no_limit_while_redis_is_stopped(
    closed: Stage, callers: int, stopped_s: float
) -> None:
    """Served and remaining calls add up to the limit, even if Redis runs commands late. After two seconds the workers
    have closed their connections."""
    stage = closed
    load = await load_with(stage, "daily", ("REQUEST", "DAY", 50), ("TOKEN", "DAY", NEVER_REACHED))
    for _ in range(2):
        with redis_paused(stage):
            calls = asyncio.gather(*(load.call() for _ in range(callers)))
            await asyncio.sleep(stopped_s)
        await calls
    assert load.since(0)[503, "LIMITS_UNAVAILABLE"] > 0, "Redis was never late"

    async def all_served() -> bool:
        await load.call()
        return load.since(0)[200, ""] == 50

    await stage.until(all_served, "the whole limit is served")
    assert {(await load.call()).status for _ in range(10)} == {429}
    assert len(stage.upstream.received) == 50


async def test_local_mode_enforces_shares_and_settles_in_redis_later(local: Stage) -> None:
    stage = local
    load = await load_with(stage, "roomy", ("REQUEST", "MINUTE", NEVER_REACHED), ("TOKEN", "MINUTE", NEVER_REACHED))
    tight = await load_with(stage, "tight", ("REQUEST", "MINUTE", 21), ("REQUEST", "DAY", NEVER_REACHED))
    used_count = len(tight.results)
    workers = stage.product.processes("proxy.worker")
    await asyncio.sleep(SHARES_KNOWN_S)
    async with load.running():
        with redis_paused(stage):
            lost_s = time.monotonic()
            await asyncio.gather(*(tight.call() for _ in range(80)))
            admitted = tight.since(lost_s)[200, ""]
            assert used_count + admitted <= 21, "more than the threshold, all shares together"
            assert admitted >= 21 - 2 * used_count, "less than the shares that were left"
            assert set(tight.since(lost_s)) == {(200, ""), (429, "RATE_LIMITED")}
            await asyncio.sleep(AWAY_S)
            assert await readyz_is(stage, 200), "workers decide by their shares, so the machine is ready"
        await load.answered_again()
    assert {status for status, _ in load.since(0)} == {200}, "a call below its limits was refused"
    assert stage.product.processes("proxy.worker") == workers

    async def counted() -> bool:
        async with stage.session.get(stage.product.admin + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        (decisions,) = (line for line in lines if line.startswith("tollgate_local_limit_decisions_total"))
        return float(decisions.split()[1]) >= 80

    await stage.until(counted, "all local decisions in the metrics")

    async def full() -> bool:
        return (await tight.call()).status == 429

    await stage.until(full, "Redis has counted the calls admitted without it")


async def test_local_mode_answers_503_from_workers_without_a_share(local: Stage) -> None:
    """The machine is not ready. Both end when Redis is back."""
    stage = local
    load = await load_with(stage, "roomy", ("REQUEST", "MINUTE", NEVER_REACHED), ("TOKEN", "DAY", NEVER_REACHED))
    await stage.until(lambda: readyz_is(stage, 200), "ready")
    async with redis_away(stage, "killed"):
        old = stage.product.processes("proxy.worker")
        for pid in old:
            kill(pid)
        await eventually(lambda: len(set(stage.product.processes("proxy.worker")) - set(old)) == 2, "two new workers")
        await stage.until(lambda: readyz_is(stage, 503), "not ready")
        await stage.until(lambda: _refused(load), "a 503, not a hang")
    await load.answered_again()
    await stage.until(lambda: readyz_is(stage, 200), "ready again")


async def _refused(load: Load) -> bool:
    try:
        result = await load.call()
    except (
        aiohttp.ClientError,
        TimeoutError,
    ):  # the call was queued for a dead worker, or the new worker is still starting
        return False
    return (result.status, result.code) == (503, "LIMITS_UNAVAILABLE")
