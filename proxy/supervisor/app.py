"""The proxy's first process: one per machine. It keeps policy fresh, workers alive, and tells how things stand.

It opens the listeners, follows control into the replica, and serves the admin port; no request passes through it. It
promises that SIGTERM drains (workers finish, then journals are shipped) and that nothing survives it.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from proxy.edges.journal.supervisor.ingest_client import HttpIngestClient
from proxy.edges.journal.supervisor.shipped_events import ShippedOptions
from proxy.edges.journal.supervisor.shipper import Shipper, ShipperOptions
from proxy.edges.policy.supervisor.control_feed import ControlFeed
from proxy.edges.policy.supervisor.hints import HintSubscriber
from proxy.edges.policy.supervisor.replica import PolicyReplica
from proxy.edges.policy.supervisor.secret_probe import SecretProbe
from proxy.edges.process.supervisor.worker_processes import PortInUseError, SlotCallbacks, WorkerSlot, open_listeners
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.supervisor.probe import RedisProbe
from proxy.edges.telemetry.supervisor.admin_port import admin_app
from proxy.edges.telemetry.supervisor.label_sweep import LabelSweep
from proxy.edges.telemetry.supervisor.metrics_keys import MetricsKeys
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from proxy.settings import Settings
from proxy.supervisor.readiness import OK, Check, Finding, Readiness
from proxy.supervisor.refresher import Refresher
from runtime.http_server import FrontLimits, FrontRunner
from runtime.private_files import describe_closed, tighten_directory, tighten_files

WIND_UP_S = 2.0
"""What a worker gets beyond the drain timeout to write down what it cut off, before it is killed."""
SHIP_S = 2.0
"""What the last events get on their way to control; what does not arrive stays in the journal for the next start."""
ADMIN_LIMITS = FrontLimits(max_connections=128, code_member="error_code")
DRAINING = Finding(fault="draining")
REDIS_REMEDY = "Check the Redis server, the network, TOLLGATE_REDIS_URL and the permissions of its user"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bind:
    """Where the proxy listens, and with how many workers."""

    host: str
    proxy_port: int
    admin_host: str
    admin_port: int
    workers: int


class Supervisor:
    """Composition root of the first process; `run` is all of its life."""

    def __init__(self, settings: Settings, bind: Bind, worker_environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._bind = bind
        self._environ = worker_environ
        self._slots: list[WorkerSlot] = []
        self._draining = False
        self._stop = asyncio.Event()
        self._totals = MetricTotals(settings.metrics_max_entities, self._readings, settings.metrics_max_slugs)
        self._secrets = SecretProbe(settings.replica_path, settings.secret_keys)
        self._readiness = Readiness(self._checks())

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            sweep = LabelSweep(self._totals, self._replica)
            lives = (self._refresher.run, self._hints.run, self._readiness.watch, sweep.run)
            await stack.enter_async_context(_kept_running(*lives))
            self._shipper.start(lambda: [slot.incarnation for slot in self._slots], self._settled)
            slots = [asyncio.create_task(slot.run()) for slot in self._slots]
            await self._stop.wait()
            await self._drain(slots)
            if not await self._shipper.drain(SHIP_S):
                log.warning("some events have not reached control; they are in the journal for the next start")

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        """Everything in order; the stack closes it in reverse.

        The admin port is taken first, as it is taken by one alone, and served last: who asks early waits a moment.
        """
        admin = self._take_admin_port()
        stack.callback(admin.close)
        self._close_to_others()
        self._replica = PolicyReplica(self._settings.replica_path)
        stack.callback(self._replica.close)
        feed = ControlFeed(self._settings.control_url, self._settings.internal_token)
        stack.push_async_callback(feed.close)
        interval_s = self._settings.refresh_interval_s
        self._refresher = Refresher(self._replica, feed, interval_s, self._started_over)
        self._hints = HintSubscriber(self._settings.redis_url, self._refresher.hint)
        stack.push_async_callback(self._hints.close)
        await self._open_shipper(stack)
        listeners = open_listeners(self._bind.host, self._bind.proxy_port, self._bind.workers)
        for listener in listeners:
            stack.callback(listener.close)
        callbacks = SlotCallbacks(self._totals.add, self._worker_died, self._refresher.demand, self._check_replica)
        self._slots = [WorkerSlot(n, listener, self._environ, callbacks) for n, listener in enumerate(listeners)]
        await self._serve_admin(stack, admin)
        bind = self._bind
        log.info("proxy on %s:%d, admin on %s:%d", bind.host, bind.proxy_port, bind.admin_host, bind.admin_port)

    def _close_to_others(self) -> None:
        """The journals' directory is ours alone; the replica may stand beside files of others."""
        replica, journals = self._settings.replica_path, self._settings.journal_dir
        suffixes = ("", "-wal", "-shm", ".stamp", ".lock")
        opened = tighten_files(*(replica.with_name(replica.name + suffix) for suffix in suffixes))
        opened += tighten_directory(journals) if journals.exists() else []
        if opened:
            log.warning("%s", describe_closed(opened))

    def _started_over(self) -> None:
        """Control's policy is of another history than the replica's was: its events may be, too."""
        self._shipper.doubt_control()

    async def _open_shipper(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        ingest = HttpIngestClient(settings.control_url, settings.internal_token)
        stack.push_async_callback(ingest.close)
        options = CountersOptions(on_loss="closed", request_timeout_s=settings.request_timeout_s)
        counters = RedisCounters(settings.redis_url, f"supervisor-{secrets.token_hex(8)}", options=options)
        await counters.start()
        stack.push_async_callback(counters.close)
        self._redis = RedisProbe(counters, self._hints)
        shipped = ShippedOptions(settings.shipped_retention_s, settings.shipped_max_bytes)
        shipping = ShipperOptions(look_back_interval_s=settings.refresh_interval_s, shipped=shipped)
        self._shipper = Shipper(settings.journal_dir, ingest, counters, shipping)

    def _take_admin_port(self) -> socket.socket:
        host, port = self._bind.admin_host, self._bind.admin_port
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError:
            raise PortInUseError(host, port) from None

    async def _serve_admin(self, stack: contextlib.AsyncExitStack, admin: socket.socket) -> None:
        keys = MetricsKeys(self._settings.replica_path, self._refresher.demand)
        app = admin_app(self._readiness.report, self._metrics_text, keys.may_export)
        runner = FrontRunner(app, ADMIN_LIMITS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, admin).start()

    async def _drain(self, slots: Iterable[asyncio.Task[None]]) -> None:
        self._draining = True
        settings = self._settings
        log.info(
            "draining: /readyz says 503; new connections are served for %g s more; calls may take until %g s from now",
            settings.ready_grace_s,
            settings.drain_timeout_s,
        )
        self._readiness.announced("workers", DRAINING)
        for slot in self._slots:
            slot.retire()
        _, late = await asyncio.wait(slots, timeout=settings.drain_timeout_s + WIND_UP_S)
        for slot in self._slots:
            slot.kill()
        if late:
            log.error("%d workers did not end in time and were killed", len(late))
            await asyncio.wait(late)

    def _checks(self) -> dict[str, Check]:
        return {
            "policy": self._policy_check,
            "secrets": lambda: self._secrets.finding(self._replica.version),
            "workers": self._workers_check,  # what follows rests on the workers' answers to this
            "journal": self._journal_check,
            "redis": self._redis_check,
            "control": self._control_check,
            "hints": self._hints_check,
        }

    async def _policy_check(self) -> Finding:
        return OK if self._replica.version.loaded else Finding(fault="no policy from control yet")

    async def _workers_check(self) -> Finding:
        if self._draining:
            return DRAINING
        answers = await asyncio.gather(*(slot.flush() for slot in self._slots))
        return OK if all(answers) else Finding(fault=f"{sum(answers)} of {len(answers)} serve")

    async def _journal_check(self) -> Finding:
        return Finding(
            fault="; ".join(dict.fromkeys(t for slot in self._slots for t in slot.health.get("journal", ())))
        )

    async def _redis_check(self) -> Finding:
        """Asked here, and of the workers, whose connections are others (they answered just now).

        Where limits are enforced without Redis, only a worker that has never known its share is at fault. Workers that
        have ended, as they do in a drain, say nothing.
        """
        trouble = await self._redis.trouble()
        if trouble and self._settings.limits_on_redis_loss == "closed":
            return Finding(fault=f"{trouble}. {REDIS_REMEDY}")
        if not self._draining and not all(slot.health.get("limits") for slot in self._slots):
            return Finding(fault="Redis does not answer every worker")
        return Finding(
            degraded=f"{trouble}; each worker enforces its share of every limit. {REDIS_REMEDY}" * bool(trouble)
        )

    async def _control_check(self) -> Finding:
        """Before the first answer that is a fault of policy; after it, the last good picture serves."""
        return Finding(degraded=self._refresher.trouble) if self._replica.version.loaded else OK

    async def _hints_check(self) -> Finding:
        return Finding(degraded=self._hints.trouble)

    async def _metrics_text(self) -> bytes:
        await asyncio.gather(*(slot.flush() for slot in self._slots))
        return await asyncio.to_thread(self._totals.text)

    def _readings(self) -> Iterable[tuple[str, str, float]]:
        confirmed_at_s = self._replica.confirmed_at_s
        age_s = time.monotonic() - confirmed_at_s if confirmed_at_s else float("inf")
        yield "tollgate_snapshot_age_seconds", "Since control last confirmed the policy served", age_s
        shipper, troubled = self._shipper, sum(bool(slot.health.get("journal")) for slot in self._slots)
        yield "tollgate_journal_pending_events", "Events that control has not confirmed yet", shipper.pending
        yield "tollgate_journal_troubled_workers", "Workers whose journal refuses calls, or soon will", troubled
        yield (
            "tollgate_journal_damaged_places",
            "Records that the disk spoilt, found since start",
            shipper.damaged,
        )
        yield (
            "tollgate_journal_retained_bytes",
            "Committed events kept for a restore of control",
            shipper.retained_bytes,
        )
        yield "tollgate_journal_resent_events", "Events sent again after a restore, since start", shipper.resent
        yield "tollgate_journal_rejected_events", "Events that control called malformed, since start", shipper.rejected

    async def _settled(self, incarnation: str) -> int:
        """The shipper's question. Who has died meanwhile, and was replaced, has said nothing."""
        for slot in self._slots:
            if slot.incarnation == incarnation:
                settled = await slot.settled()
                return settled if slot.incarnation == incarnation else 0
        return 0

    def _worker_died(self, slot: int, incarnation: str) -> None:
        self._totals.forget_gauges(slot)
        self._shipper.worker_died(incarnation)

    async def _check_replica(self) -> None:
        """A worker could not read the file: look at it, and have it rebuilt when it is damaged."""
        if await asyncio.to_thread(self._replica.forget_if_damaged):
            self._refresher.hint()


@contextlib.asynccontextmanager
async def _kept_running(*lives: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run these beside the block, until it ends."""
    tasks = [asyncio.create_task(_kept(life)) for life in lives]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _kept(life: Callable[[], Awaitable[None]]) -> None:
    """A bug in what keeps policy fresh must not end what serves from the last good picture."""
    while True:
        try:
            await life()
        except Exception:
            log.exception("a part of the supervisor failed; it is started anew")
        await asyncio.sleep(1)
