"""Shares of workspaces in checkpoint transfers, and bounds on their bytes. Real directories and stores."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.edges.checkpoints.job import Clock, restore_of
from tests.waiting import eventually
from trainer.backend import CheckpointTerms
from trainer.edges.checkpoints import CheckpointSync, Store
from trainer.edges.checkpoints.store import MAX_TRANSFERS
from trainer.settings import CheckpointSizes

MAX_BYTES = 1_000_000


class SlowStore(Store):
    """A store that holds what a job of the name `hostile…` writes and reads until `go`."""

    def __init__(self, url: str) -> None:
        super().__init__(url, CheckpointSizes(MAX_BYTES, {"narrow": MAX_BYTES // 2}))
        self.go = threading.Event()
        self.hold_count = 0

    def write(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        self._hold(key)
        super().write(key, size_bytes, pieces)

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        self._hold(key)
        return super().read(key, start)

    def _hold(self, key: str) -> None:
        if key.startswith("hostile") and key.endswith("model.bin"):
            self.hold_count += 1
            self.go.wait(timeout=60)


class World:
    """Jobs of two workspaces that share a store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store = SlowStore((path / "store").as_uri())
        self.clock = Clock()

    def job(self, name: str, workspace: str) -> CheckpointSync:
        """The checkpoints of a job that has written one."""
        self.file(name).write_bytes(b"weights")
        return CheckpointSync(self._path / name, self.store, name, self.clock, terms=CheckpointTerms(workspace))

    def file(self, name: str) -> Path:
        path = self._path / name / "step-1" / "model.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    async def ended(self, sync: CheckpointSync) -> None:
        """Return when the end of the job shows: its checkpoints are in the store."""
        finishing = asyncio.create_task(sync.finish())
        async with asyncio.timeout(30):
            while not finishing.done():
                await asyncio.sleep(0.005)
                self.clock.now += 0.5
        await finishing


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    scene = World(tmp_path)
    yield scene
    scene.store.go.set()


async def test_end_of_a_job_shows_while_another_workspace_holds_all_transfers_that_it_can(world: World) -> None:
    hostile = [world.job(f"hostile{number}", "hostile") for number in range(3 * MAX_TRANSFERS)]
    tasks = [asyncio.create_task(world.ended(sync)) for sync in hostile]
    await eventually(lambda: world.store.hold_count >= MAX_TRANSFERS - 1)
    for number in range(3):
        own = world.job(f"own{number}", "other")
        await world.ended(own)
        [report] = await own.run_once()
        assert report.files is not None
        await own.restore(restore_of(report))
    assert world.store.hold_count == MAX_TRANSFERS - 1
    world.store.go.set()
    await asyncio.gather(*tasks)
    assert not any(sync.is_syncing for sync in hostile)


async def test_sparse_checkpoint_beyond_the_bound_is_refused_and_takes_no_byte_of_the_store(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sync = world.job("job", "other")
    with world.file("job").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    await world.ended(sync)
    assert await sync.run_once() == []
    assert not list((tmp_path / "store").rglob("model.bin"))
    assert sync.refusal is not None
    assert sync.refusal.startswith("checkpoint 'step-1' is not stored: its files are larger than 1000000 bytes")
    assert "TOLLGATE_CHECKPOINT_MAX_SIZE" in sync.refusal
    assert caplog.text.count("is not stored") == 1


async def test_job_bounds_its_checkpoints_by_its_volume(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    (directory / "step-1").mkdir(parents=True)
    with (directory / "step-1" / "model.bin").open("wb") as file:
        file.truncate(2**30 + 1)
    sync = CheckpointSync(
        directory, Store((tmp_path / "store").as_uri()), "job", Clock(), terms=CheckpointTerms(max_gib=1)
    )
    assert await sync.run_once() == []
    assert sync.refusal is not None
    assert "larger than 1073741824 bytes" in sync.refusal
    assert "volume_size_gib" in sync.refusal


async def test_workspace_with_a_bound_of_its_own_is_refused_what_another_one_may_store(world: World) -> None:
    narrow = world.job("first", "narrow")
    other = world.job("second", "other")
    for name in ("first", "second"):
        world.file(name).write_bytes(bytes(MAX_BYTES // 2 + 1))
    await asyncio.gather(world.ended(narrow), world.ended(other))
    assert narrow.refusal is not None
    assert other.refusal is None
    assert [len(await narrow.run_once()), len(await other.run_once())] == [0, 1]


async def test_files_of_one_checkpoint_are_bounded_together(world: World) -> None:
    sync = world.job("job", "other")
    for name in ("first.bin", "second.bin"):
        world.file("job").with_name(name).write_bytes(bytes(MAX_BYTES // 2))
    await world.ended(sync)
    assert sync.refusal is not None
    assert await sync.run_once() == []


async def test_checkpoint_of_the_bound_is_stored_and_ends_an_earlier_refusal(world: World) -> None:
    sync = world.job("job", "other")
    world.file("job").write_bytes(bytes(MAX_BYTES + 1))
    await sync.run_once()
    assert sync.refusal is not None
    world.file("job").write_bytes(bytes(MAX_BYTES))
    await world.ended(sync)
    [report] = await sync.run_once()
    assert report.size_bytes == MAX_BYTES
    assert sync.refusal is None
