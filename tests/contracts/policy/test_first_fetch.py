"""A new proxy fetches all policy into a real replica: in memory that does not grow, and once, also across an outage."""

import asyncio
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from policy.snapshot import Row, SnapshotPage
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.errors import ControlUnreachableError
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.supervisor import refresher as module
from proxy.supervisor.refresher import Refresher
from tests.waiting import eventually

PAGE_ROWS = 500


class MuchPolicy:
    """A feed that makes its rows when they are asked for. `away_at`: the numbers of the requests that fail."""

    def __init__(self, pages: int, away_at: tuple[int, ...] = ()) -> None:
        self._pages = pages
        self._away_at = away_at
        self.page_numbers: list[int] = []

    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage:
        self.page_numbers.append(int(after or 0))
        if len(self.page_numbers) in self._away_at:
            raise ControlUnreachableError("restarting")
        first = self.page_numbers[-1] * PAGE_ROWS
        body = {"prefix": "tg_0", "kind": "FEDERATED", "workspace_id": "ws", "group_id": "grp"}
        rows = tuple(Row("key", f"{first + number:064x}", first + number + 1, body) for number in range(PAGE_ROWS))
        following = str(self.page_numbers[-1] + 1) if self.page_numbers[-1] + 1 < self._pages else None
        page = SnapshotPage("epoch", self._pages * PAGE_ROWS, after is None, rows, following, "nonce")
        return SnapshotPage.from_wire(orjson.loads(orjson.dumps(page.to_wire())))


async def fetched(path: Path, feed: MuchPolicy) -> None:
    """Return when a new replica has all of it."""
    replica = PolicyReplica(path)
    task = asyncio.create_task(Refresher(replica, feed, 1000).run())
    try:
        await eventually(lambda: replica.version.loaded)
    finally:
        task.cancel()
        await asyncio.wait([task])
        replica.close()


async def test_ten_times_the_rows_take_no_more_memory(tmp_path: Path) -> None:
    peaks: list[int] = []
    for pages in (4, 40):
        tracemalloc.start()
        try:
            await fetched(tmp_path / f"{pages}.db", MuchPolicy(pages))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


async def test_fetch_goes_on_in_the_same_file_after_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_RETRY_S", 0.001)
    feed = MuchPolicy(6, away_at=(4, 5))
    await fetched(tmp_path / "replica.db", feed)
    assert feed.page_numbers == [0, 1, 2, 3, 3, 3, 4, 5]
    with closing(sqlite3.connect(tmp_path / "replica.db")) as conn:
        assert conn.execute("SELECT count(*) FROM keys").fetchone() == (6 * PAGE_ROWS,)
        assert conn.execute("SELECT * FROM standing").fetchone() == ("epoch", 6 * PAGE_ROWS, "nonce")
