"""`CheckpointSync` with a real directory and a store in a directory."""

import asyncio
import hashlib
from pathlib import Path

from policy.training.store_keys import store_key
from tests.trainer.edges.checkpoints.job import JOB_ID, Job, restore_of
from trainer.edges.checkpoints import Store


def stored_files(tmp_path: Path) -> list[str]:
    root = tmp_path / "store"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "%" not in path.name)


async def test_no_checkpoint_is_reported_while_the_directory_is_empty(job: Job) -> None:
    assert await job.look() == []
    assert not job.sync.is_syncing


async def test_checkpoint_is_synced_once_it_was_unchanged_for_two_seconds(job: Job, store: Store) -> None:
    job.write("step-1", b"abc")
    assert await job.look() == []
    assert await job.look(1.9) == []
    [syncing] = await job.look(0.2)
    assert syncing.files is None
    assert job.sync.is_syncing

    [report] = await job.synced()

    assert (report.name, report.checkpoint_type, report.size_bytes) == ("step-1", "FULL", 3)
    assert report.files is not None
    [file] = report.files
    assert (file.path, file.size_bytes, file.sha256) == ("model.bin", 3, hashlib.sha256(b"abc").hexdigest())
    assert b"".join(store.read(store_key(report.location, "model.bin"))) == b"abc"
    assert report.location.startswith(f"{JOB_ID}/step-1/")


async def test_change_starts_the_two_seconds_again(job: Job) -> None:
    job.write("step-1", b"abc")
    await job.look()
    job.write("step-1", b"more", "second.bin")
    assert await job.look(2.5) == []
    assert len(await job.look(2.5)) == 1


async def test_finish_sends_what_stays_unchanged(job: Job, tmp_path: Path) -> None:
    job.write("step-1")
    job.write("step-2")
    finishing = asyncio.create_task(job.sync.finish())
    while not finishing.done():
        await asyncio.sleep(0.01)
        job.clock.now += 0.5
    reports = await job.look()
    assert [report.name for report in reports if report.files] == ["step-1", "step-2"]
    assert len(stored_files(tmp_path)) == 2
    assert not job.sync.is_syncing


async def test_restored_checkpoint_is_not_reported_until_its_content_changes(job: Job, store: Store) -> None:
    job.write("step-1", b"abc")
    [report] = await job.synced()
    job.delete("step-1")
    again = Job(job.directory.parent.parent / "again" / "checkpoints", store)
    again.sync = type(again.sync)(again.directory, store, "job2", again.clock)

    await again.sync.restore(restore_of(report))

    assert (again.directory / "step-1" / "model.bin").read_bytes() == b"abc"
    for _ in range(5):
        assert await again.look(1.0) == []
        assert not again.busy
    again.write("step-1", b"changed")
    [changed] = await again.synced()
    assert changed.location.startswith("job2/step-1/")


async def test_remove_leaves_nothing_of_the_job_and_all_of_others(job: Job, store: Store, tmp_path: Path) -> None:
    store.write("job10/other/file", 1, iter([b"x"]))
    job.write("step-1")
    await job.synced()
    await job.sync.remove()
    assert stored_files(tmp_path) == ["job10/other/file"]
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["job10"]
