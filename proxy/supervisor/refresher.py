"""When the replica follows control: at the latest every interval, on each hint, and when a worker asks.

One refresh runs at a time; whatever asks meanwhile shares the next one. It promises that a failed refresh leaves the
last good generation in place, and that whoever waits for one learns the truth. Sockets and files are the edges'.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from policy.snapshot import Row, SnapshotPage

MIN_GAP_S = 0.05
"""Between two refreshes, so that a burst of hints becomes a few refreshes and not one for each."""
DEMAND_GAP_S = 0.05
"""Between the starts of two refreshes caused by unknown keys, over the whole machine, while control answers fast."""
LONGEST_DEMAND_GAP_S = 1.0
DEMAND_LOAD = 4
"""A refresh that took long is followed by a gap so many times as long: a flood of unknown keys then keeps control busy
for at most a quarter of the time, however slow it is."""
AWAY_S = 1.0
"""For so long after a failed refresh unknown keys are told of the outage without asking control again."""
FIRST_RETRY_S = 0.5
_JITTER = 0.1

Given = ParamSpec("Given")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class ControlUnreachableError(Exception):
    """Control could not be asked, or its answer could not be used; the last good picture stays."""


class ReplicaUnwritableError(Exception):
    """The replica could not take over a change (disk full, file damaged); the last good picture stays."""


@dataclass(frozen=True, slots=True)
class ReplicaVersion:
    """Up to where the replica has followed control. An empty epoch: it never has.

    `nonce`: of the revision, by which control tells its own history from that of a database since restored.
    """

    epoch: str = ""
    revision: int = 0
    nonce: str = ""

    @property
    def loaded(self) -> bool:
        return bool(self.epoch)


class Feed(Protocol):
    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage: ...


class ReplicaUpdate(Protocol):
    """One answer of control on its way into the replica; invisible to readers until `commit`."""

    def add(self, rows: Iterable[Row]) -> None: ...

    def commit(self, version: ReplicaVersion) -> None: ...

    def discard(self) -> None: ...


class ReplicaStore(Protocol):
    @property
    def version(self) -> ReplicaVersion: ...

    def begin_update(self, *, reset: bool) -> ReplicaUpdate: ...

    def confirm(self, now_s: float) -> None:
        """Tell all readers that control has confirmed the picture as of `now_s` (`time.monotonic`)."""
        ...


class Refresher:
    """Keeps `replica` in step with `feed`. `run` is its life; `hint` and `demand` may be called at any time.

    `on_start_over` is told when a replica that had followed control had to be fetched anew.
    """

    def __init__(
        self, replica: ReplicaStore, feed: Feed, interval_s: float, on_start_over: Callable[[], None] | None = None
    ) -> None:
        self._replica = replica
        self._feed = feed
        self._on_start_over = on_start_over
        self._interval_s = interval_s
        self.trouble = ""
        """Why the last refresh failed; "" when it did not."""
        self._wanted = asyncio.Event()
        self._following_round: asyncio.Future[bool] | None = None
        self._demanded_at_s = float("-inf")
        self._took_s = 0.0
        self._failures = 0
        self._failed_at_s = float("-inf")

    async def run(self) -> None:
        """Refresh for ever; the first time at once."""
        while True:
            started_s = time.monotonic()
            await self._one_round(started_s)
            await asyncio.sleep(MIN_GAP_S)
            try:
                async with asyncio.timeout(self._wait_s() - (time.monotonic() - started_s)):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    def hint(self, revision: int | None = None) -> None:
        """Control has committed `revision`; None: something may have been missed, look."""
        if revision is None or revision != self._replica.version.revision:
            self._wanted.set()

    async def demand(self) -> bool:
        """For a key that is not known: whether control has confirmed the picture since it was asked for.

        All who ask before a refresh begins share it: a key may be younger than one that is already running. Demands
        cause at most one refresh per gap. A refresh that a hint causes meanwhile, as the minting of a key does, serves
        them too.
        """
        now_s = time.monotonic()
        if now_s - self._failed_at_s <= AWAY_S:
            return False
        if self._following_round is None:
            loop = asyncio.get_running_loop()
            self._following_round = loop.create_future()
            wait_s = max(0.0, self._demanded_at_s + self._gap_s() - now_s)
            loop.call_later(wait_s, self._begin, self._following_round)
        return await asyncio.shield(self._following_round)

    def _gap_s(self) -> float:
        """From the start of one demanded refresh to that of the next."""
        return max(DEMAND_GAP_S, min(DEMAND_LOAD * self._took_s, LONGEST_DEMAND_GAP_S))

    def _begin(self, demanded: asyncio.Future[bool]) -> None:
        """The round that was demanded, unless a hint's has taken its place."""
        if demanded is self._following_round:
            self._demanded_at_s = time.monotonic()
            self._wanted.set()

    async def _one_round(self, started_s: float) -> None:
        """One refresh. Those who asked before it began hear of it; those who ask while it runs wait for the next."""
        self._wanted.clear()
        waiting, self._following_round = self._following_round, None
        ok = False
        try:
            ok = await self._refresh(started_s)
        finally:
            self._took_s = time.monotonic() - started_s
            if waiting is not None:
                waiting.set_result(ok)

    async def _refresh(self, started_s: float) -> bool:
        try:
            await self._follow()
        except (ControlUnreachableError, ReplicaUnwritableError) as error:
            self.trouble = f"policy is not refreshed, the last good one serves: {error}"
            self._failures += 1
            self._failed_at_s = time.monotonic()
            return False
        self._failures = 0
        self.trouble = ""
        self._failed_at_s = float("-inf")
        self._replica.confirm(started_s)
        return True

    async def _follow(self) -> None:
        """Take over all that changed since the replica's version: every page of it, or nothing."""
        since = self._replica.version
        page = await self._feed.page(since, None)
        over = page.reset and since.loaded
        update = await _in_thread(lambda: self._replica.begin_update(reset=page.reset or not since.loaded))
        try:
            await _in_thread(update.add, page.rows)
            while page.next is not None:
                page = await self._page_after(page, since)
                await _in_thread(update.add, page.rows)
            await _in_thread(update.commit, ReplicaVersion(page.epoch, page.revision, page.nonce))
        except BaseException:
            update.discard()
            raise
        if over:
            self._started_over(since, page)

    def _started_over(self, since: ReplicaVersion, page: SnapshotPage) -> None:
        log.warning(
            "control no longer knows revision %d as this replica does: its database was restored or replaced, or this"
            " proxy was away for too long; all policy was fetched anew, up to revision %d",
            since.revision,
            page.revision,
        )
        if self._on_start_over is not None:
            self._on_start_over()

    async def _page_after(self, page: SnapshotPage, since: ReplicaVersion) -> SnapshotPage:
        following = await self._feed.page(since, page.next)
        if following.epoch != page.epoch or following.reset:
            raise ControlUnreachableError("control's database was restored or replaced between two pages")
        return following

    def _wait_s(self) -> float:
        """From one refresh to the next: jitter is subtracted, so the interval holds; after failures sooner."""
        chance = random.random()  # noqa: S311 (spreads load, keeps no secret)
        regular_s: float = self._interval_s * (1 - _JITTER * chance)
        if not self._failures:
            return regular_s
        return min(regular_s, FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 10) * (1 - chance / 2))


async def _in_thread(work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Disk work off the loop. Cancelled, it still waits for the thread: nobody closes a file under its hands."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise
