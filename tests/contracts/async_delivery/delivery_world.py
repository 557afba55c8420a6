"""The delivery of results as an async worker does it: the real queue on a real Redis, real sockets and TLS.

`Deliverer` is what a worker is made of; `deliverer.py` runs one as a process of its own.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from policy.hosts import EgressRules
from policy.sealing import seal
from policy.snapshot import SigningSecrets, WorkspaceRow
from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import (
    Delivery,
    DeploymentRef,
    Failed,
    NewRequest,
    RequestError,
    RequestState,
    Submission,
    Succeeded,
)
from proxy.async_requests.states import ErrorCode, Status
from proxy.async_worker.delivery import Deliveries, DeliveryParts
from proxy.async_worker.webhook_teller import TellerParts, TellerTimeouts, WebhookTeller
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.delivery_queue import RedisDeliveryQueue
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from proxy.edges.telemetry.async_counts import AsyncCounts
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress, Resolve
from tests.fakes.directory import FakeDirectory
from tests.waiting import eventually

WS = "ws_1"
DEPLOYMENT = DeploymentRef(WS, "mdl_1", "dep_1")
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
KEYS = (b"k" * 32,)
ERROR = RequestError(ErrorCode.MODEL_PREDICT_ERROR, "The model answered 500: no")
CHUNK_BYTES = 256 << 10
PROCESS = "process"
"""The holder that `deliverer.py` is."""
SWEEP_S = 0.02
SHORT_LEASE_S = 7.0
"""Lease for tests that wait for its end, in place of the scripts' own."""
CONNECT_TIMEOUT_S = 5.0
DEFAULT_TIMEOUTS = TellerTimeouts()
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Place:
    """Names that are linked to local receivers, and whose authority vouches for them: results go there."""

    redis_url: str
    links: str
    ca_file: str
    resolve: Resolve | None = None


@dataclass
class Deliverer:
    """One worker's deliveries, with the sweeps of one workspace or more."""

    client: QueueClient
    deliveries: Deliveries
    counts: AsyncCounts
    troubles: list[str]
    workspaces: tuple[str, ...]
    """Workspaces whose queues the worker sweeps."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.deliveries.run())
            group.create_task(self._sweep())

    async def _sweep(self) -> None:
        queue = RedisAttemptQueue(self.client, 3600, 1 << 30)
        while True:
            with suppress(QueueUnavailableError):
                for workspace_id in self.workspaces:
                    if (await queue.sweep(workspace_id)).deliveries:
                        self.deliveries.due(workspace_id)
            await asyncio.sleep(SWEEP_S)


class NotingTeller(WebhookTeller):
    """Keeps what the log would say."""

    troubles: list[str]

    async def tell(self, delivery: Delivery) -> str:
        trouble = await super().tell(delivery)
        if trouble:
            self.troubles.append(trouble)
        return trouble


@asynccontextmanager
async def delivering(
    place: Place,
    timeouts: TellerTimeouts = DEFAULT_TIMEOUTS,
    again_in_ms: Callable[[Delivery], int | None] = lambda delivery: 50,
    workspaces: tuple[str, ...] = (WS,),
    holder: str = "",
) -> AsyncIterator[Deliverer]:
    """A worker that delivers until the block ends."""
    client = QueueClient(place.redis_url)
    rules = EgressRules.parse(place.links)
    upstream = HttpUpstream(Egress(rules, CONNECT_TIMEOUT_S, place.ca_file, place.resolve))
    queue = RedisDeliveryQueue(client)
    parts = TellerParts(
        chunks=queue, directory=directory(*workspaces), upstream=upstream, egress=rules, keys=KEYS, timeouts=timeouts
    )
    teller = NotingTeller(parts)
    counts = AsyncCounts()
    teller.troubles = []
    delivery_parts = DeliveryParts(queue=queue, teller=teller, counts=counts, again_in_ms=again_in_ms)
    deliverer = Deliverer(
        client, Deliveries(delivery_parts, holder or f"worker-{next(_numbers)}"), counts, teller.troubles, workspaces
    )
    task = asyncio.create_task(deliverer.run())
    try:
        yield deliverer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await upstream.aclose()
        await client.close()


def directory(*workspaces: str) -> FakeDirectory:
    fake_directory = FakeDirectory()
    for id in workspaces:
        sealed = SigningSecrets(seal(KEYS, id, SECRET, b"n" * 12))
        fake_directory.workspaces[id] = WorkspaceRow(id, "active", "basic", True, None, sealed)
    return fake_directory


@dataclass
class Requests:
    """Requests that end, and how they are seen by their callers."""

    client: QueueClient
    ids: "itertools.count[int]" = field(default_factory=itertools.count)

    async def ended(
        self, url: str, answer: bytes | None = b'{"a":1}', is_json: bool = True, workspace_id: str = WS
    ) -> str:
        """A request whose outcome is decided: it has this answer, or it failed."""
        deployment = replace(DEPLOYMENT, workspace_id=workspace_id)
        id = f"req_{next(self.ids)}"
        attempts = RedisAttemptQueue(self.client, 3600, 1 << 30)
        await RedisRequestQueue(self.client, 1 << 20).submit(
            NewRequest(id, deployment, "/predict", Submission(b"{}", url)), parks=False
        )
        attempt = await attempts.start(deployment, "runner")
        assert attempt is not None
        assert attempt.ref.request_id == id
        if answer is None:
            assert await attempts.finish(attempt.ref, Failed(ERROR))
            return id
        chunks = [answer[at : at + CHUNK_BYTES] for at in range(0, len(answer), CHUNK_BYTES)]
        for number, chunk in enumerate(chunks):
            await attempts.store(attempt.ref, number, chunk)
        assert await attempts.finish(attempt.ref, Succeeded(len(answer), len(chunks), is_json))
        return id

    async def state(self, id: str, workspace_id: str = WS) -> RequestState:
        state = await RedisRequestQueue(self.client, 1 << 20).state(workspace_id, id)
        assert state is not None
        return state

    async def until(self, id: str, status: Status, workspace_id: str = WS) -> RequestState:
        async def reached() -> bool:
            return (await self.state(id, workspace_id)).status is status

        await eventually(reached, f"{id} {status}")
        return await self.state(id, workspace_id)


def tries(counts: AsyncCounts) -> Counter[str]:
    return Counter(counts.drain().get("deliveries", {}))
