"""The supervisor's model rows: read from a real replica file, then kept in step with what each refresh writes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection

import pytest

from policy.deployments import Deployment
from policy.snapshot import ModelRow, Row, WorkspaceRow
from proxy.edges.policy.supervisor.model_rows import SLICE, ModelChange, ModelRows, WatchedReplica
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.errors import PolicyUnavailableError
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.supervisor.refresher import Refresher
from tests.fakes.control_plane import FakeControl
from tests.waiting import eventually


def model(id: str, *replicas: str) -> ModelRow:
    return ModelRow(id, "ws", {"d": Deployment("d", "ACTIVE", replicas)}, {"production": "d"})


def row(model: ModelRow) -> Row:
    return Row("model", model.id, 1, model.to_wire())


class World:
    """A replica with its writer, and what listeners were told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replica = PolicyReplica(path)
        self.models = ModelRows()
        self.notices: list[list[ModelChange]] = []
        self.models.listen(lambda changes: self.notices.append(list(changes)))

    async def publish(self, *rows: Row, reset: bool = False) -> None:
        """Write as the refresher does: in a thread."""
        watched = WatchedReplica(self.replica, self.models)
        version = self.replica.version

        def write() -> None:
            update = watched.begin_update(reset=reset or not version.loaded)
            update.add(rows)
            update.commit(ReplicaVersion("e1", version.revision + 1))

        await asyncio.to_thread(write)

    @property
    def changed(self) -> list[Sequence[str]]:
        return [[change.id for change in changes] for changes in self.notices]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "replica.db")
    yield world
    world.replica.close()


async def test_written_models_are_there_before_the_refresh_returns(world: World) -> None:
    await world.publish(row(model("m1", "http://a")), row(model("m2")))
    assert world.models.get("m1") == model("m1", "http://a")
    assert world.notices == [[ModelChange("m1", None, model("m1", "http://a")), ModelChange("m2", None, model("m2"))]]


async def test_only_models_that_changed_are_told_of(world: World) -> None:
    await world.publish(row(model("m1")), row(model("m2")))
    await world.publish(row(model("m1")), row(model("m2", "http://b")))
    await world.publish(Row("workspace", "ws", 1, WorkspaceRow("ws", "active", "basic", True).to_wire()))
    assert world.notices[1:] == [[ModelChange("m2", model("m2"), model("m2", "http://b"))]]


async def test_what_did_not_change_of_a_changed_model_is_the_same_object(world: World) -> None:
    """Listeners skip it by identity: a model may have thousands of deployments."""
    one = model("m1").deployments["d"]
    two = Deployment("d2", "ACTIVE")
    before = ModelRow("m1", "ws", {"d": one, "d2": two}, {"production": "d"})
    await world.publish(row(before))
    await world.publish(row(replace(before, deployments={"d": one, "d2": Deployment("d2", "INACTIVE")})))
    (first_change,), (change,) = world.notices
    assert first_change.after is not None
    assert change.after is not None
    assert change.after.deployments["d"] is first_change.after.deployments["d"]
    assert change.after.environments is first_change.after.environments
    assert change.after.deployments["d2"] == Deployment("d2", "INACTIVE")


async def test_many_changes_are_told_of_in_slices_between_which_others_run(world: World) -> None:
    turns = 0
    turn_of_slice = list[int]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    world.models.listen(lambda changes: turn_of_slice.append(turns))
    counting = asyncio.create_task(count_turns())
    await world.publish(*(row(model(f"m{number}")) for number in range(3 * SLICE + 1)))
    counting.cancel()
    assert [len(changes) for changes in world.notices] == [SLICE, SLICE, SLICE, 1], "all before the refresh returned"
    assert len(set(turn_of_slice)) == 4


async def test_models_that_could_not_be_read_are_none_after_a_rebuild_without_any(tmp_path: Path, world: World) -> None:
    with pytest.raises(PolicyUnavailableError):
        world.models.get("m1")
    await world.publish(reset=True)
    assert world.models.get("m1") is None


async def test_deleted_model_is_gone(world: World) -> None:
    await world.publish(row(model("m1")), row(model("m2")))
    await world.publish(Row("model", "m1", 2, None), Row("model", "never-there", 2, None))
    assert world.models.get("m1") is None
    assert world.notices[1:] == [[ModelChange("m1", model("m1"), None)]]


@pytest.mark.parametrize("reset", [False, True])
async def test_whoever_reads_the_file_finds_its_models_here(
    world: World, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """A worker reads an endpoint as soon as it is committed, and asks for its model before the refresh has returned."""
    await world.publish(row(model("old")), row(model("kept")))
    known_ids = list[set[str]]()
    committed = PolicyReplica.committed

    def look(replica: PolicyReplica, version: ReplicaVersion, conn: Connection, *, changed: bool) -> None:
        committed(replica, version, conn, changed=changed)
        known_ids.append({id for id in ("old", "kept", "new") if world.models.get(id) is not None})

    monkeypatch.setattr(PolicyReplica, "committed", look)
    deletions = [] if reset else [Row("model", "old", 2, None)]
    await world.publish(*deletions, row(model("kept", "http://a")), row(model("new")), reset=reset)
    assert known_ids == [{"old", "kept", "new"}]
    assert world.models.get("old") is None


async def test_models_that_a_rebuild_lacks_are_gone(world: World) -> None:
    await world.publish(row(model("m1")), row(model("m2")))
    await world.publish(row(model("m2")), reset=True)
    assert (world.models.get("m1"), world.models.get("m2")) == (None, model("m2"))
    assert world.changed[1:] == [["m1"]]


async def test_model_that_this_version_cannot_read_is_skipped_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.publish(row(model("m1")), Row("model", "m2", 1, {"deployments": "of another kind"}))
    assert (world.models.get("m1"), world.models.get("m2")) == (model("m1"), None)
    assert "Update this proxy" in caplog.text


async def test_models_are_read_from_the_file_at_start(world: World) -> None:
    await world.publish(row(model("m1")), row(model("m2", "http://b")))
    models = ModelRows()
    changes = list[ModelChange]()
    assert await models.load(world.path)
    models.listen(changes.extend)
    assert models.get("m2") == model("m2", "http://b")
    assert [change.id for change in changes] == ["m1", "m2"], "who listens later learns what is there already"


async def test_file_that_cannot_be_read_is_reported(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database " * 1000)
    models = ModelRows()
    assert not await models.load(damaged)
    assert "rebuilt from control" in caplog.text
    with pytest.raises(PolicyUnavailableError):
        models.get("m1")


async def test_refresher_keeps_models_in_step(world: World) -> None:
    control = FakeControl()
    control.put("model", "m1", model("m1").to_wire())
    await world.models.load(world.path)
    refresher = Refresher(WatchedReplica(world.replica, world.models), control, 60)
    running = asyncio.create_task(refresher.run())
    has: Callable[[ModelRow | None], Callable[[], bool]] = lambda row: lambda: world.models.get("m1") == row  # noqa: E731
    try:
        await eventually(has(model("m1")))
        control.put("model", "m1", model("m1", "http://a").to_wire())
        refresher.hint(control.revision)
        await eventually(has(model("m1", "http://a")))
        control.start_over("epoch-2")
        refresher.hint(None)
        await eventually(has(None))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
