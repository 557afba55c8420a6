"""The refresher's times and reports, with a fake control plane and a replica in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from policy.snapshot import Row, SnapshotPage
from proxy.errors import ReplicaUnwritableError
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.supervisor import fetch_progress
from proxy.supervisor import refresher as module
from proxy.supervisor.refresher import Refresher
from tests.fakes.control_plane import FakeControl
from tests.waiting import eventually


class MemoryReplica:
    """The part of a replica that the refresher uses. `rows`: the rows that readers would see."""

    def __init__(self) -> None:
        self.version = ReplicaVersion()
        self.confirmed_at_s = float("-inf")
        self.rows: dict[tuple[str, str], object] = {}
        self.confirmations = 0
        self.broken = False
        self.dropped = 0

    def begin_update(self, *, reset: bool) -> "MemoryUpdate":
        return MemoryUpdate(self, {} if reset else dict(self.rows))

    def confirm(self, now_s: float) -> None:
        self.confirmed_at_s = now_s
        self.confirmations += 1


class MemoryUpdate:
    def __init__(self, replica: MemoryReplica, rows: dict[tuple[str, str], object]) -> None:
        self._replica = replica
        self._rows = rows

    def add(self, rows: Iterable[Row]) -> None:
        if self._replica.broken:
            raise ReplicaUnwritableError("disk full")
        for row in rows:
            self._rows[(row.kind, row.id)] = row.body
            if row.body is None:
                del self._rows[(row.kind, row.id)]

    def commit(self, version: ReplicaVersion) -> None:
        self._replica.rows = self._rows
        self._replica.version = version

    def discard(self) -> None:
        self._replica.dropped += 1


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def replica() -> MemoryReplica:
    return MemoryReplica()


@pytest.fixture(autouse=True)
def _no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_GAP_S", 0.0)


@asynccontextmanager
async def running(replica: MemoryReplica, control: FakeControl, interval_s: float = 1000) -> AsyncIterator[Refresher]:
    refresher = Refresher(replica, control, interval_s)
    task = asyncio.create_task(refresher.run())
    try:
        yield refresher
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_first_refresh_starts_at_once_and_reads_all_pages(control: FakeControl, replica: MemoryReplica) -> None:
    control.page_rows = 2
    for number in range(5):
        control.put("endpoint", f"e{number}", {"n": number})
    async with running(replica, control):
        await eventually(lambda: replica.confirmations)
    assert len(replica.rows) == 5
    assert replica.version == ReplicaVersion("epoch-1", 5)
    assert [after for _, _, after in control.requests] == [None, "2", "4"]


async def test_hint_fetches_only_changes(control: FakeControl, replica: MemoryReplica) -> None:
    control.put("endpoint", "e", {"n": 1})
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.put("endpoint", "e", None)
        refresher.hint(control.revision)
        await eventually(lambda: replica.confirmations == 2)
    assert replica.rows == {}
    assert control.requests[-1] == ("epoch-1", 1, None)


async def test_hint_for_the_current_revision_causes_no_refresh(control: FakeControl, replica: MemoryReplica) -> None:
    control.put("endpoint", "e", {})
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        refresher.hint(1)
        await asyncio.sleep(0.02)
        assert replica.confirmations == 1
        refresher.hint(None)
        await eventually(lambda: replica.confirmations == 2)


async def test_burst_of_hints_causes_one_refresh(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_GAP_S", 0.05)
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        for revision in range(100):
            refresher.hint(revision + 1)
        await eventually(lambda: replica.confirmations == 2)
        await asyncio.sleep(0.1)
    assert replica.confirmations == 2


async def test_refresh_runs_every_interval_without_hints(control: FakeControl, replica: MemoryReplica) -> None:
    async with running(replica, control, interval_s=0.01):
        await eventually(lambda: replica.confirmations >= 3)


class SlowToFail(FakeControl):
    """A control that fails after a timeout only. `waited_s`: from each failure to the next request."""

    def __init__(self) -> None:
        super().__init__(down=True)
        self.waited_s: list[float] = []
        self._failed_at_s = 0.0

    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage:
        if self._failed_at_s:
            self.waited_s.append(time.monotonic() - self._failed_at_s)
        await asyncio.sleep(0.3)
        try:
            return await super().page(since, after)
        finally:
            self._failed_at_s = time.monotonic()


async def test_pause_is_waited_after_a_slow_failure_too(
    replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies that fail in the same moment, at a control that hangs, must not retry in the same moment."""
    monkeypatch.setattr(module, "START_RETRY_S", 0.4)
    control = SlowToFail()
    async with running(replica, control):
        await eventually(lambda: control.waited_s)
    assert control.waited_s[0] > 0.19


async def test_new_epoch_reloads_all_rows(control: FakeControl, replica: MemoryReplica) -> None:
    control.put("endpoint", "old", {})
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.start_over("epoch-2")
        control.put("endpoint", "new", {})
        refresher.hint()
        await eventually(lambda: replica.version.epoch == "epoch-2")
    assert set(replica.rows) == {("endpoint", "new")}


async def test_restored_database_with_the_same_epoch_starts_over_and_is_reported(
    control: FakeControl, replica: MemoryReplica, caplog: pytest.LogCaptureFixture
) -> None:
    """A restored database has the same epoch and may have the same revision."""
    start_overs: list[int] = []
    control.nonce = "first"
    control.put("endpoint", "lost", {})
    refresher = Refresher(replica, control, 1000, on_start_over=lambda: start_overs.append(1))
    task = asyncio.create_task(refresher.run())
    await eventually(lambda: replica.confirmations == 1)
    assert replica.version == ReplicaVersion("epoch-1", 1, "first")
    assert not start_overs, "the first refresh of a new replica is not a start over"
    control.start_over("epoch-1")
    control.nonce = "second"
    control.put("endpoint", "kept", {})
    refresher.hint()
    await eventually(lambda: bool(start_overs))
    task.cancel()
    await asyncio.wait([task])
    assert set(replica.rows) == {("endpoint", "kept")}
    assert start_overs == [1]
    assert "its database was restored or replaced" in caplog.text


async def test_start_over_between_two_pages_restarts_the_refresh(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.001)
    for slug in "abc":
        control.put("endpoint", slug, {})
    control.page_rows = 2
    real_page = control.page
    pages = 0

    async def page(since: ReplicaVersion, after: str | None) -> SnapshotPage:
        nonlocal pages
        pages += 1
        delta = await real_page(since, after)
        return replace(delta, reset=True) if pages == 2 else delta

    monkeypatch.setattr(control, "page", page)
    async with running(replica, control):
        await eventually(lambda: replica.confirmations == 1)
    assert replica.dropped == 1, "rows of two databases are not served together"
    assert len(replica.rows) == 3


async def test_fetch_of_all_policy_goes_on_after_an_outage(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_RETRY_S", 0.001)
    for number in range(10):
        control.put("endpoint", f"e{number}", {"n": number})
    control.page_rows = 2
    real_page = control.page

    troubles: list[str] = []

    async def page(since: ReplicaVersion, after: str | None) -> SnapshotPage:
        troubles.append(refresher.trouble)
        control.down = len(control.requests) in (3, 4)  # control restarts before the fourth page
        return await real_page(since, after)

    monkeypatch.setattr(control, "page", page)
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        assert (refresher.progress, refresher.trouble) == ("", "")
    assert [bool(trouble) for trouble in troubles] == [False] * 4 + [True] * 2 + [False], "until it goes on"
    assert [after for _, _, after in control.requests] == [None, "2", "4", "6", "6", "6", "8"]
    assert (len(replica.rows), replica.dropped) == (10, 0)


async def test_interrupted_fetch_is_not_continued_at_another_database(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_RETRY_S", 0.001)
    for slug in "abcd":
        control.put("endpoint", slug, {})
    control.page_rows = 2
    real_page = control.page

    async def page(since: ReplicaVersion, after: str | None) -> SnapshotPage:
        control.down = len(control.requests) == 1
        if len(control.requests) == 2:
            control.start_over("epoch-2")
            for slug in "xyz":
                control.put("endpoint", slug, {})
        return await real_page(since, after)

    monkeypatch.setattr(control, "page", page)
    async with running(replica, control):
        await eventually(lambda: replica.confirmations == 1)
    assert {id for _, id in replica.rows} == {"x", "y", "z"}
    assert replica.dropped == 1


async def test_interrupted_fetch_is_discarded_when_the_proxy_ends(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slug in "abc":
        control.put("endpoint", slug, {})
    control.page_rows = 2
    real_page = control.page

    async def page(since: ReplicaVersion, after: str | None) -> SnapshotPage:
        control.down = after is not None
        return await real_page(since, after)

    monkeypatch.setattr(control, "page", page)
    async with running(replica, control) as refresher:
        await eventually(lambda: refresher.trouble)
        assert refresher.progress == "fetching it: 2 rows so far, up to revision 2 of 3"
        assert refresher.trouble == "policy is not refreshed: the fake is down"
        assert replica.dropped == 0
    assert replica.dropped == 1


@pytest.mark.parametrize("epoch", ["epoch-1", "epoch-2"])
async def test_replica_is_behind_until_the_last_page_of_a_fetch(
    control: FakeControl, replica: MemoryReplica, epoch: str
) -> None:
    """The fetch of changes, and of all policy that replaces an older one."""
    control.put("endpoint", "a", {})
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        assert refresher.progress == "", "one page is no news"
        if epoch != control.epoch:
            control.start_over(epoch)
        for slug in "xyz":
            control.put("endpoint", slug, {})
        control.page_rows = 2
        control.later_pages = asyncio.Event()
        refresher.hint()
        await eventually(lambda: refresher.progress.startswith("fetching it: 2 rows so far"))
        assert set(replica.rows) == {("endpoint", "a")}
        control.later_pages.set()
        await eventually(lambda: replica.confirmations == 2)
        assert refresher.progress == ""


async def test_long_fetch_is_told_of_in_the_log(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(5):
        control.put("endpoint", f"e{number}", {"n": number})
    control.page_rows = 2
    async with running(replica, control):
        await eventually(lambda: replica.confirmations == 1)
    assert "rows" not in caplog.text, "a short one is not"
    monkeypatch.setattr(fetch_progress, "TOLD_EVERY_S", 0.0)
    replica.version = ReplicaVersion()
    async with running(replica, control):
        await eventually(lambda: replica.confirmations == 2)
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == [
        "Fetched 2 rows of policy so far, up to revision 2 of 5.",
        "Fetched 4 rows of policy so far, up to revision 4 of 5.",
        "Fetched 5 rows of policy so far, up to revision 5 of 5.",
        "Fetched policy: 5 rows",
    ]


async def test_failed_refresh_changes_nothing_and_is_retried(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.001)
    control.put("endpoint", "e", {})
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.down = True
        control.put("endpoint", "f", {})
        request_count = len(control.requests)
        refresher.hint()
        await eventually(lambda: len(control.requests) >= request_count + 3)
        assert set(replica.rows) == {("endpoint", "e")}
        control.down = False
        await eventually(lambda: len(replica.rows) == 2)


async def test_control_that_starts_later_is_asked_often_until_it_answers(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control may start very late: it may migrate a large database first."""
    monkeypatch.setattr(module, "MIN_GAP_S", 0.001)
    monkeypatch.setattr(module, "START_RETRY_S", 0.001)
    monkeypatch.setattr(module, "LONGEST_START_RETRY_S", 0.01)
    monkeypatch.setattr(module, "FIRST_RETRY_S", 1000.0)
    control.down = True
    async with running(replica, control) as refresher:
        await eventually(lambda: len(control.requests) >= 50)
        control.down = False
        await eventually(lambda: replica.confirmations == 1)
        control.down = True
        request_count = len(control.requests)
        refresher.hint()
        await eventually(lambda: len(control.requests) == request_count + 1)
        await asyncio.sleep(0.2)
        assert len(control.requests) == request_count + 1, "once it has answered, retries back off"


async def test_unwritable_replica_keeps_its_policy(control: FakeControl, replica: MemoryReplica) -> None:
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        replica.broken = True
        control.put("endpoint", "e", {})
        assert not await _demanded_later(refresher, replica)
    assert replica.dropped == 1
    assert replica.confirmations == 1


async def test_key_created_right_after_a_refresh_is_found(control: FakeControl, replica: MemoryReplica) -> None:
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.put("key", "minted-now", {})
        assert await refresher.refresh_on_demand()
        assert ("key", "minted-now") in replica.rows


async def test_consecutive_unknown_keys_do_not_wait_a_second_each(control: FakeControl, replica: MemoryReplica) -> None:
    """Each of them is one refresh; with a gap of a second the last would wait for nineteen."""
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        async with asyncio.timeout(9):
            for _ in range(20):
                assert await refresher.refresh_on_demand()
    assert len(control.requests) == 21


async def test_slow_control_is_refreshed_from_less_often(control: FakeControl, replica: MemoryReplica) -> None:
    """Refreshing takes at most a quarter of the time: a flood of unknown keys must not keep control slow."""
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.gate = asyncio.Event()
        began = time.monotonic()
        refresh = asyncio.create_task(refresher.refresh_on_demand())
        await eventually(lambda: len(control.requests) == 2)
        await asyncio.sleep(0.1)
        control.gate.set()
        assert await refresh
        assert await refresher.refresh_on_demand()
        assert time.monotonic() - began >= 0.4


async def test_unknown_keys_cause_at_most_one_refresh_per_gap(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ON_DEMAND_GAP_S", 0.2)
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        began = time.monotonic()
        for _ in range(4):
            assert all(await asyncio.gather(*(refresher.refresh_on_demand() for _ in range(50))))
        assert len(control.requests) == 5
        assert time.monotonic() - began >= 0.6, "four rounds have three gaps between them"


async def test_refresh_by_a_hint_serves_callers_that_wait_for_the_gap(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ON_DEMAND_GAP_S", 1000.0)
    async with running(replica, control) as refresher:
        assert await refresher.refresh_on_demand()
        refresh = asyncio.create_task(refresher.refresh_on_demand())
        await asyncio.sleep(0)
        refresher.hint()
        assert await refresh


async def test_waits_served_by_hints_do_not_delay_the_next_one(
    control: FakeControl, replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many keys are created in a row and called at once. No call may wait for the gaps of the others."""
    monkeypatch.setattr(module, "ON_DEMAND_GAP_S", 1.0)
    async with running(replica, control) as refresher:
        assert await refresher.refresh_on_demand()
        for _ in range(20):
            refresh = asyncio.create_task(refresher.refresh_on_demand())
            await asyncio.sleep(0)
            refresher.hint()
            assert await refresh
        began = time.monotonic()
        assert await refresher.refresh_on_demand()
        assert time.monotonic() - began < 20, "one gap at most, not one for each hint"


async def test_unknown_keys_share_one_refresh_that_began_after_they_asked(
    control: FakeControl, replica: MemoryReplica
) -> None:
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.gate = asyncio.Event()
        refresher.hint()
        await eventually(lambda: len(control.requests) == 2)
        replica.confirmed_at_s = float("-inf")
        refreshes = [asyncio.create_task(refresher.refresh_on_demand()) for _ in range(20)]
        await asyncio.sleep(0)
        control.put("key", "minted-now", {})
        control.gate.set()
        assert all(await asyncio.gather(*refreshes))
    assert ("key", "minted-now") in replica.rows
    assert len(control.requests) == 3


async def test_unreachable_control_is_not_asked_again_for_a_second(
    control: FakeControl, replica: MemoryReplica
) -> None:
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        control.down = True
        assert not await _demanded_later(refresher, replica)
        request_count = len(control.requests)
        assert not any([await refresher.refresh_on_demand() for _ in range(50)])
        assert len(control.requests) == request_count


async def test_cancelled_caller_does_not_end_the_refresh_of_the_others(
    control: FakeControl, replica: MemoryReplica
) -> None:
    async with running(replica, control) as refresher:
        await eventually(lambda: replica.confirmations == 1)
        replica.confirmed_at_s = float("-inf")
        control.gate = asyncio.Event()
        leaver = asyncio.create_task(refresher.refresh_on_demand())
        stayer = asyncio.create_task(refresher.refresh_on_demand())
        await eventually(lambda: len(control.requests) == 2)
        leaver.cancel()
        await asyncio.wait([leaver])
        control.gate.set()
        assert await stayer


async def test_waiting_callers_are_answered_when_the_refresher_ends(
    control: FakeControl, replica: MemoryReplica
) -> None:
    control.gate = asyncio.Event()
    async with running(replica, control) as refresher:
        await eventually(lambda: control.requests)
        refresh = asyncio.create_task(refresher.refresh_on_demand())
        control.gate.set()
        await eventually(lambda: len(control.requests) == 2)
    assert await refresh in (True, False)


async def _demanded_later(refresher: Refresher, replica: MemoryReplica) -> bool:
    """Demand a refresh as if a second had passed since the last confirmation."""
    replica.confirmed_at_s = float("-inf")
    return await refresher.refresh_on_demand()
