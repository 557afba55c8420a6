"""An async worker's runner over the queue in memory, the real switchboard and a scripted replica."""

import asyncio
from collections.abc import Callable
from time import monotonic, time

from policy.deployments import ACTIVE, Deployment
from policy.snapshot import ModelRow
from proxy.async_requests.requests import DeploymentRef, NewRequest, RequestState, RetryRules, Submission
from proxy.async_requests.states import Phase, Status
from proxy.async_worker.deployments import Deployments
from proxy.async_worker.leases import Leases
from proxy.async_worker.places import Places
from proxy.async_worker.request_attempts import AttemptParts, RequestAttempts
from proxy.async_worker.request_runner import RequestRunner, RunnerParts
from proxy.edges.telemetry.async_counts import AsyncCounts
from tests.fakes.async_queue import FakeAsyncQueue
from tests.fakes.directory import FakeDirectory
from tests.fakes.replicas import FakeReplicas
from tests.fakes.upstream_client import FakeUpstream
from tests.waiting import eventually

A = "http://a:1"
B = "http://b:1"
D1 = DeploymentRef("w1", "m1", "d1")
D2 = DeploymentRef("w2", "m2", "d2")
HOOK = "https://hooks.example.com/in"


class Rig:
    """One async worker. `w1` has deployment d1, `w2` has d2. `skew_ms` moves the queue's clock."""

    def __init__(self, most: int = 100, timeout_s: float = 3600) -> None:
        self.skew_ms = 0
        self.queue = FakeAsyncQueue(lambda: int(time() * 1000) + self.skew_ms, timeout_s=timeout_s)
        self.directory = FakeDirectory()
        self.deploy(D1, A)
        self.deploy(D2, B)
        self.replicas = FakeReplicas(self.directory)
        self.directory.on_models = self.replicas.changed
        self.upstream = FakeUpstream()
        self.counts = AsyncCounts()
        self.leases = Leases(self.queue.renew)
        self.places = Places(most, 0.75)
        self.runner = self.process("one")
        self._numbers = 0

    def process(self, holder: str) -> RequestRunner:
        parts = AttemptParts(
            queue=self.queue, upstream=self.upstream, leases=self.leases, meters=self.counts, stream_idle_timeout_s=300
        )
        return RequestRunner(
            RunnerParts(
                queue=self.queue,
                replicas=self.replicas,
                attempts=RequestAttempts(parts),
                places=self.places,
                deployments=Deployments(self.directory),
                meters=self.counts,
                holder=holder,
                clock=monotonic,
            )
        )

    def deploy(self, ref: DeploymentRef, *urls: str, status: str = ACTIVE, most: int | None = None) -> None:
        deployment = Deployment(ref.deployment_id, status, urls, None, most)
        row = ModelRow(ref.model_id, ref.workspace_id, {deployment.id: deployment}, {"production": deployment.id})
        self.directory.models[ref.model_id] = row
        self.directory.on_models()

    async def submit(
        self, ref: DeploymentRef = D1, model_input: bytes = b"{}", webhook: str | None = None, attempts: int = 3
    ) -> str:
        self._numbers += 1
        submission = Submission(model_input, webhook, retries=RetryRules(attempts, 0, 0))
        await self.queue.submit(NewRequest(f"r{self._numbers}", ref, "/predict", submission), parks=False)
        return f"r{self._numbers}"

    async def sweep(self, *runners: RequestRunner) -> None:
        """Sweep every workspace, as a process does each second and after a hint."""
        for runner in runners or (self.runner,):
            for workspace_id in {"w1", "w2", *await self.queue.workspaces()}:
                runner.found(workspace_id, await self.queue.sweep(workspace_id))

    async def state(self, id: str, workspace_id: str = "w1") -> RequestState:
        state = await self.queue.state(workspace_id, id)
        assert state is not None
        return state

    async def until(self, status: Status, id: str, workspace_id: str = "w1") -> RequestState:
        """Sweep until the request has this status; return its state."""

        async def look() -> bool:
            await self.sweep()
            return (await self.state(id, workspace_id)).status is status

        await eventually(look, f"{id} is {status}")
        return await self.state(id, workspace_id)

    async def eventually(self, look: Callable[[], object], what: str = "") -> None:
        await eventually(look, what, every_s=0.001)

    def figures(self, deployment_id: str = "d1") -> tuple[int, int, int]:
        """Return how many calls are in flight, queued and parked at the switchboard."""
        load = self.replicas.switchboard.load_of(deployment_id)
        return (load.in_flight, load.queued, load.parked) if load is not None else (0, 0, 0)

    def phase(self, id: str) -> Phase:
        return self.queue.entries[id].phase

    def check_nothing_is_held(self) -> None:
        assert self.figures("d1") == self.figures("d2") == (0, 0, 0)
        assert (self.places.taken, self.places.unsent_bytes) == (0, 0)
        assert not self.leases._entries


async def turns(count: int) -> None:
    """Let the event loop run so often."""
    for _ in range(count):
        await asyncio.sleep(0)
