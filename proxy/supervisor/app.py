"""Composition root of the supervisor, the proxy's parent process.

It opens the listeners, keeps workers running, copies policy from control into the policy replica, assigns replicas to
platform calls, ships events and serves the admin port. No inference call passes through it. SIGTERM drains: the
workers finish their calls, then the journals are shipped. No worker outlives the supervisor.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from proxy.edges.journal.supervisor.ingest_client import HttpIngestClient
from proxy.edges.journal.supervisor.machine_reports import MachineReports
from proxy.edges.journal.supervisor.shipped_events import ShippedOptions
from proxy.edges.journal.supervisor.shipper import Shipper, ShipperOptions
from proxy.edges.policy.recorded_time import recorded_time_path
from proxy.edges.policy.supervisor.control_feed import ControlFeed
from proxy.edges.policy.supervisor.group_probe import GroupProbe
from proxy.edges.policy.supervisor.hints import HintSubscriber
from proxy.edges.policy.supervisor.model_rows import ModelRows, WatchedReplica
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.edges.policy.supervisor.provider_keys import ProviderKeys
from proxy.edges.policy.supervisor.secret_probe import SecretProbe
from proxy.edges.policy.supervisor.time_recorder import TimeRecorder
from proxy.edges.process.channel import Message
from proxy.edges.process.supervisor.replica_answers import ReplicaAnswers
from proxy.edges.process.supervisor.worker_certificate import NOT_FOR_WORKERS, WorkerCertificate
from proxy.edges.process.supervisor.worker_processes import (
    ASYNC_WORKER,
    PortInUseError,
    SlotCallbacks,
    WorkerSlot,
    open_listeners,
    proxy_worker,
)
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.overview import RedisQueueOverview
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.supervisor.dead_holders import DeadHolders
from proxy.edges.redis.supervisor.probe import RedisProbe
from proxy.edges.redis.supervisor.worker_places import WorkerPlaces
from proxy.edges.replicas.supervisor.control_reports import (
    DEPLOYMENTS,
    MACHINES,
    REQUESTS,
    TRAFFIC,
    ControlReports,
    Topic,
)
from proxy.edges.replicas.supervisor.deployment_services import DeploymentServices
from proxy.edges.telemetry.supervisor.admin_port import admin_app
from proxy.edges.telemetry.supervisor.clock_steps import RedisClockSteps
from proxy.edges.telemetry.supervisor.label_sweep import LabelSweep
from proxy.edges.telemetry.supervisor.metrics_keys import MetricsKeys
from proxy.edges.telemetry.supervisor.request_reports import RequestReports
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from proxy.edges.telemetry.supervisor.traffic_reports import TrafficReports
from proxy.edges.upstream.client import HttpUpstream, PoolLimits
from proxy.edges.upstream.egress import Egress
from proxy.records.supervisor.findings import OK, Finding
from proxy.settings import Settings
from proxy.supervisor.readiness import Check, Readiness
from proxy.supervisor.refresher import Refresher
from runtime.background import running
from runtime.http.listening import listen_on
from runtime.http.server import FrontLimits, FrontRunner
from runtime.private_files import describe_closed, tighten_directory, tighten_files
from runtime.secret_keys import services_of

if TYPE_CHECKING:
    from runtime.metrics_export.export import MetricExport

WORKER_EXIT_S = 2.0
"""Seconds that a worker may take after the drain timeout to journal the calls that it cut off. Then it is killed."""
FINAL_SHIPPING_S = 2.0
"""Seconds that shutdown waits for the last events to be shipped. The others stay in the journal for the next start."""
PROBE_CONNECTIONS = PoolLimits(idle_s=0.2)
"""A probe has a connection of its own, unless the last one is a moment old: a replica must accept connections."""
ADMIN_LIMITS = FrontLimits(max_connections=128, code_member="error_code")
DRAINING = Finding(fault="draining")
ASYNC_ANSWER_S = 0.3
"""Seconds that `/readyz` waits for an async worker. A probe of readiness must not wait for what is only degraded."""
ASYNC_REMEDY = "See this log for why it ended or is busy"
REDIS_REMEDY = "Check the Redis server, the network, TOLLGATE_REDIS_URL and the permissions of its user"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bind:
    """Addresses and ports on which the proxy listens, and the number of its workers."""

    host: str
    proxy_port: int
    admin_host: str
    admin_port: int
    workers: int


class Supervisor:
    """Builds and runs everything in the supervisor process. `run` returns after the drain."""

    def __init__(self, settings: Settings, bind: Bind, worker_environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._bind = bind
        self._environ = {name: value for name, value in worker_environ.items() if name not in NOT_FOR_WORKERS}
        self._certificate: WorkerCertificate | None = None
        self._slots: list[WorkerSlot] = []
        """Slots of proxy workers. The slots of async workers are numbered after them."""
        self._async_slots: list[WorkerSlot] = []
        self._draining = False
        self._stop = asyncio.Event()
        self._totals = MetricTotals(settings.metrics_max_entities, self._readings, settings.metrics_max_slugs)
        self._clock_steps = RedisClockSteps()
        self._totals.include(self._clock_steps)
        self._models = ModelRows()
        self._replicas = ReplicaAnswers(self._models, self._send_to_worker)
        self._models.listen(self._replicas.models_changed)
        self._groups = GroupProbe(settings.replica_path)
        self._time = TimeRecorder(recorded_time_path(settings.journal_dir))
        self._secrets = SecretProbe(settings.replica_path, settings.secret_keys)
        self._readiness = Readiness(self._checks())

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            sweep = LabelSweep(self._totals, self._replica)
            services = (self._refresher.run, self._hints.run, self._readiness.watch, sweep.run, self._traffic.run)
            await stack.enter_async_context(running(*self._deployments.services))
            services += services_of(self._settings.secret_keys)
            await stack.enter_async_context(running(*services, self._dead_holders.run, self._places.run))
            await stack.enter_async_context(running(self._machine.run, self._machine.rebuilds.run, self._requests.run))
            await stack.enter_async_context(running(self._time.run))
            export = self._metric_export()
            if export is not None:
                await stack.enter_async_context(running(export.run))
            self._shipper.start(self._live_incarnations, self._settled)
            slots = [asyncio.create_task(slot.run()) for slot in self._all_slots]
            await self._stop.wait()
            await self._drain(slots)
            shipped = self._shipper.drain(FINAL_SHIPPING_S)
            within_s = FINAL_SHIPPING_S
            figures = (self._traffic.finish(within_s), self._requests.finish(within_s))
            last_reports = [self._deployments.finish(within_s), *figures]
            if export is not None:
                last_reports.append(export.close())
            if (await asyncio.gather(shipped, *last_reports))[0]:
                await self._machine.finish(within_s)
            else:
                log.warning(
                    "Some events could not be sent to control before shutdown; they stay in the journal and are sent"
                    " after the next start."
                )

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        """Open everything in order. The stack closes it in reverse.

        The admin port is bound first, because that fails when another proxy runs here, and served last. Connections
        that arrive in between wait in its queue.
        """
        admin = self._bind_admin_port()
        stack.callback(admin.close)
        self._restrict_permissions()
        self._replica = PolicyReplica(self._settings.replica_path)
        stack.callback(self._replica.close)
        stack.callback(self._time.close)
        self._time.record()  # before a worker reads it
        settings = self._settings
        feed = ControlFeed(settings.control_url, settings.internal_token, settings.control_tls)
        stack.push_async_callback(feed.close)
        watched = WatchedReplica(self._replica, self._models)
        self._refresher = Refresher(watched, feed, settings.refresh_interval_s, self._started_over)
        follow = self._refresher.refresh_on_demand
        self._provider_keys = ProviderKeys(settings.control_url, settings.internal_token, follow, settings.control_tls)
        stack.push_async_callback(self._provider_keys.close)
        self._open_deployments(stack)
        self._open_call_reports(stack)
        if not await self._models.load(self._settings.replica_path):
            await self._check_replica()
        self._hints = HintSubscriber(self._settings.redis_url, self._refresher.hint)
        stack.push_async_callback(self._hints.close)
        await self._open_shipper(stack)
        listeners = open_listeners(self._bind.host, self._bind.proxy_port, self._bind.workers)
        for listener in listeners:
            stack.callback(listener.close)
        if (files := self._settings.tls) is not None:
            self._certificate = WorkerCertificate(files, self._tell_workers)
            stack.callback(self._certificate.close)
            await stack.enter_async_context(running(files.follow))
        self._make_slots(listeners)
        await self._serve_admin(stack, admin)
        bind = self._bind
        log.info("Proxy on %s:%d, admin on %s:%d.", bind.host, bind.proxy_port, bind.admin_host, bind.admin_port)

    def _open_call_reports(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        self._traffic = TrafficReports(self._control_reports(TRAFFIC))
        stack.push_async_callback(self._traffic.close)
        self._requests = RequestReports(self._control_reports(REQUESTS), settings.request_max_per_s)
        self._totals.include(self._requests)
        stack.push_async_callback(self._requests.close)

    def _control_reports(self, topic: Topic = DEPLOYMENTS) -> ControlReports:
        settings = self._settings
        return ControlReports(settings.control_url, settings.internal_token, topic, tls=settings.control_tls)

    def _metric_export(self) -> "MetricExport | None":
        settings = self._settings.metric_export
        if settings is None:
            return None
        # Imported here, because a process that sends no metrics must not pay for what it does not use.
        from runtime.collector.resource import PROXY_SERVICE, resource_at
        from runtime.metrics_export.export import MetricExport

        resource = resource_at(PROXY_SERVICE, self._bind.admin_port)
        export = MetricExport(settings, resource, self._totals.exported, self._read_figures)
        self._totals.include(export.counts)
        return export

    def _make_slots(self, listeners: Sequence[socket.socket]) -> None:
        environ = self._environ
        workers = len(listeners)
        confirm = self._refresher.refresh_on_demand
        keys = self._provider_keys.refresh
        damage = self._check_replica
        replicas = self._replicas.received
        on_start = self._machine.started
        places = self._places.received
        callbacks = SlotCallbacks(self._counted, self._worker_died, confirm, damage, replicas, on_start, places, keys)
        pair_fd = None if self._certificate is None else self._certificate.fd
        programs = [proxy_worker(listener, pair_fd) for listener in listeners]
        self._slots = [WorkerSlot(n, program, environ, callbacks) for n, program in enumerate(programs)]
        callbacks = SlotCallbacks(self._counted, self._async_worker_died, confirm, damage, replicas)
        numbers = range(workers, workers + self._async_workers)
        self._async_slots = [WorkerSlot(n, ASYNC_WORKER, environ, callbacks) for n in numbers]

    @property
    def _async_workers(self) -> int:
        """The number of this machine's processes that run asynchronous requests."""
        return self._settings.async_requests.workers if self._settings.async_requests.enabled else 0

    @property
    def _all_slots(self) -> list[WorkerSlot]:
        """All slots, ordered by number."""
        return [*self._slots, *self._async_slots]

    def _open_deployments(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        reports = self._control_reports()
        stack.push_async_callback(reports.close)
        egress = Egress(settings.egress, settings.connect_timeout_s, settings.egress_ca_file)
        probes = HttpUpstream(egress, PROBE_CONNECTIONS)
        stack.push_async_callback(probes.aclose)
        board = self._replicas.switchboard
        self._deployments = DeploymentServices(board, probes, reports, settings.metrics_max_slugs)
        stack.push_async_callback(self._deployments.aclose)
        self._replicas.waker = reports
        self._models.listen(self._deployments.models_changed)
        self._totals.include(self._deployments.metrics)
        figures = self._totals.async_requests
        figures.exists = lambda deployment_id: board.workspace_of(deployment_id) is not None
        queue = QueueClient(settings.async_requests.redis_url)
        stack.push_async_callback(queue.close)
        self._dead_holders = DeadHolders(queue)
        if settings.async_requests.enabled:
            figures.queue = RedisQueueOverview(queue)

    def _tell_workers(self, message: Message) -> None:
        for slot in self._slots:
            slot.send(message)

    def _send_to_worker(self, slot: int, message: Message) -> None:
        self._all_slots[slot].send(message)

    def _restrict_permissions(self) -> None:
        """Close the journals' directory and the replica's files to other users.

        The replica may share its directory with files that are not the proxy's.
        """
        replica = self._settings.replica_path
        journals = self._settings.journal_dir
        suffixes = ("", "-wal", "-shm", ".stamp", ".lock")
        opened = tighten_files(*(replica.with_name(replica.name + suffix) for suffix in suffixes))
        opened += tighten_directory(journals) if journals.exists() else []
        if opened:
            log.warning("%s", describe_closed(opened))

    def _started_over(self) -> None:
        """Control's database was restored or replaced, so it may also lack events that it had committed."""
        self._shipper.check_control()

    async def _open_shipper(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        ingest = HttpIngestClient(settings.control_url, settings.internal_token, settings.control_tls)
        stack.push_async_callback(ingest.close)
        options = CountersOptions(
            on_loss="closed",
            call_timeout_s=settings.call_timeout_s,
            client=RedisClientOptions(deadline_s=settings.redis_timeout_s),
            on_clock_step=partial(self._clock_steps.noticed, None),
        )
        counters = RedisCounters(settings.redis_url, f"supervisor-{secrets.token_hex(8)}", options=options)
        await counters.start()
        stack.push_async_callback(counters.close)
        self._redis = RedisProbe(counters, self._hints)
        self._places = WorkerPlaces(counters.places.tell)
        shipped = ShippedOptions(settings.shipped_retention_s, settings.shipped_max_bytes)
        shipping = ShipperOptions(
            look_back_interval_s=settings.refresh_interval_s, memory_root=settings.journal_memory_dir, shipped=shipped
        )
        self._shipper = Shipper(settings.journal_dir, ingest, counters, shipping)
        reports = self._control_reports(MACHINES)
        stack.push_async_callback(reports.close)
        self._machine = MachineReports(reports, settings.journal_dir, lambda: self._slots, self._shipper.committed)
        self._shipper.on_removed = self._machine.changed

    def _bind_admin_port(self) -> socket.socket:
        host = self._bind.admin_host
        port = self._bind.admin_port
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError:
            raise PortInUseError(host, port) from None

    async def _serve_admin(self, stack: contextlib.AsyncExitStack, admin: socket.socket) -> None:
        settings = self._settings
        keys = MetricsKeys(settings.replica_path, settings.metrics_token, self._refresher.refresh_on_demand)
        app = admin_app(self._readiness.report, self._metrics_text, keys.workspace_shown)
        runner = FrontRunner(app, ADMIN_LIMITS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await listen_on(runner, admin)

    async def _drain(self, slots: Iterable[asyncio.Task[None]]) -> None:
        self._draining = True
        settings = self._settings
        log.info(
            "Draining: /readyz answers 503. New connections are accepted for %g s; calls are cut off after %g s.",
            settings.ready_grace_s,
            settings.drain_timeout_s,
        )
        self._readiness.mark_logged("workers", DRAINING)
        for slot in self._all_slots:
            slot.retire()
        _, late = await asyncio.wait(slots, timeout=settings.drain_timeout_s + WORKER_EXIT_S)
        for slot in self._all_slots:
            slot.kill()
        if late:
            log.error(
                "Killed %d workers that did not end within TOLLGATE_DRAIN_TIMEOUT_S; their calls were cut off.",
                len(late),
            )
            await asyncio.wait(late)

    def _checks(self) -> Mapping[str, Check]:
        checks: dict[str, Check] = {
            "policy": lambda: self._refresher.policy_finding(),  # noqa: PLW0108 (it is made when the proxy starts)
            "secrets": lambda: self._secrets.finding(self._replica.version),
            "groups": lambda: self._groups.finding(self._replica.version),
            "workers": self._workers_check,  # the next three read what the workers answer to this one
            "journal": self._journal_check,
            "capacity": self._capacity_check,
            "redis": self._redis_check,
            "redis_clock": self._clock_steps.finding,
            "clock": self._time.finding,
            "control": self._control_check,
            "hints": self._hints_check,
        }
        return checks | {"async": self._async_check} if self._async_workers else checks

    async def _workers_check(self) -> Finding:
        if self._draining:
            return DRAINING
        answers = await asyncio.gather(*(slot.flush() for slot in self._slots))
        return OK if all(answers) else Finding(fault=f"{sum(answers)} of {len(answers)} serve")

    async def _journal_check(self) -> Finding:
        return Finding(
            fault="; ".join(dict.fromkeys(t for slot in self._slots for t in slot.health.get("journal", ())))
        )

    async def _capacity_check(self) -> Finding:
        """Degraded while a worker, of either kind, has run out of descriptors or memory: other calls go on."""
        texts = (slot.health.get("exhausted", "") for slot in self._all_slots)
        return Finding(degraded=next(filter(None, texts), ""))

    async def _redis_check(self) -> Finding:
        """Check Redis from the supervisor and read what the workers reported in `_workers_check`.

        When limits are enforced without Redis, a fault means that a worker does not know its share yet. During a drain
        the workers are ignored: those that have ended report nothing.
        """
        trouble = await self._redis.trouble()
        if trouble and self._settings.limits_on_redis_loss == "closed":
            return Finding(fault=f"{trouble}. {REDIS_REMEDY}")
        if not self._draining and not all(slot.health.get("limits") for slot in self._slots):
            return Finding(fault="Redis does not answer every worker")
        if trouble:
            return Finding(degraded=f"{trouble}; each worker enforces its share of every limit. {REDIS_REMEDY}")
        return OK

    async def _control_check(self) -> Finding:
        """Degraded while refreshes fail. Before the first refresh, `policy_finding` reports it as a fault."""
        return Finding(degraded=self._refresher.trouble) if self._replica.version.loaded else OK

    async def _hints_check(self) -> Finding:
        return Finding(degraded=self._hints.trouble)

    async def _async_check(self) -> Finding:
        """Never fails readiness, because other calls need no async worker; takes at most ASYNC_ANSWER_S."""
        slots = self._async_slots
        answers = await asyncio.gather(*(slot.flush(ASYNC_ANSWER_S) for slot in slots))
        if not all(answers) and not self._draining:
            text = f"{sum(answers)} of {len(answers)} async workers serve; what others run waits. {ASYNC_REMEDY}"
            return Finding(degraded=text)
        return Finding(degraded=next((text for slot in slots if (text := str(slot.health.get("trouble", "")))), ""))

    async def _metrics_text(self, accept: str, workspace: str) -> tuple[bytes, str]:
        await self._read_figures()
        return await asyncio.to_thread(self._totals.text, accept, workspace)

    async def _read_figures(self) -> None:
        """Have the metrics take the latest figures of workers, queue and deployments."""
        await asyncio.gather(*(slot.flush() for slot in self._all_slots), self._totals.async_requests.read())
        self._deployments.metrics.read()

    def _readings(self) -> Iterable[tuple[str, str, float]]:
        if self._certificate is not None:
            yield from self._certificate.readings()
        confirmed_at_s = self._replica.confirmed_at_s
        age_s = time.monotonic() - confirmed_at_s if confirmed_at_s else float("inf")
        yield "tollgate_snapshot_age_seconds", "Time since control last confirmed the policy", age_s
        shipper = self._shipper
        troubled = sum(bool(slot.health.get("journal")) for slot in self._slots)
        yield "tollgate_journal_pending_events", "Events that control has not confirmed yet", shipper.pending
        yield "tollgate_journal_troubled_workers", "Workers whose journal refuses calls, or soon will", troubled
        yield "tollgate_journal_damaged_places", "Damaged places found in journals since start", shipper.damaged
        yield (
            "tollgate_journal_retained_bytes",
            "Committed events kept for a restore of control",
            shipper.retained_bytes,
        )
        yield "tollgate_journal_resent_events", "Events sent again after a restore, since start", shipper.resent
        yield (
            "tollgate_journal_rejected_events",
            "Events that control rejected as malformed, since start",
            shipper.rejected,
        )

    async def _settled(self, incarnation: str) -> int:
        """Return the number up to which this worker's settlements are in Redis; 0 if it died or does not answer."""
        for slot in self._slots:
            if slot.incarnation == incarnation:
                settled = await slot.settled()
                return settled if slot.incarnation == incarnation else 0
        return 0

    def _live_incarnations(self) -> list[str]:
        return [slot.incarnation for slot in self._slots]

    def _counted(self, slot: int, counts: Message) -> None:
        self._totals.add(slot, counts)
        self._traffic.add(counts)
        if counts["calls"]:
            self._shipper.calls_ended()
        if "requests" in counts:
            self._requests.add(counts["requests"])
        self._clock_steps.add(slot, counts["clock_steps"])

    def _worker_died(self, slot: int, incarnation: str) -> None:
        self._slot_emptied(slot)
        self._shipper.worker_died(incarnation)
        self._places.died(incarnation)
        self._machine.changed()

    def _async_worker_died(self, slot: int, incarnation: str) -> None:
        self._slot_emptied(slot)
        self._dead_holders.died(incarnation)

    def _slot_emptied(self, slot: int) -> None:
        self._totals.forget_gauges(slot)
        self._replicas.switchboard.worker_died(slot)

    async def _check_replica(self) -> None:
        """Check the replica file after a worker failed to read it; have it rebuilt if it is damaged."""
        if await asyncio.to_thread(self._replica.forget_if_damaged):
            self._refresher.hint()
