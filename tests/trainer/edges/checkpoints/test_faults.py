"""Checkpoints when the store, the disk, the trainer or the job misbehave."""

import asyncio
import itertools
import logging
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.training.reports import CheckpointFile, Restore
from policy.training.store_keys import store_key
from runtime.object_store import ObjectStore, StoreError
from tests.trainer.edges.checkpoints.job import JOB_ID, Job, restore_of
from tests.trainer.edges.checkpoints.object_filesystem import Objects, object_store
from trainer.backend import BackendAwayError, RestoreError
from trainer.edges.checkpoints import Store
from trainer.edges.checkpoints.directory import CheckpointSnapshot

MIB = 1024 * 1024


@pytest.fixture
def objects_and_store() -> tuple[Objects, Store]:
    url, objects = object_store()
    return objects, Store(url)


@pytest.fixture
def objects(objects_and_store: tuple[Objects, Store]) -> Objects:
    return objects_and_store[0]


@pytest.fixture
def job(tmp_path: Path, objects_and_store: tuple[Objects, Store]) -> Job:
    return Job(tmp_path / "checkpoints", objects_and_store[1])


def written(objects: Objects) -> list[str]:
    return [key.rsplit("/", 1)[1] for key in objects.keys]


async def test_a_store_without_directories_holds_and_returns_a_checkpoint(job: Job, objects: Objects) -> None:
    content = os.urandom(9 * MIB)
    job.write("step-1", content, "sub/model *?[a]#%.bin")
    job.write("step-1", b"", "empty")
    [report] = await job.synced()
    assert objects.largest_part <= 9 * MIB
    job.delete("step-1")
    await job.sync.restore(restore_of(report))
    assert (job.directory / "step-1/sub/model *?[a]#%.bin").read_bytes() == content
    await job.sync.remove()
    assert objects.contents == {}


async def test_a_store_that_is_away_delays_a_checkpoint_and_is_logged_once(
    job: Job, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    await job.look()
    objects.is_away = True
    job.write("step-1")
    for _ in range(40):
        reports = await job.look(1.0)
        await asyncio.sleep(0.002)
    assert [report.files for report in reports] == [None]
    assert job.sync.is_syncing
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot connect" in line
    assert "TOLLGATE_CHECKPOINT_STORE" in line
    assert "pa55word" not in line
    assert "5ecret" not in line
    objects.is_away = False
    await job.synced()


async def test_pauses_between_tries_grow(job: Job, objects: Objects) -> None:
    await job.look()
    objects.is_away = True
    job.write("step-1")
    await job.look()
    tries: list[float] = []
    real = job.sync._transfer.send

    def counted(snapshot: CheckpointSnapshot) -> tuple[CheckpointFile, ...]:
        tries.append(job.clock.now)
        return real(snapshot)

    job.sync._transfer.send = counted  # type: ignore[method-assign]  # counts the calls
    for _ in range(300):
        await job.look(1.0)
        while job.sync._worker is not None and not job.sync._worker.done():
            await asyncio.sleep(0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses == sorted(pauses)
    assert 60 <= pauses[-1] <= 70


async def test_a_full_store_leaves_the_checkpoint_syncing_until_there_is_room(job: Job, objects: Objects) -> None:
    objects.room_bytes = 1000
    job.write("step-1", b"x" * 2000)
    for _ in range(20):
        reports = await job.look(1.0)
        await asyncio.sleep(0.002)
    assert [report.files for report in reports] == [None]
    objects.room_bytes = None
    await job.synced()


async def test_a_store_that_loses_a_byte_never_has_a_complete_checkpoint(job: Job, objects: Objects) -> None:
    objects.loses_a_byte = True
    job.write("step-1")
    for _ in range(30):
        reports = await job.look(1.0)
        await asyncio.sleep(0.002)
    assert [report.files for report in reports] == [None]
    objects.loses_a_byte = False
    await job.synced()


async def test_a_trainer_that_crashed_sends_only_what_is_missing_or_damaged(job: Job, objects: Objects) -> None:
    for name in ("a", "b", "c"):
        job.write("step-1", name.encode() * 1000, name)
    [report] = await job.synced()
    keys = {key.rsplit("/", 1)[1]: key for key in objects.contents}
    del objects.contents[keys["%manifest"]], objects.contents[keys["c"]]
    objects.contents[keys["b"]] = b"x" * 1000
    objects.keys.clear()
    job.restart()
    assert await job.synced() == [report]
    assert written(objects) == ["b", "c", "%manifest"]
    objects.keys.clear()
    job.restart()
    assert await job.synced() == [report]
    assert written(objects) == []


async def test_new_content_replaces_the_old_in_the_store_after_a_while(job: Job, objects: Objects) -> None:
    job.write("step-1", b"old")
    [old] = await job.synced()
    job.write("step-1", b"new!")
    [new] = await job.until(lambda reports: reports[0].location != old.location)
    assert new.files is not None
    assert any(key.startswith(f"bucket/prefix/{old.location}/") for key in objects.contents)
    await job.until(lambda _: not any(f"/{old.location}/" in key for key in objects.contents))
    assert any(f"/{new.location}/" in key for key in objects.contents)


async def test_a_restored_checkpoint_is_known_after_a_crash_too(job: Job, tmp_path: Path) -> None:
    job.write("step-1", b"abc")
    [report] = await job.synced()
    job.delete("step-1")
    job.restart()
    await job.sync.restore(restore_of(report))
    job.restart()
    for _ in range(10):
        assert await job.look(1.0) == []
        await asyncio.sleep(0.002)
    assert not job.sync.is_syncing
    job.write("step-1", b"abd")
    await job.synced()


async def test_a_file_that_changes_while_it_is_sent_is_not_complete(job: Job, objects: Objects) -> None:
    path = job.write("step-1", b"a" * 1000)
    job.write("step-1", b"b" * 1000, "second.bin")
    real = ObjectStore.write
    changes = iter(["in the middle"])

    def changing(store: ObjectStore, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        real(store, key, size_bytes, pieces)
        if key.endswith("second.bin") and next(changes, None):
            path.write_bytes(b"c" * 1000)  # after it was read

    job.store.write = changing.__get__(job.store)  # type: ignore[method-assign]
    [report] = await job.synced()
    assert b"".join(job.store.read(store_key(report.location, "model.bin"))) == b"c" * 1000


async def test_a_checkpoint_that_is_removed_on_its_way_is_not_reported_any_more(job: Job, objects: Objects) -> None:
    objects.room_bytes = 0
    job.write("step-1")
    await job.until(lambda reports: len(reports) == 1)
    job.delete("step-1")
    await job.until(lambda reports: not reports)
    assert not job.sync.is_syncing


async def test_remove_while_the_store_is_away_says_so(job: Job, objects: Objects) -> None:
    objects.is_away = True
    with pytest.raises(BackendAwayError, match="cannot connect"):
        await job.sync.remove()


async def test_a_damaged_or_lost_checkpoint_is_not_restored(job: Job, objects: Objects) -> None:
    job.write("step-1", b"abc")
    [report] = await job.synced()
    [key] = [key for key in objects.contents if key.endswith("model.bin")]
    objects.contents[key] = b"abd"
    with pytest.raises(RestoreError, match="damaged"):
        await job.sync.restore(restore_of(report))
    del objects.contents[key]
    with pytest.raises(RestoreError, match="not in the checkpoint store"):
        await job.sync.restore(restore_of(report))
    objects.is_away = True
    with pytest.raises(BackendAwayError):
        await job.sync.restore(restore_of(report))


@pytest.mark.parametrize(("name", "path"), [("..", "x"), ("a/../..", "x"), ("a", "../../x"), ("a", "/etc/x")])
async def test_a_restore_never_leaves_the_directory(job: Job, name: str, path: str) -> None:
    with pytest.raises(RestoreError, match="cannot be restored"):
        await job.sync.restore(Restore(name, f"{JOB_ID}/a/v", (CheckpointFile(path, 1, "0" * 64),)))


async def test_a_restore_follows_no_symbolic_link(job: Job, tmp_path: Path) -> None:
    job.write("step-1", b"abc", "sub/model.bin")
    [report] = await job.synced()
    job.delete("step-1")
    (tmp_path / "elsewhere").mkdir()
    (job.directory / "step-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RestoreError):
        await job.sync.restore(restore_of(report))
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_links_and_special_files_are_left_out(job: Job, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    job.write("step-1")
    (job.directory / "step-1" / "link").symlink_to(tmp_path / "secret")
    (job.directory / "step-1" / "sub").symlink_to(tmp_path)
    (job.directory / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(job.directory / "step-1" / "pipe")
    [report] = await job.synced()
    assert report.files is not None
    assert [file.path for file in report.files] == ["model.bin"]


async def test_names_that_cannot_be_stored_leave_their_checkpoint_out(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.write("line\nbreak")
    job.write("good")
    job.write("bad-file", file="a\x07b")
    job.write("long", file=("d" * 200 + "/") * 2 + "f")
    job.write("deep", file="d/" * 40 + "f")
    os.mkdir(os.fsencode(job.directory) + b"/\xff")
    (Path(os.fsdecode(os.fsencode(job.directory) + b"/\xff")) / "f").write_bytes(b"x")
    [report] = await job.synced()
    assert report.name == "good"
    assert len([record for record in caplog.records if "is not stored" in record.getMessage()]) == 5


async def test_a_directory_that_the_job_replaced_by_a_link_is_not_read(job: Job, tmp_path: Path) -> None:
    job.write("step-1")
    real = tmp_path / "elsewhere"
    job.directory.rename(real)
    job.directory.symlink_to(real)
    os.lchown(job.directory, 65534, 65534)
    assert await job.look() == []
    assert await job.look(5.0) == []


async def test_large_files_do_not_fill_memory(tmp_path: Path) -> None:
    job = Job(tmp_path / "checkpoints", Store((tmp_path / "store").as_uri()))
    os.truncate(job.write("step-1", b""), 100 * MIB)
    tracemalloc.start()
    try:
        [report] = await job.synced()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.size_bytes == 100 * MIB
    assert peak < 16 * MIB


async def test_a_cancelled_look_leaves_the_event_loop_and_later_looks_alone(job: Job) -> None:
    job.write("step-1")
    for _ in range(10):
        look = asyncio.create_task(job.look(1.0))
        await asyncio.sleep(0)
        look.cancel()
        await asyncio.gather(look, return_exceptions=True)
    await job.synced()


async def test_a_store_that_hangs_holds_up_neither_looks_nor_the_end_of_the_process(job: Job) -> None:
    others = threading.enumerate()  # of tests before
    await job.look()
    hang = threading.Event()

    def hanging(key: str) -> int | None:
        hang.wait(30)
        return None

    job.store.size = hanging  # type: ignore[method-assign]
    job.write("step-1")
    for _ in range(5):
        reports = await job.look(1.0)
    assert [report.files for report in reports] == [None]
    assert all(thread.daemon for thread in threading.enumerate() if thread not in others)
    hang.set()


async def test_a_marked_checkpoint_is_complete_at_once_unless_a_file_is_newer(job: Job) -> None:
    path = job.write("step-1", b"abc")
    job.write("step-1", b"", ".complete")
    await asyncio.sleep(0.15)  # file times are that coarse
    assert [report.name for report in await job.look()] == ["step-1"]
    await job.synced()
    await asyncio.sleep(0.02)
    path.write_bytes(b"newer than the marker")
    await asyncio.sleep(0.15)
    [report] = await job.look()
    assert report.size_bytes == 3


def test_errors_of_local_files_are_not_the_stores(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise PermissionError(13, "Permission denied")

    store = ObjectStore(tmp_path.as_uri())
    with pytest.raises(PermissionError):
        store.write("a", 2, pieces())
    with pytest.raises(StoreError):
        store.write("a/b", 1, iter([b"x"]))  # `a` is a file
