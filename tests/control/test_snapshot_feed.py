"""The proxies' feed: all since a revision, in pages, on both databases (architecture "Snapshot")."""

import asyncio
from typing import Any

from sqlalchemy import update

from control import publisher
from control.edges.store import Store
from control.edges.tables import published, revision
from control.publisher import Reader, Walk
from policy.snapshot import Delta, Row, RowKind
from tests.control.plane import TOKEN, ControlPlane, rate


class Follower:
    """A proxy's replica: applies what it reads."""

    def __init__(self) -> None:
        self.epoch = ""
        self.revision = 0
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.resets = 0

    def apply(self, delta: Delta) -> None:
        if delta.reset:
            self.rows.clear()
            self.resets += 1
        for row in delta.rows:
            self.put(row)
        if delta.next is None:
            self.epoch, self.revision = delta.epoch, delta.revision

    def put(self, row: Row) -> None:
        if row.body is None:
            self.rows.pop((row.kind, row.id), None)
        else:
            self.rows[(row.kind, row.id)] = row.body

    async def follow(self, store: Store, limit: int = 1000) -> int:
        """Read every page; how many there were."""
        walk, pages = None, 0
        while True:
            delta = await publisher.read_delta(store, Reader(self.epoch, self.revision, walk, limit))
            self.apply(delta)
            pages += 1
            if delta.next is None:
                return pages
            walk = Walk.decode(delta.next)


async def publish(store: Store, *ids: str, body: dict[str, Any] | None = None) -> None:
    async with store.write() as tx:
        for id in ids:
            tx.publish(RowKind.GROUP, id, body)


async def test_the_feed_over_http(plane: ControlPlane) -> None:
    group = await plane.group("g", models=[rate(5)])
    key = (await plane.post(f"/v1/gateway/groups/{group['id']}/api_keys", {})).ok()
    follower, after = Follower(), ""
    for _ in range(100):
        path = f"/internal/v1/snapshot?epoch={follower.epoch}&since={follower.revision}&limit=2{after}"
        page = Delta.from_wire((await plane.get(path, key=TOKEN)).ok())
        follower.apply(page)
        if page.next is None:
            break
        after = f"&after={page.next}"
    kinds = sorted(kind for kind, _ in follower.rows)
    assert kinds == ["group", "key", "key", "workspace"]
    assert follower.rows[("group", group["id"])]["models"] == [{**rate(5), "usage_limits": []}]
    assert key["prefix"] in {row.get("prefix") for row in follower.rows.values()}
    path = f"/internal/v1/snapshot?epoch={follower.epoch}&since={follower.revision}"
    quiet = Delta.from_wire((await plane.get(path, key=TOKEN)).ok())
    assert (quiet.rows, quiet.reset, quiet.next) == ((), False, None)
    for wrong in ("since=x", "since=-1", "limit=x", "after=x", "after=[]", "after=[1,2]", "after=" + "[" * 900):
        (await plane.get(f"/internal/v1/snapshot?{wrong}", key=TOKEN)).refused(400)


async def test_only_what_changed_travels(store: Store) -> None:
    await publish(store, "a", "b", "c", body={"v": 1})
    follower = Follower()
    await follower.follow(store)
    await publish(store, "b", body={"v": 2})
    await publish(store, "c")
    delta = await publisher.read_delta(store, Reader(follower.epoch, follower.revision, None, 10))
    assert [(row.id, row.body) for row in delta.rows] == [("b", {"v": 2}), ("c", None)]
    assert not delta.reset
    await follower.follow(store)
    assert follower.rows == {("group", "a"): {"v": 1}, ("group", "b"): {"v": 2}}
    assert follower.resets == 1


async def test_a_walk_in_small_pages_misses_nothing_that_changes_meanwhile(store: Store) -> None:
    ids = [f"g{number:02}" for number in range(20)]
    await publish(store, *ids, body={"v": 1})
    follower, walk = Follower(), None
    for step in range(40):
        delta = await publisher.read_delta(store, Reader("", 0, walk, 3))
        follower.apply(delta)
        if delta.next is None:
            break
        walk = Walk.decode(delta.next)
        if step < 4:  # behind the walk, in front of it, gone, new
            await publish(store, ids[step], body={"v": 2})
            await publish(store, ids[19 - step])
            await publish(store, f"new{step}", body={"v": 3})
    assert follower.resets == 1
    assert follower.rows.keys() == {("group", id) for id in [*ids[:16], *(f"new{n}" for n in range(4))]}
    assert all(follower.rows[("group", id)] == {"v": 2} for id in ids[:4])


async def test_concurrent_writers_never_hide_a_row(store: Store) -> None:
    """A reader that keeps reading while many commit ends with all of it: no commit becomes visible behind it."""
    done = asyncio.Event()
    follower = Follower()

    async def write(name: str) -> None:
        for number in range(10):
            await publish(store, f"{name}{number}", body={})

    async def read() -> None:
        while not done.is_set():
            await follower.follow(store, limit=5)

    reader = asyncio.create_task(read())
    await asyncio.gather(*(write(name) for name in "abcde"))
    done.set()
    await reader
    await follower.follow(store)
    assert len(follower.rows) == 50
    assert follower.revision == 50
    assert follower.resets == 1


async def test_who_is_older_than_the_tombstones_starts_over(store: Store) -> None:
    await publish(store, "a", "b", body={})
    old, young = Follower(), Follower()
    await old.follow(store)
    await publish(store, "a")
    await young.follow(store)
    assert await publisher.forget_tombstones(store, 3600) == 0
    assert await publisher.forget_tombstones(store, -3600) == 1
    for follower in (old, young):
        await follower.follow(store)
        assert follower.rows == {("group", "b"): {}}
    assert (old.resets, young.resets) == (2, 1)


async def test_another_epoch_or_a_database_put_back_starts_over(store: Store) -> None:
    await publish(store, "a", body={})
    ahead, elsewhere = Follower(), Follower()
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
    gone = Walk("epoch before", (0, "", ""))
    assert (await publisher.read_delta(store, Reader("another", 1, gone, 10))).reset


async def test_burying_many_is_one_revision(store: Store) -> None:
    await publish(store, *(f"g{number}" for number in range(1200)), body={})
    async with store.write() as tx:
        await tx.bury(RowKind.GROUP, published.c.id, published.c.id != "g7")
        tx.publish(RowKind.GROUP, "more", {})
    follower = Follower()
    await follower.follow(store)
    assert follower.rows.keys() == {("group", "g7"), ("group", "more")}
    assert follower.revision == 2


async def test_hints_follow_the_commit(store: Store) -> None:
    told: list[int] = []
    hinting = Store(store.engine, told.append)
    await publish(hinting, "a", body={})
    try:
        async with hinting.write() as tx:
            tx.publish(RowKind.GROUP, "b", {})
            raise KeyError("undone")
    except KeyError:
        pass
    async with hinting.write():
        pass
    assert told == [1]
    follower = Follower()
    await follower.follow(store)
    assert follower.rows.keys() == {("group", "a")}
