"""The queue with the test's own clock: the one in memory, or the real scripts on a real Redis.

The real scripts take their time from a Redis key instead of from TIME; all else is as in production.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from proxy.async_requests.queues import LEASE_S, AttemptQueue, DeliveryQueue, QueueOverview, RequestQueue
from proxy.async_requests.requests import (
    Again,
    Delivery,
    DeploymentRef,
    NewRequest,
    RequestAttempt,
    RequestError,
    RequestState,
    RetryRules,
    Submission,
)
from proxy.async_requests.states import ErrorCode
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.commands import QueueOptions
from proxy.edges.redis.async_queue.delivery_queue import RedisDeliveryQueue
from proxy.edges.redis.async_queue.overview import RedisQueueOverview
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from proxy.edges.redis.async_queue.scripts import load_scripts
from proxy.edges.redis.async_queue.workspaces import INDEX
from tests.fakes.async_queue import FakeAsyncQueue
from tests.redis_topologies import Admin

LEASE_MS = int(LEASE_S * 1000)
START_MS = 1_700_000_000_000
"""A past time, as `XCLAIM` accepts no later time than Redis' own."""
STEP_MS = 100
"""The test's clock moves by whole steps: how long entries are idle is known by Redis' own clock only."""
_CLOCK_KEY = "test:now:{%s}"
"""Key of the test's clock in each slot: a script may read no other."""
_TAG = "(KEYS[1]:match('{(.+)}') or KEYS[1])"
CLOCK = f"(function() local t = redis.call('GET', ('{_CLOCK_KEY}'):format({_TAG})) return {{0, t * 1000}} end)()"
REDIS_NOW = "(function() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end)()"
SKEW = f"{REDIS_NOW} - now + base - {STEP_MS // 2}"
WS = "ws1"
DEP = DeploymentRef("ws1", "mdl1", "dep1")
_TAGS = (WS, "ws2", "-", INDEX)
"""Hash tags of the keys that tests use."""
PIECE_BYTES = 150
"""Small pieces, so that inputs of a few hundred bytes are large ones."""
MAX_QUEUED_BYTES = 1000
MAX_ANSWER_BYTES = 1000
TIMEOUT_S = 600.0
ERROR = RequestError(ErrorCode.MODEL_PREDICT_ERROR, "the model server answered 500")
DEFAULT_RETRIES = RetryRules()
HOOK = "https://hooks.example/results"


class Queue(RequestQueue, AttemptQueue, DeliveryQueue, QueueOverview, Protocol):
    """All sides of the queue."""


class RedisQueue(RedisRequestQueue, RedisAttemptQueue, RedisDeliveryQueue, RedisQueueOverview):
    """All sides of the queue in Redis, which are four parts in production."""

    def __init__(self, client: QueueClient) -> None:
        RedisAttemptQueue.__init__(self, client, TIMEOUT_S, MAX_ANSWER_BYTES)
        RedisRequestQueue.__init__(self, client, MAX_QUEUED_BYTES)


@dataclass
class World:
    """A queue and its clock. `now_ms`: its own, by which `offset_ms` of Redis' clock is wrong."""

    queue: Queue
    now_ms: int = START_MS
    offset_ms: int = 0
    redis: Admin | None = None
    client: QueueClient | None = None
    """The process of the queue in Redis."""
    _ids: int = field(default=0)
    _last: NewRequest | None = None

    def advance(self, milliseconds: int) -> None:
        assert milliseconds % STEP_MS == 0
        self.now_ms += milliseconds
        self._set_clock()

    def step(self, milliseconds: int) -> None:
        """Set Redis' clock forward or back."""
        self.offset_ms += milliseconds
        self._set_clock()

    def _set_clock(self) -> None:
        if self.redis is not None:
            set_clock(self.redis, self.now_ms + self.offset_ms)

    def connect(self, url: str) -> None:
        """Begin with a new process, whose monotonic clock is the world's."""
        self.client = new_client(url, lambda: self.now_ms / 1000)
        self.queue = RedisQueue(self.client)

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()

    def new_request(self, submission: Submission, deployment: DeploymentRef = DEP) -> NewRequest:
        self._ids += 1
        return NewRequest(f"req{self._ids}", deployment, "/predict", submission)

    async def submit(
        self,
        model_input: bytes = b"{}",
        *,
        hook: str | None = HOOK,
        priority: int = 0,
        max_time_in_queue_s: int = 60,
        retries: RetryRules = DEFAULT_RETRIES,
        deployment: DeploymentRef = DEP,
    ) -> str:
        request = self.new_request(Submission(model_input, hook, priority, max_time_in_queue_s, retries), deployment)
        self._last = request
        await self.queue.submit(request, parks=False)
        return request.id

    async def submit_again(self) -> None:
        """The last one."""
        assert self._last is not None
        await self.queue.submit(self._last, parks=False)

    async def start(self, holder: str = "a", deployment: DeploymentRef = DEP) -> RequestAttempt:
        attempt = await self.queue.start(deployment, holder)
        assert attempt is not None
        return attempt

    async def next_delivery(self, holder: str = "a") -> Delivery:
        delivery = await self.queue.next_delivery(WS, holder)
        assert delivery is not None
        return delivery

    async def state(self, request_id: str) -> RequestState:
        state = await self.queue.state(WS, request_id)
        assert state is not None
        return state


def again(delay_ms: int = 1000) -> Again:
    return Again(delay_ms, ERROR)


def fake_world() -> World:
    world = World(None)  # type: ignore[arg-type]  # the queue needs the world's clock first
    world.queue = FakeAsyncQueue(lambda: world.now_ms, MAX_QUEUED_BYTES, MAX_ANSWER_BYTES, TIMEOUT_S)
    return world


def set_clock(own: Admin, now_ms: int) -> None:
    for tag in _TAGS:
        own.set(_CLOCK_KEY % tag, now_ms)


def redis_world(url: str, own: Admin) -> World:
    own.flushall()
    set_clock(own, START_MS)
    world = World(None, redis=own)  # type: ignore[arg-type]  # its client needs the world's clock first
    world.connect(url)
    return world


def new_client(url: str, clock: Callable[[], float]) -> QueueClient:
    return QueueClient(url, QueueOptions(piece_bytes=PIECE_BYTES, scripts=load_scripts(CLOCK, SKEW), clock=clock))


def leftovers(own: Admin) -> list[str]:
    """Keys that will stay for ever."""
    keys: list[bytes] = own.keys("tga:*")  # type: ignore[assignment]  # bytes: the client decodes nothing
    return sorted(key.decode() for key in keys if own.ttl(key) < 0)
