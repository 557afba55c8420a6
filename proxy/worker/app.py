"""Composition root of one worker: builds all parts in order, serves until SIGTERM, stops all in reverse.

Only here do stages and edges meet. It promises that on the way down what is in flight ends first, then settlements and
counts leave, and the line to the supervisor closes last.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from policy.endpoints import VENDOR_C
from proxy.accounting.output_estimates import OutputEstimates
from proxy.dialects.middle.sealing import SealKeys
from proxy.dialects.registry import Dialects
from proxy.edges.http.server import HttpServer
from proxy.edges.journal.writer import JournalOptions, JournalWriter
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.recorded_time import LatestTime, RecordedTime, recorded_time_path
from proxy.edges.policy.replica_file import ReplicaStamp, stamp_path
from proxy.edges.process.channel import Message, SupervisorLink
from proxy.edges.process.replica_requests import ReplicaRequests, WaitingTimes
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.telemetry.access_log import AccessLogWriter
from proxy.edges.telemetry.gen_ai_counts import GenAiCounts
from proxy.edges.telemetry.listed_calls import ListedCalls
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.edges.upstream.receiver_urls import ReceiverUrls
from proxy.edges.upstream.vendor_c_tokens import TokenEndpoints, VendorCTokens
from proxy.parts import AsyncQueueing, DispatchSettings, Parts
from proxy.pipeline import Pipeline
from proxy.settings import Settings
from proxy.worker.first_use_queue import FirstUseQueue
from proxy.worker.memory import collect_garbage_less_often, keep_room, return_free_memory
from proxy.worker.spend_rebuilding import SpendRebuilding
from runtime.background import running
from runtime.exhaustion import Exhaustion
from runtime.http.console_looks import look_mark
from runtime.http.tls_layer import TlsListener
from runtime.secret_keys import services_of
from runtime.tls.context import server_context

if TYPE_CHECKING:
    from proxy.worker.tracing import WorkerTracing

UNKNOWN_PART = 10
"""The part of the calls in flight (a tenth) that may wait for control to confirm an unknown key."""
RENEW_AGAIN_S = 1.0
LAST_ANSWERS_S = 2.0
"""Calls that still wait for a replica are answered this long before the drain timeout ends. They may be thousands."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """A worker's start values from the supervisor: incarnation, listening socket, channel to the supervisor."""

    incarnation: str
    listener: socket.socket
    channel: socket.socket
    pair_fd: int | None = None
    """The file in memory with the certificate and key to show; None: it speaks plain HTTP."""


async def serve(settings: Settings, launch: WorkerLaunch) -> None:
    """Run one worker until SIGTERM, or until the supervisor has died."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        link = SupervisorLink(on_lost=stop.set)
        link.max_waiting = min(link.max_waiting, 1 + settings.capacity.max_in_flight // UNKNOWN_PART)
        await link.open(launch.channel)
        stack.callback(link.close)
        replicas = ReplicaRequests(link, WaitingTimes(settings.parking_timeout_s, settings.request_timeout_s))
        tracing = _tracing(settings, launch)
        if tracing is not None:
            stack.push_async_callback(tracing.close, link)
        parts, meters = await _parts(settings, launch, link, replicas, stack)
        tls = None if launch.pair_fd is None else _tls(launch.pair_fd, link)
        if tracing is not None:
            handle, refuse = tracing.handlers(parts, meters, _seal_keys(settings))
            server = HttpServer(handle, refuse=refuse, tls=tls)
        else:
            pipeline = Pipeline(parts)
            server = HttpServer(pipeline.handle, refuse=pipeline.refuse, tls=tls)
        await stack.enter_async_context(running(*services_of(settings.secret_keys)))
        await server.start(launch.listener)
        stack.push_async_callback(_drain, server, replicas, settings.drain_timeout_s - settings.ready_grace_s)
        collect_garbage_less_often()
        keep_room()
        link.serving()
        await stop.wait()
        server.announce_close()
        await asyncio.sleep(settings.ready_grace_s)  # /readyz is 503 now, so load balancers use other machines


def _tracing(settings: Settings, launch: WorkerLaunch) -> "WorkerTracing | None":
    if settings.traces is None:
        return None
    # Imported here, because a worker without traces must not pay for what it does not use.
    from proxy.worker.tracing import WorkerTracing

    return WorkerTracing(settings.traces, launch.incarnation)


def _tls(pair_fd: int, link: SupervisorLink) -> TlsListener:
    """Show the certificate in this file, which the supervisor has checked, and each later one."""
    tls = TlsListener(server_context(pair_fd), "error_code")

    def renew() -> None:
        try:
            tls.context = server_context(pair_fd)
        except OSError:  # no descriptor is left, or the supervisor writes just now
            asyncio.get_running_loop().call_later(RENEW_AGAIN_S, renew)

    link.on_certificate = renew
    return tls


async def _drain(server: HttpServer, replicas: ReplicaRequests, timeout_s: float) -> None:
    """Let calls end. Those that wait for a replica are answered in time, rather than cut off."""
    last_answers_s = min(LAST_ANSWERS_S, timeout_s / 2)
    timer = asyncio.get_running_loop().call_later(timeout_s - last_answers_s, replicas.end_waits)
    await server.drain(timeout_s)
    timer.cancel()


async def _parts(
    settings: Settings,
    launch: WorkerLaunch,
    link: SupervisorLink,
    replicas: ReplicaRequests,
    stack: contextlib.AsyncExitStack,
) -> tuple[Parts, WorkerMetrics]:
    """Build what the pipeline works with. The stack closes it in reverse order."""
    meters = _meters(settings, link, stack)
    journal = _call_journal(settings, launch.incarnation, stack)
    counters = await _counters(settings, launch.incarnation, meters, journal)
    counters.places.announce = link.may_hold
    counters.places.withdraw = link.holds_none
    exhaustion = Exhaustion()
    directory = _directory(settings, link, stack)
    rebuilding = SpendRebuilding(counters.spend, journal, link)

    def health() -> Message:
        directory.follow()
        return {
            "exhausted": exhaustion.trouble,
            "limits": counters.decides,
            "journal": list(journal.troubles),
            "settled": counters.settled_through,
            **rebuilding.health(),
        }

    link.health = health
    stack.push_async_callback(counters.close)
    upstream = _upstream_client(settings, stack)
    parts = Parts(
        directory=directory,
        counters=counters,
        spend=counters.spend,
        journal=journal,
        upstream=upstream,
        replicas=replicas,
        dialects=Dialects(monotonic, _seal_keys(settings)),
        output_estimates=OutputEstimates(),
        meters=meters,
        dispatch=_dispatch_settings(settings),
        max_body_bytes=settings.max_body_bytes,
        capacity=settings.capacity,
        max_reported_tokens=settings.max_reported_tokens,
        assumed_output_tokens=settings.assumed_output_tokens,
        call_timeout_s=settings.call_timeout_s,
        access_tokens=_access_tokens(settings, upstream, stack),
        tiers=settings.tiers,
        cors=settings.cors,
        trusted_proxies=settings.trusted_proxies,
        model_host_suffix=settings.model_host_suffix,
        look_mark=look_mark(settings.internal_token),
        async_queueing=_async_queueing(settings, meters, stack) if settings.async_requests.enabled else None,
        on_exhausted=exhaustion.note,
        now_ms=_latest_time(settings, stack).now_ms,
    )
    return parts, meters


def _meters(settings: Settings, link: SupervisorLink, stack: contextlib.AsyncExitStack) -> WorkerMetrics:
    listed = ListedCalls(settings.request_max_per_s)
    gen_ai = None if settings.metric_export is None else GenAiCounts()
    meters = WorkerMetrics(link, _access_log(stack).write, listed, gen_ai)
    link.flush = meters.flush
    stack.callback(meters.close)
    return meters


def _upstream_client(settings: Settings, stack: contextlib.AsyncExitStack) -> HttpUpstream:
    egress = Egress(settings.egress, settings.connect_timeout_s, settings.egress_ca_file)
    upstream = HttpUpstream(egress, on_burst_end=return_free_memory)
    stack.push_async_callback(upstream.aclose)
    return upstream


def _access_tokens(settings: Settings, upstream: HttpUpstream, stack: contextlib.AsyncExitStack) -> VendorCTokens:
    tokens = VendorCTokens(upstream, TokenEndpoints(settings.egress, settings.base_urls[VENDOR_C]))
    stack.push_async_callback(tokens.aclose)
    return tokens


def _access_log(stack: contextlib.AsyncExitStack) -> AccessLogWriter:
    access_log = AccessLogWriter(sys.stderr.fileno())
    access_log.start()
    stack.callback(access_log.close)
    return access_log


def _call_journal(settings: Settings, incarnation: str, stack: contextlib.AsyncExitStack) -> JournalWriter:
    options = JournalOptions(memory_root=settings.journal_memory_dir)
    journal = JournalWriter(settings.journal_dir, incarnation, options)
    journal.start()
    stack.callback(journal.stop)
    return journal


def _directory(settings: Settings, link: SupervisorLink, stack: contextlib.AsyncExitStack) -> SnapshotDirectory:
    stamp = ReplicaStamp(stamp_path(settings.replica_path))
    stack.callback(stamp.close)
    directory = SnapshotDirectory(settings.replica_path, settings.secret_keys, stamp, link)
    directory.follow()
    stack.callback(directory.close)
    return directory


def _latest_time(settings: Settings, stack: contextlib.AsyncExitStack) -> LatestTime:
    recorded = RecordedTime(recorded_time_path(settings.journal_dir))
    stack.callback(recorded.close)
    return LatestTime(recorded.cell)


async def _counters(
    settings: Settings, incarnation: str, meters: WorkerMetrics, journal: JournalWriter
) -> RedisCounters:
    options = CountersOptions(
        on_loss=settings.limits_on_redis_loss,
        call_timeout_s=settings.call_timeout_s,
        client=RedisClientOptions(deadline_s=settings.redis_timeout_s),
        on_round_trip=meters.redis_round_trip,
        on_local_decision=meters.decided_alone,
        on_clock_step=meters.redis_clock_stepped,
        before_settling=journal.write_now,
    )
    counters = RedisCounters(settings.redis_url, incarnation, options=options)
    await counters.start()
    return counters


def _async_queueing(settings: Settings, meters: WorkerMetrics, stack: contextlib.AsyncExitStack) -> AsyncQueueing:
    options = settings.async_requests
    queue = FirstUseQueue(options.redis_url, options.max_queued_bytes)
    stack.push_async_callback(queue.close)
    urls = ReceiverUrls(settings.egress)
    stack.callback(urls.close)
    return AsyncQueueing(
        queue=queue,
        webhook_urls=urls,
        counts=meters.async_requests,
        max_body_bytes=options.max_body_bytes,
        load=queue.load,
    )


def _seal_keys(settings: Settings) -> SealKeys:
    return SealKeys(settings.secret_keys, settings.base_urls)


def _dispatch_settings(settings: Settings) -> DispatchSettings:
    return DispatchSettings(
        base_urls=settings.base_urls,
        request_timeout_s=settings.request_timeout_s,
        stream_idle_timeout_s=settings.stream_idle_timeout_s,
    )
