"""The policy replica and its directory on a real SQLite file, with rows as control publishes them."""

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.sealing import seal
from policy.snapshot import EndpointRow, KeyRow, ModelRow, Row, SecretRow, WorkspaceRow, group_to_wire
from proxy.directory_values import KeyHolder, SlugRoute
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.replica_file import ReplicaStamp, stamp_path
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica, ReplicaInUseError, ReplicaUnusableError
from proxy.errors import PolicyUnavailableError, ReplicaUnwritableError
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.refusals import TargetSecretError, TargetSecretUnusableError

KEYS = (b"k" * 32,)


class ScriptedConfirmer:
    """Confirms with `ok`. Counts confirmations and damage reports."""

    def __init__(self) -> None:
        self.ok = True
        self.confirmations = 0
        self.damage = 0

    async def confirm(self, *, may_be_ours: bool = True) -> bool:
        self.confirmations += 1
        return self.ok

    async def confirm_keys(self, provider_id: str) -> bool:
        return self.ok

    def report_damage(self) -> None:
        self.damage += 1


class World:
    """A replica with its writer and one reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replica = PolicyReplica(path)
        self.confirmer = ScriptedConfirmer()
        self.readers: list[SnapshotDirectory] = []
        self.directory = self.reader()

    def reader(self) -> SnapshotDirectory:
        self.readers.append(SnapshotDirectory(self.path, KEYS, ReplicaStamp(stamp_path(self.path)), self.confirmer))
        return self.readers[-1]

    def key(self, digest: str, reader: SnapshotDirectory | None = None) -> KeyRow | None:
        """Look up a key."""
        holder = (reader or self.directory).key_holder(digest)
        return None if holder is None else holder.key

    def route(self, group_id: str, slug: str) -> SlugRoute | None:
        """Return the route of the slug for a group."""
        return route_of(self.directory, group_id, slug)

    def publish(self, *rows: Row, reset: bool = False, epoch: str = "e1") -> None:
        version = self.replica.version
        update = self.replica.begin_update(reset=reset or not version.loaded)
        update.add(rows)
        update.commit(ReplicaVersion(epoch, version.revision + 1))


def route_of(directory: SnapshotDirectory, group_id: str, slug: str) -> SlugRoute | None:
    group = directory.group(group_id)
    if group is None:
        return None
    caller = KeyRow("any key of the group", "tg_prefix", KeyKind.FEDERATED, "any workspace", group_id)
    return directory.slug_route(group, caller, slug)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "replica.db")
    yield world
    for reader in world.readers:
        reader.close()
    world.replica.close()


def endpoint(slug: str, model: str = "m") -> Row:
    row = EndpointRow(slug, "ep", "ws", Target("VENDOR_B", secret_id="s", target_model=model))
    return Row("endpoint", slug, 1, row.to_wire())


def key(digest: str, group_id: str = "g") -> Row:
    return Row("key", digest, 1, KeyRow(digest, "tg_p", KeyKind.FEDERATED, "ws", group_id).to_wire())


def group(id: str, parent_id: str | None = None, threshold: int = 5) -> Row:
    models = (SlugLimits("acme/a", (Limit(LimitType.REQUEST, Unit.MINUTE, threshold),)),)
    return Row("group", id, 1, group_to_wire(Group(id, "ws", parent_id, f"ext-{id}", Enforcement.CASCADING, models)))


def workspace(billing: str = "active") -> Row:
    return Row("workspace", "ws", 1, WorkspaceRow("ws", billing, "pro", True).to_wire())


def secret(id: str, value: str, keys: tuple[bytes, ...] = KEYS) -> Row:
    return Row("secret", id, 1, SecretRow(id, "ws", seal(keys, id, value, b"n" * 12)).to_wire())


def test_empty_replica_raises_policy_unavailable(world: World) -> None:
    with pytest.raises(PolicyUnavailableError):
        world.key("d")


def test_published_rows_are_found_and_compiled(world: World) -> None:
    world.publish(endpoint("acme/a"), key("d"), group("g"), secret("s", "sk-1"))
    acme_endpoint = world.directory.endpoint("acme/a")
    assert acme_endpoint is not None
    assert acme_endpoint.target.target_model == "m"
    assert world.directory.endpoint("acme/a") is acme_endpoint
    holder = world.key("d")
    assert holder is not None
    assert holder.group_id == "g"
    assert world.directory.secret("s") == "sk-1"
    assert world.directory.slugs("g") == ("acme/a",)
    assert world.directory.slugs("nobody") == ()
    assert world.key("unknown") is None
    assert world.directory.model("unknown") is None
    assert world.directory.workspace("unknown") is None


def test_change_is_seen_on_the_next_lookup(world: World) -> None:
    world.publish(endpoint("acme/a", "old"), key("d"))
    assert world.directory.endpoint("acme/a") is not None
    world.publish(endpoint("acme/a", "new"))
    acme_endpoint = world.directory.endpoint("acme/a")
    assert acme_endpoint is not None
    assert acme_endpoint.target.target_model == "new"
    assert world.key("d") is not None


def test_tombstone_removes_the_row(world: World) -> None:
    world.publish(key("d"), key("other"))
    assert world.key("d") is not None
    world.publish(Row("key", "d", 2, None))
    assert world.key("d") is None
    assert world.key("other") is not None


def test_reset_removes_rows_that_it_does_not_contain(world: World) -> None:
    world.publish(key("old"))
    assert world.key("old") is not None
    world.publish(key("new"), reset=True, epoch="e2")
    assert world.key("old") is None
    assert world.key("new") is not None
    assert world.replica.version.epoch == "e2"
    world.publish(key("newer"), epoch="e2")
    assert world.key("newer") is not None


def test_readers_see_the_old_policy_until_the_update_is_committed(world: World) -> None:
    world.publish(key("old"))
    for reset in (False, True):
        update = world.replica.begin_update(reset=reset)
        update.add([key("half"), Row("key", "old", 2, None)])
        assert world.key("old", world.reader()) is not None
        assert world.key("half", world.reader()) is None
        update.discard()
        assert world.key("old", world.reader()) is not None
    assert world.replica.version == ReplicaVersion("e1", 1)


def test_refresh_without_changes_writes_nothing_and_keeps_the_cache(world: World) -> None:
    world.publish(key("d"), workspace(), group("g"))
    holder = world.key("d")
    update = world.replica.begin_update(reset=False)
    update.add([])
    update.commit(world.replica.version)
    assert world.key("d") is holder


def test_replica_survives_a_restart_of_the_writer(world: World) -> None:
    world.publish(key("d"), secret("s", "sk-1"))
    world.replica.close()
    world.replica = PolicyReplica(world.path)
    assert world.replica.version == ReplicaVersion("e1", 1)
    assert world.replica.confirmed_at_s == 0
    assert world.key("d", world.reader()) is not None


def test_committed_rows_are_readable_without_closing_the_writer(world: World) -> None:
    world.publish(key("d"))
    world.publish(key("e"))
    pid = os.fork()
    if pid == 0:  # a reader process that dies without closing anything
        holder = world.key("e", world.reader())
        os._exit(0 if holder else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_replica_files_are_readable_by_their_owner_only(world: World) -> None:
    world.publish(secret("s", "sk-1"))
    world.publish(secret("t", "sk-2"), reset=True)
    world.publish(secret("u", "sk-3"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in world.path.parent.iterdir()}
    assert {"replica.db", "replica.db-wal", "replica.db.stamp"} <= set(modes)
    assert set(modes.values()) == {0o600}
    assert all(b"sk-" not in path.read_bytes() for path in world.path.parent.iterdir())


def test_second_writer_is_refused(world: World) -> None:
    with pytest.raises(ReplicaInUseError, match=r"replica\.db"):
        PolicyReplica(world.path)


def test_replica_that_cannot_be_made_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReplicaUnusableError, match=r"file/replica\.db: .*TOLLGATE_REPLICA_PATH"):
        PolicyReplica(tmp_path / "file" / "replica.db")


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 400])
def test_file_that_is_not_a_replica_is_rebuilt(world: World, damage: bytes) -> None:
    world.publish(key("d"))
    world.replica.close()
    for suffix in ("-wal", "-shm"):
        world.path.with_name(world.path.name + suffix).unlink(missing_ok=True)
    world.path.write_bytes(damage)
    world.replica = PolicyReplica(world.path)
    assert not world.replica.version.loaded
    world.publish(key("d"))
    assert world.key("d") is not None


def test_replica_of_another_version_is_rebuilt(world: World) -> None:
    world.publish(key("d"))
    world.replica.close()
    with sqlite3.connect(world.path) as conn:
        conn.execute("PRAGMA user_version = 99")
    conn.close()
    world.replica = PolicyReplica(world.path)
    assert not world.replica.version.loaded


def test_damaged_pages_are_reported_and_the_file_is_rebuilt(world: World) -> None:
    world.publish(*(key(f"{n:064x}") for n in range(3000)))
    world.replica.close()
    size = world.path.stat().st_size
    with world.path.open("r+b") as file:
        file.seek(size // 8192 * 4096)
        file.write(b"\xff" * (size // 4))
    world.replica = PolicyReplica(world.path)
    with pytest.raises(PolicyUnavailableError):
        _ = [world.key(f"{n:064x}") for n in range(3000)]
    assert world.confirmer.damage == 1
    assert world.replica.forget_if_damaged()
    assert not world.replica.version.loaded
    world.publish(key("d"))
    assert world.key("d") is not None
    assert not world.replica.forget_if_damaged()


def test_unwritable_disk_raises_and_changes_nothing(world: World) -> None:
    world.publish(key("d"))
    conn = sqlite3.connect(world.path)
    conn.execute("PRAGMA max_page_count = 1")
    conn.close()
    update = world.replica.begin_update(reset=False)
    world.replica._conn.execute("PRAGMA max_page_count = 1")
    with pytest.raises(ReplicaUnwritableError):
        update.add(key(f"{n:064x}") for n in range(3000))
    update.discard()
    world.replica._conn.execute("PRAGMA max_page_count = 1000000")
    assert world.key("d") is not None
    world.publish(key("e"))
    assert world.key("e") is not None


def test_plan_includes_all_ancestors_and_follows_their_changes(world: World) -> None:
    world.publish(group("root", threshold=9), group("mid", "root", 7), group("leaf", "mid", 5))
    plan = world.directory.plan("leaf", "acme/a")
    assert plan is not None
    assert [(b.source_group, b.limit.threshold) for b in plan.bounds] == [("leaf", 5), ("mid", 7), ("root", 9)]
    world.publish(group("root", threshold=3))
    plan = world.directory.plan("leaf", "acme/a")
    assert plan is not None
    assert plan.bounds[-1].limit.threshold == 3
    assert world.directory.plan("leaf", "acme/other") is None
    assert world.directory.plan("nobody", "acme/a") is None


def test_limits_of_an_ancestor_that_cannot_be_read_are_not_dropped(world: World) -> None:
    world.publish(group("leaf", "gone"))
    with pytest.raises(PolicyUnavailableError):
        world.directory.plan("leaf", "acme/a")


def test_cycle_of_parents_is_refused(world: World) -> None:
    world.publish(group("a", "b"), group("b", "a"))
    with pytest.raises(PolicyUnavailableError):
        world.directory.plan("a", "acme/a")


def test_key_holder_follows_each_of_its_rows(world: World) -> None:
    world.publish(key("d"), workspace(), group("g"))
    caller = world.directory.key_holder("d")
    assert caller is not None
    assert caller.workspace is not None
    assert caller.group is not None
    assert (caller.key.digest, caller.workspace.billing, caller.group.id) == ("d", "active", "g")
    assert world.directory.key_holder("d") is caller
    assert world.directory.key_holder("unknown") is None
    world.publish(workspace("suspended"))
    caller = world.directory.key_holder("d")
    assert caller is not None
    assert caller.workspace is not None
    assert caller.workspace.billing == "suspended"
    world.publish(Row("group", "g", 2, None))
    caller = world.directory.key_holder("d")
    assert caller is not None
    assert caller.group is None
    world.publish(group("g"))
    assert world.directory.key_holder("d") == KeyHolder(caller.key, caller.workspace, world.directory.group("g"))
    world.publish(Row("key", "d", 2, None))
    assert world.directory.key_holder("d") is None


def test_slug_route_follows_endpoint_and_plan(world: World) -> None:
    world.publish(endpoint("acme/a", "old"), group("g", threshold=5))
    route = world.route("g", "acme/a")
    assert route is not None
    assert (route.endpoint.target.target_model, route.plan.bounds[0].limit.threshold) == ("old", 5)
    assert world.route("g", "acme/a") is route
    assert world.directory.plan("g", "acme/a") == route.plan
    world.publish(endpoint("acme/a", "new"))
    world.publish(group("g", threshold=6))
    route = world.route("g", "acme/a")
    assert route is not None
    assert (route.endpoint.target.target_model, route.plan.bounds[0].limit.threshold) == ("new", 6)
    assert world.route("nobody", "acme/a") is None
    assert world.route("g", "acme/other") is None
    world.publish(Row("endpoint", "acme/a", 2, None))
    assert world.route("g", "acme/a") is None


def test_changed_secret_is_seen_on_the_next_lookup(world: World) -> None:
    for value in ("sk-1", "sk-2"):
        world.publish(secret("s", value))
        assert [world.directory.secret("s") for _ in range(2)] == [value] * 2
    world.publish(Row("secret", "s", 2, None))
    assert world.directory.secret("s") is None


def test_key_holder_that_mixes_two_generations_is_not_kept(world: World) -> None:
    """The key's row and its group's are read, then all rows change, then the workspace's row is read."""
    world.publish(key("d", "g"), workspace(), group("g"), group("h"))
    read = world.directory._rows.body

    def read_late(kind: str, id: str) -> bytes | None:
        if kind == "workspace":
            world.directory._rows.body = read  # type: ignore[method-assign] # once
            world.publish(key("d", "h"))
            world.directory.endpoint("acme/a")  # a look-up that follows the change
        return read(kind, id)

    world.directory._rows.body = read_late  # type: ignore[method-assign] # rows change between two reads
    world.directory.key_holder("d")
    caller = world.directory.key_holder("d")
    assert caller is not None
    assert caller.key.group_id == "h"


@pytest.mark.parametrize("reset", [False, True])
def test_plan_that_mixes_two_generations_is_not_kept(world: World, reset: bool) -> None:
    world.publish(group("root"), group("leaf", "root", 5), endpoint("acme/a"))
    read = world.directory._rows.entries

    def read_late(path: Sequence[str], slug: str) -> str:
        world.directory._rows.entries = read  # type: ignore[method-assign] # once
        entries = read(path, slug)
        world.publish(group("root"), group("leaf", "root", 4), endpoint("acme/a"), reset=reset)
        world.directory.endpoint("acme/b")  # a look-up that follows the change
        return entries

    world.directory._rows.entries = read_late  # type: ignore[method-assign] # rows change between two reads
    world.route("leaf", "acme/a")
    route = world.route("leaf", "acme/a")
    assert route is not None
    assert route.plan.bounds[0].limit.threshold == 4


def test_values_count_against_the_cache_bound_by_their_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.edges.policy.directory.CACHE_WEIGHT", 100_000)
    directory = world.reader()
    world.publish(workspace(), group("g"), *(key(f"{n}") for n in range(1000)))
    for number in range(1000):
        assert directory.key_holder(f"{number}") is not None
        assert directory.key_holder(f"not-{number}") is None
        assert sum(entry.weight for entry in directory._cache.entries.values()) <= 100_000
    directory.close()


def test_rows_of_a_kind_of_a_newer_version_are_skipped(world: World) -> None:
    """Keys that cannot be read are not: see `test_newer_keys.py`."""
    world.publish(Row("rocket", "r", 1, {"x": 1}), key("e"))
    assert world.key("e") is not None


def test_secret_sealed_with_an_unknown_key_is_not_available(world: World) -> None:
    world.publish(secret("s", "sk-1", keys=(b"x" * 32,)))
    for _ in range(2):
        with pytest.raises(TargetSecretError):
            world.directory.secret("s")


@pytest.mark.parametrize("value", ["sk-1\n", "sk\r-1", "sk\0", "sk\x7f", "sk\u0085", "s" * 8193, "é" * 4097])
def test_secret_that_no_header_can_carry_is_unusable_until_it_is_stored_again(
    world: World, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(secret("s", value), secret("t", "sk-2"))
    for _ in range(2):
        with pytest.raises(TargetSecretUnusableError):
            world.directory.secret("s")
    assert world.directory.secret("t") == "sk-2"
    (line,) = caplog.messages
    assert "Secret s " in line
    assert value.strip() not in line
    world.publish(secret("s", "s" * 8192))
    assert world.directory.secret("s") == "s" * 8192


def test_malformed_unicode_matches_no_row(world: World) -> None:
    world.publish(key("d"))
    assert world.directory.endpoint("\ud800") is None
    assert world.directory.endpoint("a\x00b") is None
    assert world.directory.endpoint("' OR 1=1 --") is None


def test_callable_among_returns_all_names_before_policy_is_loaded(world: World) -> None:
    slugs = {"acme/a", "acme/gone"}
    assert world.replica.callable_among(slugs) == slugs, "nothing is loaded yet"
    world.publish(endpoint("acme/a"), endpoint("acme/b"))
    assert world.replica.callable_among(slugs) == {"acme/a"}


def test_callable_among_knows_models_by_id(world: World) -> None:
    world.publish(Row("model", "mdl_1", 1, ModelRow("mdl_1", "ws").to_wire()))
    assert world.replica.callable_among({"mdl_1", "mdl_2"}) == {"mdl_1"}


async def test_unknown_key_is_confirmed_with_control(world: World) -> None:
    world.publish(key("d"))
    await world.directory.confirm_unknown()
    assert world.confirmer.confirmations == 1


async def test_unknown_key_is_confirmed_again_after_a_recent_confirmation(world: World) -> None:
    """The key may be younger than that moment."""
    world.publish(key("d"))
    world.replica.confirm(time.monotonic())
    await world.directory.confirm_unknown()
    assert world.confirmer.confirmations == 1


async def test_unreachable_control_is_an_outage_and_never_an_unknown_key(world: World) -> None:
    world.publish(key("d"))
    world.confirmer.ok = False
    with pytest.raises(PolicyUnavailableError):
        await world.directory.confirm_unknown()


def test_reader_never_fails_while_a_writer_commits(world: World) -> None:
    world.publish(key("d"))

    def write() -> None:
        for n in range(60):
            world.publish(key("d", f"g{n}"), *(key(f"{n}-{m}") for m in range(20)), reset=n % 10 == 9)

    async def both() -> None:
        writing = asyncio.create_task(asyncio.to_thread(write))
        while not writing.done():
            assert world.key("d") is not None
            await asyncio.sleep(0)
        await writing

    asyncio.run(both())
    holder = world.key("d")
    assert holder is not None
    assert holder.group_id == "g59"


@pytest.mark.parametrize(
    "rows",
    [
        [group("leaf", "gone")],
        [group("leaf", "middle"), group("middle", "gone")],
        [group("leaf", "leaf")],
        [group("leaf", "above-1"), *(group(f"above-{n}", f"above-{n + 1}") for n in range(1, 5)), group("above-5")],
    ],
    ids=["without its parent", "without its root", "in a circle", "with six levels"],
)
def test_path_that_cannot_be_read_whole_is_an_outage(world: World, rows: list[Row]) -> None:
    """A path with a gap would drop limits."""
    world.publish(key("d", "leaf"), *rows)
    with pytest.raises(PolicyUnavailableError):
        world.key("d")


def test_update_names_changed_keys_and_groups_as_other_rows(world: World) -> None:
    rows = [key("d", "g"), group("g"), endpoint("acme/a"), workspace()]
    world.publish(*rows)
    assert world.directory.key_holder("d") is not None
    first_holder = world.directory.key_holder("d")
    world.publish(key("other", "g"))
    assert world.directory.key_holder("d") is first_holder
    world.publish(key("d", "h"), group("h"))
    holder = world.directory.key_holder("d")
    assert holder is not None
    assert holder.group is not None
    assert holder.group.id == "h"
    world.publish(Row("group", "h", 2, None))
    holder = world.directory.key_holder("d")
    assert holder is not None
    assert holder.group is None
