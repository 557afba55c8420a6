"""The snapshot feed for proxies: all rows since a revision, in pages, on both databases.

See docs/reference/management-api.md#internal-api.
"""

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, select, update

from control.edges.sql.published_rows import nonce_of
from control.edges.sql.store import Store
from control.edges.sql.tables import published, revision, revision_nonces
from control.resources import policy_feed
from control.resources.policy_feed import FeedCursor, FeedReader
from policy.snapshot import Row, RowKind, SnapshotPage
from tests.control.plane import TOKEN, ControlPlane, rate


class Follower:
    """A proxy's replica: applies the pages it reads."""

    def __init__(self) -> None:
        self.epoch = self.nonce = ""
        self.revision = 0
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.resets = 0

    def apply(self, page: SnapshotPage) -> None:
        if page.reset:
            self.rows.clear()
            self.resets += 1
        for row in page.rows:
            self.put(row)
        if page.next is None:
            self.epoch = page.epoch
            self.revision = page.revision
            self.nonce = page.nonce

    def put(self, row: Row) -> None:
        if row.body is None:
            self.rows.pop((row.kind, row.id), None)
        else:
            self.rows[(row.kind, row.id)] = row.body

    async def follow(self, store: Store, limit: int = 1000) -> int:
        """Read every page and apply it. Returns the number of pages."""
        cursor = None
        pages = 0
        while True:
            page = await policy_feed.read_page(store, FeedReader(self.epoch, self.revision, cursor, limit, self.nonce))
            self.apply(page)
            pages += 1
            if page.next is None:
                return pages
            cursor = FeedCursor.decode(page.next)


async def publish(store: Store, *ids: str, body: dict[str, Any] | None = None) -> None:
    async with store.write() as tx:
        for id in ids:
            tx.publish(RowKind.GROUP, id, body)


async def test_a_replica_is_filled_over_http(plane: ControlPlane) -> None:
    group = await plane.group("g", models=[rate(5)])
    key = (await plane.post(f"/v1/gateway/groups/{group['id']}/api_keys", {})).ok()
    follower = Follower()
    after = ""
    for _ in range(100):
        standing = f"epoch={follower.epoch}&since={follower.revision}&nonce={follower.nonce}"
        path = f"/internal/v1/snapshot?{standing}&limit=2{after}"
        page = SnapshotPage.from_wire((await plane.get(path, key=TOKEN)).ok())
        follower.apply(page)
        if page.next is None:
            break
        after = f"&after={page.next}"
    kinds = sorted(kind for kind, _ in follower.rows)
    assert kinds == ["group", "key", "key", "workspace"]
    assert follower.rows[("group", group["id"])]["models"] == [{**rate(5), "usage_limits": []}]
    assert key["prefix"] in {row.get("prefix") for row in follower.rows.values()}
    path = f"/internal/v1/snapshot?epoch={follower.epoch}&since={follower.revision}&nonce={follower.nonce}"
    unchanged = SnapshotPage.from_wire((await plane.get(path, key=TOKEN)).ok())
    assert (unchanged.rows, unchanged.reset, unchanged.next) == ((), False, None)
    for wrong in ("since=x", "since=-1", "limit=x", "after=x", "after=[]", "after=[1,2]", "after=" + "[" * 900):
        (await plane.get(f"/internal/v1/snapshot?{wrong}", key=TOKEN)).refused(400)


async def test_proxies_that_ask_at_once_cost_one_or_two_reads(plane: ControlPlane) -> None:
    reads: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "FROM published" in statement:
            reads.append(statement)

    await publish(plane.store, "a", body={"v": 1})
    alone = SnapshotPage.from_wire((await plane.get("/internal/v1/snapshot", key=TOKEN)).ok())
    event.listen(plane.store.engine.sync_engine, "before_cursor_execute", note)
    path = f"/internal/v1/snapshot?epoch={alone.epoch}&since={alone.revision}&nonce={alone.nonce}"
    await plane.get(path, key=TOKEN)
    each = len(reads)
    reads[:] = []
    answers = await asyncio.gather(*(plane.get(path, key=TOKEN) for _ in range(50)))
    assert all(answer.ok() == answers[0].ok() for answer in answers)
    assert each <= len(reads) <= 10 * each


async def test_page_asked_for_after_a_commit_has_it_however_many_ask(plane: ControlPlane) -> None:
    """A page that was being read when the change was committed must not serve the proxy that was told of it."""

    async def ask_for_ever() -> None:
        while True:
            await plane.get("/internal/v1/snapshot", key=TOKEN)

    others = [asyncio.create_task(ask_for_ever()) for _ in range(5)]
    for number in range(20):
        await publish(plane.store, f"g{number}", body={"v": number})
        page = SnapshotPage.from_wire((await plane.get("/internal/v1/snapshot", key=TOKEN)).ok())
        assert f"g{number}" in {row.id for row in page.rows}
    for one in others:
        one.cancel()
    await asyncio.wait(others)


async def test_only_changed_rows_are_sent(store: Store) -> None:
    await publish(store, "a", "b", "c", body={"v": 1})
    follower = Follower()
    await follower.follow(store)
    await publish(store, "b", body={"v": 2})
    await publish(store, "c")
    page = await policy_feed.read_page(store, FeedReader(follower.epoch, follower.revision, None, 10))
    assert [(row.id, row.body) for row in page.rows] == [("b", {"v": 2}), ("c", None)]
    assert not page.reset
    await follower.follow(store)
    assert follower.rows == {("group", "a"): {"v": 1}, ("group", "b"): {"v": 2}}
    assert follower.resets == 1


async def test_changes_made_between_pages_are_not_missed(store: Store) -> None:
    ids = [f"g{number:02}" for number in range(20)]
    await publish(store, *ids, body={"v": 1})
    follower = Follower()
    cursor = None
    for step in range(40):
        page = await policy_feed.read_page(store, FeedReader("", 0, cursor, 3))
        follower.apply(page)
        if page.next is None:
            break
        cursor = FeedCursor.decode(page.next)
        if step < 4:  # changed behind the cursor, deleted in front of it, created
            await publish(store, ids[step], body={"v": 2})
            await publish(store, ids[19 - step])
            await publish(store, f"new{step}", body={"v": 3})
    assert follower.resets == 1
    assert follower.rows.keys() == {("group", id) for id in [*ids[:16], *(f"new{n}" for n in range(4))]}
    assert all(follower.rows[("group", id)] == {"v": 2} for id in ids[:4])


async def test_concurrent_writers_never_hide_a_row(store: Store) -> None:
    """A reader during many concurrent commits ends with every row: no commit appears behind its revision."""
    finish = asyncio.Event()
    follower = Follower()

    async def write(name: str) -> None:
        for number in range(10):
            await publish(store, f"{name}{number}", body={})

    async def read() -> None:
        while not finish.is_set():
            await follower.follow(store, limit=5)

    reader = asyncio.create_task(read())
    await asyncio.gather(*(write(name) for name in "abcde"))
    finish.set()
    await reader
    await follower.follow(store)
    assert len(follower.rows) == 50
    assert follower.revision == 50
    assert follower.resets == 1


async def test_a_reader_older_than_the_tombstones_is_reset(store: Store) -> None:
    await publish(store, "a", "b", body={})
    old = Follower()
    young = Follower()
    await old.follow(store)
    await publish(store, "a")
    await young.follow(store)
    assert await policy_feed.delete_old_tombstones(store, 3600) == 0
    assert await policy_feed.delete_old_tombstones(store, -3600) == 1
    for follower in (old, young):
        await follower.follow(store)
        assert follower.rows == {("group", "b"): {}}
    assert (old.resets, young.resets) == (2, 1)


async def test_another_epoch_or_a_higher_revision_resets_the_reader(store: Store) -> None:
    await publish(store, "a", body={})
    ahead = Follower()
    elsewhere = Follower()
    for follower in (ahead, elsewhere):
        await follower.follow(store)
    ahead.revision += 5
    ahead.rows[("group", "lost")] = {}
    await ahead.follow(store)
    assert ahead.rows == {("group", "a"): {}}
    async with store.write() as tx:
        await tx.conn.execute(update(revision).values(epoch="another"))
    await elsewhere.follow(store)
    assert (elsewhere.epoch, elsewhere.resets) == ("another", 2)
    cursor_of_old_epoch = FeedCursor("epoch before", (0, "", ""))
    assert (await policy_feed.read_page(store, FeedReader("another", 1, cursor_of_old_epoch, 10))).reset


class Backup:
    """A backup of the published policy. `restore` replaces the database's content with it."""

    TABLES = (published, revision, revision_nonces)

    def __init__(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        self._rows = rows

    @classmethod
    async def of(cls, store: Store) -> "Backup":
        async with store.read() as conn:
            rows = {table.name: (await conn.execute(select(table))).mappings().all() for table in cls.TABLES}
        return cls({name: [dict(row) for row in records] for name, records in rows.items()})

    async def restore(self, store: Store) -> None:
        async with store.write() as tx:
            for table in self.TABLES:
                await tx.conn.execute(delete(table))
                if self._rows[table.name]:
                    await tx.conn.execute(insert(table), self._rows[table.name])


@pytest.mark.parametrize("written_since", [0, 1, 2, 3, 7])
async def test_a_restored_database_resets_the_reader_whatever_was_written_since(
    store: Store, written_since: int
) -> None:
    """Fewer, as many or more revisions are written than were lost: the follower ends with the database's rows."""
    await publish(store, "kept", "changed", body={"v": 1})
    backup = await Backup.of(store)
    follower = Follower()
    await follower.follow(store)
    await publish(store, "minted after the backup", body={})
    await publish(store, "changed", body={"v": 2})
    await follower.follow(store)
    await backup.restore(store)
    for number in range(written_since):
        await publish(store, f"new{number}", body={})
    await follower.follow(store)
    expected = {("group", "kept"): {"v": 1}, ("group", "changed"): {"v": 1}}
    assert follower.rows == expected | {("group", f"new{number}"): {} for number in range(written_since)}
    assert follower.resets == 2


async def test_a_reader_not_ahead_of_the_backup_is_not_reset(store: Store) -> None:
    await publish(store, "a", body={"v": 1})
    follower = Follower()
    await follower.follow(store)
    backup = await Backup.of(store)
    await publish(store, "b", body={})
    await backup.restore(store)
    await publish(store, "c", body={})
    await follower.follow(store)
    assert set(follower.rows) == {("group", "a"), ("group", "c")}
    assert follower.resets == 1


async def test_a_restore_between_two_pages_invalidates_the_cursor(store: Store) -> None:
    """The cursor starts at a revision that both histories share, yet a page held a row that the restore removed."""
    await publish(store, *(f"g{number}" for number in range(4)), body={"v": 1})
    backup = await Backup.of(store)
    follower = Follower()
    first = await policy_feed.read_page(store, FeedReader("", 0, None, 2))
    assert first.next is not None
    await publish(store, "g3", body={"v": 2})
    second = await policy_feed.read_page(store, FeedReader("", 0, FeedCursor.decode(first.next), 1))
    assert second.next is not None
    await backup.restore(store)
    third = await policy_feed.read_page(store, FeedReader("", 0, FeedCursor.decode(second.next), 1))
    assert third.reset, "otherwise the proxy would keep g3 from the lost history"
    follower.apply(third)
    assert third.next is not None


async def test_a_proxy_that_sends_no_nonce_is_served_by_revision(store: Store) -> None:
    await publish(store, "a", body={})
    older = await policy_feed.read_page(store, FeedReader("", 0, None, 10))
    again = await policy_feed.read_page(store, FeedReader(older.epoch, older.revision, None, 10))
    assert not again.reset
    unproven = await policy_feed.read_page(store, FeedReader(older.epoch, older.revision, None, 10, nonce=""))
    assert unproven.reset, "a replica that an older version filled cannot say whose revision it has"


async def test_a_revision_without_a_nonce_is_sent_again_until_one_has(store: Store) -> None:
    """An older control that runs beside this one writes revisions without a nonce."""
    await publish(store, "a", body={})
    await publish(store, "b", body={})
    async with store.write() as tx:
        await tx.conn.execute(delete(revision_nonces).where(revision_nonces.c.revision == 2))
    follower = Follower()
    for _ in range(2):
        await follower.follow(store)
    assert (follower.revision, follower.resets) == (1, 1)
    await publish(store, "c", body={})
    await follower.follow(store)
    assert follower.rows.keys() == {("group", "a"), ("group", "b"), ("group", "c")}
    assert (follower.revision, follower.resets) == (3, 1)


async def test_clean_up_keeps_the_nonce_of_the_latest_revision(store: Store) -> None:
    for id in "abc":
        await publish(store, id, body={})
    follower = Follower()
    await follower.follow(store)
    await policy_feed.delete_old_tombstones(store, -3600)
    async with store.read() as conn:
        assert [await nonce_of(conn, number) is not None for number in range(4)] == [False, False, False, True]
    await follower.follow(store)
    assert follower.resets == 1


async def test_many_tombstones_share_one_revision(store: Store) -> None:
    await publish(store, *(f"g{number}" for number in range(1200)), body={})
    async with store.write() as tx:
        await tx.publish_tombstones(RowKind.GROUP, published.c.id, published.c.id != "g7")
        tx.publish(RowKind.GROUP, "more", {})
    follower = Follower()
    await follower.follow(store)
    assert follower.rows.keys() == {("group", "g7"), ("group", "more")}
    assert follower.revision == 2


async def test_a_hint_is_sent_only_after_a_commit_that_publishes(store: Store) -> None:
    hinted: list[int] = []
    hinting = Store(store.engine, hinted.append)
    await publish(hinting, "a", body={})
    try:
        async with hinting.write() as tx:
            tx.publish(RowKind.GROUP, "b", {})
            raise KeyError("undone")
    except KeyError:
        pass
    async with hinting.write():
        pass
    assert hinted == [1]
    follower = Follower()
    await follower.follow(store)
    assert follower.rows.keys() == {("group", "a")}


async def test_a_page_ends_with_the_row_that_exceeds_its_size(store: Store) -> None:
    await publish(store, *"abcde", body={"text": "x" * (policy_feed.PAGE_CHARS // 2)})
    follower = Follower()
    assert await follower.follow(store) == 3
    assert sorted(id for _, id in follower.rows) == [*"abcde"]
