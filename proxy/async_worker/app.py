"""Composition root of an async worker: builds all dependencies in order, works until SIGTERM, stops all in reverse.

Only here do the queue, the upstream client and the rest of the edges meet.
"""

import asyncio
import contextlib
import signal
import socket
from dataclasses import dataclass

from proxy.async_requests.deliveries import again_in_ms
from proxy.async_requests.requests import AttemptRef, Work
from proxy.async_worker.delivery import Deliveries, DeliveryParts
from proxy.async_worker.deployments import Deployments
from proxy.async_worker.leases import Leases
from proxy.async_worker.places import Places
from proxy.async_worker.request_attempts import AttemptParts, RequestAttempts
from proxy.async_worker.request_runner import RequestRunner, RunnerParts
from proxy.async_worker.scanner import Scanner
from proxy.async_worker.webhook_teller import TellerParts, WebhookTeller
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.replica_file import ReplicaStamp, stamp_path
from proxy.edges.process.channel import SupervisorLink
from proxy.edges.process.replica_requests import ReplicaRequests, WaitingTimes
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.commands import remedy_for
from proxy.edges.redis.async_queue.delivery_queue import RedisDeliveryQueue
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.settings import Settings
from runtime.background import running
from runtime.exhaustion import Exhaustion
from runtime.secret_keys import services_of

DELIVERY_DRAIN_S = 15.0
"""Deliveries may take no longer to end: they can be made again, and cost no model any work."""


async def serve(settings: Settings, incarnation: str, channel: socket.socket) -> None:
    """Run one async worker until SIGTERM, or until the supervisor has died."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        link = SupervisorLink(on_lost=stop.set)
        await link.open(channel)
        stack.callback(link.close)
        edges = _edges(settings, link, stack)
        link.flush = edges.meters.flush
        exhaustion = Exhaustion("attempts or deliveries of asynchronous requests failed; they are repeated")
        link.health = lambda: {"trouble": _trouble(edges.client), "exhausted": exhaustion.trouble}
        leases, runner = _request_runner(settings, edges, incarnation, exhaustion)
        deliveries = _deliveries(settings, edges, incarnation, exhaustion)

        def found(workspace_id: str, work: Work) -> None:
            runner.found(workspace_id, work)
            if work.deliveries:
                deliveries.due(workspace_id)

        scanner = Scanner(edges.queue, found)
        services = (scanner.run, leases.run, runner.standings.run, deliveries.run)
        await stack.enter_async_context(running(*services, *services_of(settings.secret_keys)))
        link.serving()
        await stop.wait()
        drain_s = settings.drain_timeout_s
        await asyncio.gather(runner.drain(drain_s), deliveries.drain(min(drain_s, DELIVERY_DRAIN_S)))


@dataclass(frozen=True, slots=True)
class _Edges:
    link: SupervisorLink
    client: QueueClient
    queue: RedisAttemptQueue
    upstream: HttpUpstream
    directory: SnapshotDirectory
    meters: WorkerMetrics


def _edges(settings: Settings, link: SupervisorLink, stack: contextlib.AsyncExitStack) -> _Edges:
    """Build the edges. The stack closes them in reverse order."""
    meters = WorkerMetrics(link)
    stack.callback(meters.close)
    client = QueueClient(settings.async_requests.redis_url)
    stack.push_async_callback(client.close)
    queue = RedisAttemptQueue(client, settings.async_requests.timeout_s, settings.async_requests.max_answer_bytes)
    upstream = HttpUpstream(Egress(settings.egress, settings.connect_timeout_s, settings.egress_ca_file))
    stack.push_async_callback(upstream.aclose)
    stamp = ReplicaStamp(stamp_path(settings.replica_path))
    stack.callback(stamp.close)
    directory = SnapshotDirectory(settings.replica_path, settings.secret_keys, stamp, link)
    stack.callback(directory.close)
    return _Edges(link, client, queue, upstream, directory, meters)


def _request_runner(
    settings: Settings, edges: _Edges, incarnation: str, exhaustion: Exhaustion
) -> tuple[Leases[AttemptRef], RequestRunner]:
    leases = Leases(edges.queue.renew)
    meters = edges.meters.async_requests
    attempts = RequestAttempts(
        AttemptParts(
            queue=edges.queue,
            upstream=edges.upstream,
            leases=leases,
            meters=meters,
            stream_idle_timeout_s=settings.stream_idle_timeout_s,
            on_exhausted=exhaustion.note,
        )
    )
    parts = RunnerParts(
        queue=edges.queue,
        replicas=ReplicaRequests(edges.link, WaitingTimes()),
        attempts=attempts,
        places=Places(settings.async_requests.max_running, settings.capacity.workspace_share),
        deployments=Deployments(edges.directory),
        meters=meters,
        holder=incarnation,
    )
    return leases, RequestRunner(parts)


def _deliveries(settings: Settings, edges: _Edges, incarnation: str, exhaustion: Exhaustion) -> Deliveries:
    queue = RedisDeliveryQueue(edges.client)
    teller = WebhookTeller(
        TellerParts(
            chunks=queue,
            directory=edges.directory,
            upstream=edges.upstream,
            egress=settings.egress,
            keys=settings.secret_keys,
            on_exhausted=exhaustion.note,
        )
    )
    parts = DeliveryParts(
        queue=queue,
        teller=teller,
        counts=edges.meters.async_requests,
        again_in_ms=again_in_ms,
    )
    return Deliveries(parts, incarnation)


def _trouble(client: QueueClient) -> str:
    """Return the warning for `/readyz` that asynchronous requests are kept, but make no progress; empty if they do."""
    if not client.trouble:
        return ""
    return f"Redis does not serve asynchronous requests, so they wait: {client.trouble}. {remedy_for(client.trouble)}"
