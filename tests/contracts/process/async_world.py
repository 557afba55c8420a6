"""Asynchronous requests in real processes: the supervisor with its async workers, Redis, a policy and one replica.

Requests are put into the queue directly, as a proxy worker does.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from policy.credentials import KeyKind, digest_of
from policy.deployments import ACTIVE, Deployment
from policy.snapshot import KeyRow, ModelRow
from proxy.async_requests.queues import LEASE_S
from proxy.async_requests.requests import DeploymentRef, NewRequest, RequestState, RetryRules, Submission
from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from tests.contracts.process.test_supervisor import World, a_world, make_key
from tests.processes import command_line
from tests.redis_server import private_redis
from tests.upstream import Received
from tests.waiting import eventually

DEPLOYMENT = DeploymentRef("ws", "m", "d")
DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec")


class AsyncWorld:
    """`world` is the proxy with what it needs; its upstream is the replica."""

    def __init__(self, world: World, client: QueueClient) -> None:
        self.world = world
        self.proxy = world.proxy
        self.replica = world.upstream
        self.redis = world.redis
        self.queue = RedisRequestQueue(client, 1 << 30)
        self._client = client
        self._ids = count(1)

    def put_deployment(self, status: str = ACTIVE, most: int | None = None) -> None:
        """Put the deployment, with the replica of this world if the status says that there is one."""
        replicas = (self.replica.url,) if status == ACTIVE else ()
        deployment = Deployment("d", status, replicas, None, most)
        self.world.control.put("model", "m", ModelRow("m", "ws", {"d": deployment}, {"production": "d"}).to_wire())

    async def deploy(self, most: int | None = None) -> None:
        self.put_deployment(most=most)
        await self.world.hint()

    async def submit(self, model_input: bytes = b"{}", webhook: str | None = None, attempts: int = 3) -> str:
        retries = RetryRules(attempts, initial_delay_ms=100, max_delay_ms=100)
        submission = Submission(model_input, webhook, retries=retries)
        request = NewRequest(f"r{next(self._ids)}", DEPLOYMENT, "/models/m/production/async_predict", submission)
        await self.queue.submit(request, parks=False)
        return request.id

    async def state(self, request_id: str) -> RequestState:
        state = await self.queue.state("ws", request_id)
        assert state is not None
        return state

    async def ended(self, request_id: str, within_s: float = 30) -> RequestState:
        """Wait until the request has ended; return its state."""

        async def look() -> RequestState | None:
            state = await self.state(request_id)
            return None if state.status in (Status.QUEUED, Status.IN_PROGRESS) else state

        end_state = await eventually(look, lambda: self.proxy.log.read_text()[-3000:], within_s=within_s, every_s=0.02)
        assert isinstance(end_state, RequestState)
        return end_state

    def end_leases(self) -> None:
        """Let as much time pass for Redis as leases last."""
        with self.redis.client() as redis:
            for stream in redis.zrange(keys_of("ws") + "held", 0, -1):
                for pending in redis.xpending_range(stream, "w", "-", "+", 100):
                    entry = [pending["message_id"]]
                    holder = pending["consumer"]
                    redis.xclaim(stream, "w", holder, 0, entry, idle=int(LEASE_S * 1000), justid=True)
                redis.zadd(keys_of("ws") + "held", {stream: 0})

    async def another_machine_sweeps(self) -> bool:
        """Sweep as another machine; return whether it found something to start."""
        return bool((await RedisAttemptQueue(self._client, 3600, 1 << 30).sweep("ws")).startable)

    async def sizes(self, request_id: str) -> int:
        """Return how many bytes of the model's answer are stored."""
        key = f"{keys_of('ws')}a:{request_id}"
        chunks = await self._client.commands.call(key, lambda redis: redis.hvals(key))
        return sum(map(len, chunks))

    @property
    def attempts(self) -> list[tuple[str | None, str | None]]:
        """Request ids and numbers of the attempts that reached the replica."""
        return [attempt_of(received) for received in self.replica.received if received.path == "/predict"]

    def async_workers(self) -> list[int]:
        return [pid for pid in self.proxy.workers() if "proxy.async_worker" in command_line(pid)]


def attempt_of(received: Received) -> tuple[str | None, str | None]:
    return received.header("x-request-id"), received.header("x-async-attempt")


@asynccontextmanager
async def an_async_world(folder: Path, options: Sequence[str] = DURABLE) -> AsyncIterator[AsyncWorld]:
    with private_redis(options) as redis:
        async with a_world(folder, redis) as world:
            world.proxy.environ |= {"TOLLGATE_ASYNC_WORKERS": "1", "TOLLGATE_EGRESS_ALLOW": "127.0.0.0/8"}
            client = QueueClient(redis.url)
            try:
                yield AsyncWorld(world, client)
            finally:
                await client.close()


def put_workspace_key(world: World) -> str:
    """A key for direct calls of model m."""
    key = make_key(9)
    row = KeyRow(digest_of(key), key.partition(".")[0], KeyKind.WORKSPACE_MANAGE_ALL, "ws", None)
    world.control.put("key", row.digest, row.to_wire())
    return key
