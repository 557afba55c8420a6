"""The requests of a proxy's supervisor to control and Redis, with its own classes: all but the workers and the disk."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from bench.programs.control_plane import INTERNAL_TOKEN, billing_event
from control.edges.sql import published_rows
from control.edges.sql.store import Store
from policy.deployment_load import DeploymentLoad
from policy.snapshot import Row, SnapshotPage
from proxy.edges.journal.supervisor.delivery import IngestUnavailableError
from proxy.edges.journal.supervisor.ingest_client import HttpIngestClient
from proxy.edges.policy.supervisor.control_feed import ControlFeed
from proxy.edges.policy.supervisor.hints import HintSubscriber
from proxy.edges.replicas.supervisor.control_reports import ControlReports
from proxy.edges.replicas.supervisor.load_reports import LoadReports
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.supervisor.refresher import Refresher
from runtime.backoff import pause_s

INTERVAL_S = 60.0
EVENTS = 10
"""The events in a batch."""


class Log:
    """A log of all proxies: how often each kind of request was sent, when, how many failed, and when hints and policy
    arrived."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.requests: Counter[str] = Counter()
        self.sent_s: list[float] = []
        self.failed = 0
        self.hinted_s: list[float] = []
        self.confirmed_s: list[float] = []

    async def note(self, what: str, request: Awaitable[Any]) -> Any:
        self.requests[what] += 1
        self.sent_s.append(time.monotonic())
        try:
            return await request
        except Exception:
            self.failed += 1
            raise


async def current_version(database: str) -> ReplicaVersion:
    """The version of a replica that lacks nothing."""
    store = Store.at(database)
    async with store.read() as conn:
        now = await published_rows.published_state(conn)
    await store.close()
    return ReplicaVersion(now.epoch, now.revision, now.nonce)


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of a proxy: the policy of this version, and calls of this deployment (ids of model and it)."""

    version: ReplicaVersion
    deployment: tuple[str, str]


class SimulatedProxy:
    """`policy`, `loads` and `events` are what to run in the background. All of a fleet share one `log`."""

    def __init__(self, control_url: str, redis_url: str, reader: Reader, log: Log) -> None:
        self._log = log
        self._feed = ControlFeed(control_url, INTERNAL_TOKEN)
        self._ingest = HttpIngestClient(control_url, INTERNAL_TOKEN)
        self._reports = _LoggedReports(control_url, log)
        self._refresher = Refresher(_VersionOnly(reader.version, log), self, INTERVAL_S)
        self._hints = HintSubscriber(redis_url, self._hint)
        self.policy: tuple[Callable[[], Awaitable[None]], ...] = (self._refresher.run, self._hints.run)
        self._deployment = reader.deployment

    def _hint(self, revision: int | None) -> None:
        if revision is not None:
            self._log.hinted_s.append(time.monotonic())
        self._refresher.hint(revision)

    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage:
        """Read a page, as a `Feed` for the refresher."""
        page: SnapshotPage = await self._log.note("polls", self._feed.page(since, after))
        return page

    async def loads(self) -> None:
        """Report one busy deployment."""
        reports = LoadReports(self._reports, _Busy(self._deployment), secrets.token_hex(8))
        reports.changed(self._deployment[1])
        await reports.run()

    async def events(self) -> None:
        """Ship a batch twice a second, as the shipper does under load."""
        failures = 0
        while True:
            await asyncio.sleep(pause_s(failures, 0.1, 15.0) if failures else 0.5)
            try:
                await self._log.note("batches of events", self._ingest.post(_batch()))
                failures = 0
            except IngestUnavailableError:
                failures += 1

    async def close(self) -> None:
        await self._hints.close()
        for client in (self._feed, self._ingest, self._reports):
            await client.close()


class _VersionOnly:
    """A replica, and its updates, without rows."""

    def __init__(self, version: ReplicaVersion, log: Log) -> None:
        self.version = version
        self._log = log

    def begin_update(self, *, reset: bool) -> "_VersionOnly":
        return self

    def add(self, rows: Iterable[Row]) -> None:
        pass

    def commit(self, version: ReplicaVersion) -> None:
        self.version = version

    def discard(self) -> None:
        pass

    def confirm(self, now_s: float) -> None:
        self._log.confirmed_s.append(time.monotonic())


class _Busy:
    """The loads of a machine that always has calls of one deployment."""

    def __init__(self, deployment: tuple[str, str]) -> None:
        self._model_id, self._id = deployment

    def deployment_ids(self) -> list[str]:
        return [self._id]

    def load_of(self, deployment_id: str) -> DeploymentLoad:
        now_ms = time.time_ns() // 1_000_000
        return DeploymentLoad(self._model_id, self._id, 3, 0, 0, now_ms, ("http://10.0.0.1:8000",), ())


class _LoggedReports(ControlReports):
    """The client of the reports, which notes each of them."""

    def __init__(self, control_url: str, log: Log) -> None:
        super().__init__(control_url, INTERNAL_TOKEN)
        self._log = log

    async def post(self, what: str, report: dict[str, Any]) -> None:
        await self._log.note(what, super().post(what, report))


def _batch() -> bytes:
    return orjson.dumps({"events": [billing_event({}).to_wire() for _ in range(EVENTS)]})
