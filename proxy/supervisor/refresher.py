"""Decides when the policy replica is refreshed from control: every interval, on each hint, and for unknown keys.

One refresh runs at a time; requests that arrive meanwhile share the next one. A failed refresh leaves the last good
policy in place, and everybody who waits for it learns that it failed. Does no network or disk I/O of its own.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from policy.snapshot import SnapshotPage
from proxy.errors import ControlUnreachableError, ReplicaUnwritableError
from proxy.records.supervisor.findings import OK, Finding
from proxy.records.supervisor.policy_replica import ReplicaStore, ReplicaUpdate, ReplicaVersion
from proxy.supervisor.fetch_progress import FetchProgress
from runtime.background import in_thread, is_set_within
from runtime.backoff import jittered_s, pause_s

MIN_GAP_S = 0.05
"""Pause between two refreshes, so that a burst of hints causes a few refreshes and not one for each hint."""
ON_DEMAND_GAP_S = 0.05
"""Time between the starts of two refreshes for unknown keys, on the whole machine, while control answers fast."""
LONGEST_ON_DEMAND_GAP_S = 1.0
ON_DEMAND_LOAD = 4
"""The gap after a slow refresh, as a multiple of its duration. A flood of unknown keys then keeps control busy for at
most a quarter of the time, however slow it is."""
OUTAGE_S = 1.0
"""Seconds after a failed refresh in which unknown keys are answered without asking control again."""
FIRST_RETRY_S = 0.5
START_RETRY_S = 0.1
LONGEST_START_RETRY_S = 1.0
"""First and longest pause until control has answered once: it may be starting too, so the pauses are short."""
BEHIND = "policy is behind control's until a long fetch of its changes has ended; an older one serves"
_JITTER = 0.1

log = logging.getLogger(__name__)


class _OtherHistoryError(ControlUnreachableError):
    """The pages fetched so far do not fit to what control answers now: it has another history of revisions."""


class Feed(Protocol):
    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage: ...


@dataclass(slots=True)
class _Fetch:
    """One answer of control on its way into the replica. `page`: the last one that arrived.

    `whole`: it is all policy. Such a fetch is kept while control is away: its cursor continues where it was, and
    control refuses the cursor if its database was restored or replaced meanwhile, or if it is too old.
    """

    since: ReplicaVersion
    update: ReplicaUpdate
    page: SnapshotPage
    whole: bool
    progress: FetchProgress
    is_page_written: bool = False

    @property
    def over(self) -> bool:
        """True if the fetch replaces the policy that is there."""
        return self.whole and self.since.loaded


class Refresher:
    """Keeps `replica` in step with `feed` while `run` runs. `hint` and `refresh_on_demand` may be called at any time.

    `on_start_over` is called when a replica that held policy had to be fetched again from the start.
    """

    def __init__(
        self, replica: ReplicaStore, feed: Feed, interval_s: float, on_start_over: Callable[[], None] | None = None
    ) -> None:
        self._replica = replica
        self._feed = feed
        self._on_start_over = on_start_over
        self._interval_s = interval_s
        self.trouble = ""
        """Reason why the last refresh failed; empty when it succeeded."""
        self.progress = ""
        """Progress of a fetch of several pages; the replica is behind until it ends. Empty when there is none."""
        self._interrupted: _Fetch | None = None
        self._wake = asyncio.Event()
        self._next_refresh: asyncio.Future[bool] | None = None
        self._on_demand_at_s = float("-inf")
        self._last_duration_s = 0.0
        self._failures = 0
        self._has_refreshed = False
        self._failed_at_s = float("-inf")

    async def run(self) -> None:
        """Refresh at once, then for ever."""
        try:
            while True:
                started_s = time.monotonic()
                await self._refresh_once(started_s)
                await asyncio.sleep(MIN_GAP_S)
                await is_set_within(self._wake, self._wait_s(time.monotonic() - started_s))
        finally:
            if self._interrupted is not None:
                self._interrupted.update.discard()
                self._interrupted = None

    async def policy_finding(self) -> Finding:
        """Return a large fetch's progress as a finding; before the first policy also the reason for its absence."""
        if not self._replica.version.loaded:
            notes = (self.progress, self.trouble)
            return Finding(fault="no policy from control yet", note="; ".join(filter(None, notes)))
        return Finding(degraded=BEHIND, note=self.progress) if self.progress else OK

    def hint(self, revision: int | None = None) -> None:
        """Control has committed `revision`. None means that hints may have been missed: refresh."""
        if revision is None or revision != self._replica.version.revision:
            self._wake.set()

    async def refresh_on_demand(self) -> bool:
        """Wait for a refresh that starts after this call, for an unknown key. Return whether it succeeded.

        Callers that ask before a refresh starts share it. A refresh that is already running does not count: the key
        may be newer. There is at most one such refresh per gap; one that a hint causes serves the callers too.
        """
        now_s = time.monotonic()
        if now_s - self._failed_at_s <= OUTAGE_S:
            return False
        if self._next_refresh is None:
            loop = asyncio.get_running_loop()
            self._next_refresh = loop.create_future()
            wait_s = max(0.0, self._on_demand_at_s + self._gap_s() - now_s)
            loop.call_later(wait_s, self._begin, self._next_refresh)
        return await asyncio.shield(self._next_refresh)

    def _gap_s(self) -> float:
        """Time from the start of one refresh on demand to the start of the next."""
        return max(ON_DEMAND_GAP_S, min(ON_DEMAND_LOAD * self._last_duration_s, LONGEST_ON_DEMAND_GAP_S))

    def _begin(self, requested: asyncio.Future[bool]) -> None:
        """Start the requested refresh, unless one that a hint caused has served it already."""
        if requested is self._next_refresh:
            self._on_demand_at_s = time.monotonic()
            self._wake.set()

    async def _refresh_once(self, started_s: float) -> None:
        """Run one refresh and answer those who asked before it began. Those who ask while it runs wait for the next."""
        self._wake.clear()
        future = self._next_refresh
        self._next_refresh = None
        ok = False
        try:
            ok = await self._refresh(started_s)
        finally:
            self._last_duration_s = time.monotonic() - started_s
            if future is not None:
                future.set_result(ok)

    async def _refresh(self, started_s: float) -> bool:
        try:
            await self._follow()
            await in_thread(self._replica.confirm, started_s)
        except (ControlUnreachableError, ReplicaUnwritableError) as error:
            served = ", the last good one serves" if self._replica.version.loaded else ""
            self.trouble = f"policy is not refreshed{served}: {error}"
            self._failures += 1
            self._failed_at_s = time.monotonic()
            return False
        self._failures = 0
        self._has_refreshed = True
        self.trouble = ""
        self._failed_at_s = float("-inf")
        return True

    async def _follow(self) -> None:
        """Write everything that changed since the replica's version: all pages, or nothing."""
        fetch = self._interrupted or await self._begin_fetch()
        self._interrupted = None
        try:
            await self._finish(fetch)
        except BaseException as error:
            if fetch.whole and type(error) is ControlUnreachableError:
                self._interrupted = fetch
            else:
                fetch.update.discard()
                self.progress = ""
            raise
        fetch.progress.ended()
        self.progress = ""
        if fetch.over:
            self._started_over(fetch.since, fetch.page)

    def _started_over(self, since: ReplicaVersion, page: SnapshotPage) -> None:
        log.warning(
            "Control no longer recognizes revision %d: its database was restored or replaced, or this proxy was offline"
            " for too long. Fetched all policy again, up to revision %d.",
            since.revision,
            page.revision,
        )
        if self._on_start_over is not None:
            self._on_start_over()

    async def _begin_fetch(self) -> _Fetch:
        since = self._replica.version
        page = await self._feed.page(since, None)
        whole = page.reset or not since.loaded
        update = await in_thread(lambda: self._replica.begin_update(reset=whole))
        return _Fetch(since, update, page, whole, FetchProgress())

    async def _finish(self, fetch: _Fetch) -> None:
        """Write the pages that are missing, and commit. A fetch that was interrupted goes on behind its last page."""
        while True:
            if not fetch.is_page_written:
                await in_thread(fetch.update.add, fetch.page.rows)
                fetch.is_page_written = True
                fetch.progress.fetched(fetch.page)
            if fetch.page.next is None:
                break
            self.progress = fetch.progress.text
            fetch.page = await self._page_after(fetch)
            fetch.is_page_written = False
        page = fetch.page
        await in_thread(fetch.update.commit, ReplicaVersion(page.epoch, page.revision, page.nonce))

    async def _page_after(self, fetch: _Fetch) -> SnapshotPage:
        following = await self._feed.page(fetch.since, fetch.page.next)
        if following.epoch != fetch.page.epoch or following.reset:
            raise _OtherHistoryError("control's database was restored or replaced between two pages")
        self.trouble = ""
        return following

    def _wait_s(self, took_s: float) -> float:
        """Time to the next refresh, after one that took so long. Jitter is subtracted: the interval is never exceeded.

        After a failure the pause is shorter, and however long the failure took it is waited: proxies that failed in
        the same moment must not retry in the same moment.
        """
        if not self._failures:
            regular_s = self._interval_s * random.uniform(1 - _JITTER, 1)  # noqa: S311 (spreads load, keeps no secret)
            return regular_s - took_s
        if self._has_refreshed:
            return pause_s(self._failures, FIRST_RETRY_S, self._interval_s)
        return jittered_s(min(START_RETRY_S * self._failures, LONGEST_START_RETRY_S, self._interval_s))
