"""Checkpoints of training jobs as trainers report and workspaces read them, on both databases; downloads on SQLite.

See docs/reference/training.md#checkpoints.
"""

import base64
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from control.edges.sql.training import job_rows
from control.edges.sql.training.tables import training_checkpoints
from control.errors import CheckpointFileNotFoundError
from control.resources.training.download_links import Link, LinkSealer
from control.resources.training.errors import LinkExpiredError
from policy.training.reports import CheckpointFile, CheckpointReport
from policy.training.statuses import RUNNING
from policy.training.store_keys import location, store_key
from runtime.object_store import ObjectStore
from tests.control.plane import SECRET_KEYS, ControlPlane, Json, running_plane
from tests.control.trainer import PROJECT, Trainer, add_job, change, stored

JOB = f"/v1/training_projects/{PROJECT}/jobs/tj_1"
FIELDS = {
    *("id", "checkpoint_id", "created_at", "checkpoint_type", "base_model", "lora_adapter_config", "size_bytes"),
    *("training_job_id", "sync_status"),
}
CONTENT = bytes(range(256)) * 8192
"""2 MiB: more than one piece."""


def file(path: str = "model.bin", content: bytes = b"abc") -> CheckpointFile:
    return CheckpointFile(path, len(content), hashlib.sha256(content).hexdigest())


def checkpoint(name: str = "step-1", version: str = "v1", job_id: str = "tj_1", **more: Any) -> CheckpointReport:
    entry = CheckpointReport(name, location(job_id, name, version), 1_700_000_000_000, "FULL", None, None, 3)
    return replace(entry, **more)


def synced(name: str = "step-1", version: str = "v1", *files: CheckpointFile, **more: Any) -> CheckpointReport:
    return checkpoint(name, version, files=files or (file(),), **more)


async def report(plane: ControlPlane, *reports: CheckpointReport, attempt: int = 1, job_id: str = "tj_1") -> Any:
    body = {"attempt": attempt, "checkpoints": [one.to_wire() for one in reports]}
    return await Trainer(plane).post(f"jobs/{job_id}/checkpoints", body)


async def listed(plane: ControlPlane) -> list[Json]:
    entry: list[Json] = (await plane.get(f"{JOB}/checkpoints")).ok()["checkpoints"]
    return entry


@pytest.fixture
async def running(plane: ControlPlane) -> ControlPlane:
    await add_job(plane, status=RUNNING, attempt=1)
    return plane


@pytest.fixture
async def sqlite_running(sqlite_plane: ControlPlane) -> ControlPlane:
    await add_job(sqlite_plane, status=RUNNING, attempt=1)
    return sqlite_plane


async def test_a_job_without_checkpoints_has_an_empty_list_and_no_sync_status(running: ControlPlane) -> None:
    (await report(running)).ok()
    answer = (await running.get(f"{JOB}/checkpoints")).ok()
    assert answer.keys() == {"training_job", "checkpoints"}
    assert answer["checkpoints"] == []
    assert answer["training_job"]["id"] == "tj_1"
    assert answer["training_job"]["checkpoint_sync_status"] is None


async def test_a_checkpoint_has_the_documented_fields_from_syncing_to_complete(running: ControlPlane) -> None:
    (await report(running, checkpoint())).ok()
    [entry] = await listed(running)
    assert entry.keys() == FIELDS
    assert (entry["sync_status"], entry["training_job_id"], entry["checkpoint_type"]) == ("SYNCING", "tj_1", "FULL")
    assert (entry["base_model"], entry["lora_adapter_config"], entry["size_bytes"]) == (None, None, 3)
    assert entry["created_at"] == "2023-11-14T22:13:20.000Z"
    assert (await stored(running.store)).checkpoint_sync_status == "SYNCING"

    for _ in range(2):
        (await report(running, synced())).ok()

    assert await listed(running) == [entry | {"sync_status": "COMPLETE"}]


async def test_a_first_report_that_is_complete_already_is_completed(running: ControlPlane) -> None:
    (await report(running, synced())).ok()
    assert (await stored(running.store)).checkpoint_sync_status == "COMPLETED"


async def test_lora_adapters_show_their_configuration(running: ControlPlane) -> None:
    config = {"r": 8, "base_model_name_or_path": "org/base", "é\u0000": [1.5, None]}
    lora = synced(checkpoint_type="LORA", base_model="org/base", lora_adapter_config=config)
    (await report(running, lora)).ok()
    [entry] = await listed(running)
    assert (entry["checkpoint_type"], entry["base_model"], entry["lora_adapter_config"]) == ("LORA", "org/base", config)


async def test_a_content_in_the_store_stays_until_the_next_one_is_there(running: ControlPlane) -> None:
    (await report(running, synced())).ok()
    [first] = await listed(running)
    (await report(running, checkpoint(version="v2"))).ok()
    assert await listed(running) == [first]
    (await report(running, synced(version="v2", size_bytes=4))).ok()
    assert await listed(running) == [first | {"size_bytes": 4}]


async def test_a_checkpoint_that_vanishes_on_its_way_is_forgotten_and_one_in_the_store_is_not(
    running: ControlPlane,
) -> None:
    (await report(running, synced("kept"), checkpoint("gone"))).ok()
    (await report(running)).ok()
    assert [one["sync_status"] for one in await listed(running)] == ["COMPLETE"]


async def test_reports_of_another_attempt_change_nothing(running: ControlPlane) -> None:
    (await report(running, synced(), attempt=2)).ok()
    assert await listed(running) == []


async def test_reports_of_unknown_and_deleted_jobs_are_refused(running: ControlPlane) -> None:
    (await report(running, synced(job_id="tj_9"), job_id="tj_9")).refused(404)
    await change(running.store, is_deleted=True)
    (await report(running, synced())).refused(404)


MALFORMED: tuple[tuple[Json, str], ...] = (
    ({"location": "tj_2/step-1/v1"}, "location"),
    ({"location": "tj_1/../v1"}, "location"),
    ({"location": "tj_1/a"}, "location"),
    ({"name": "../x"}, "name"),
    ({"checkpoint_type": "HALF"}, "checkpoint_type"),
    ({"created_at_ms": 10**15}, "created_at_ms"),
    ({"size_bytes": 2**53}, "size_bytes"),
    ({"base_model": "a\0"}, "base_model"),
    ({"files": ()}, "files"),
    ({"files": (file("../../etc/passwd"),)}, "files.path"),
    ({"files": (file(), file())}, "files"),
    ({"files": (CheckpointFile("a", 1, "no digest"),)}, "files.sha256"),
)


async def test_malformed_reports_are_400_and_name_the_member(sqlite_running: ControlPlane) -> None:
    for changes, member in MALFORMED:
        problem = (await report(sqlite_running, replace(synced(), **changes))).refused(400)
        assert member in problem["error"]
    assert await listed(sqlite_running) == []


async def test_checkpoints_of_another_workspace_are_404(sqlite_running: ControlPlane) -> None:
    (await report(sqlite_running, synced())).ok()
    [entry] = await listed(sqlite_running)
    other = await sqlite_running.another_workspace()
    for path in (f"{JOB}/checkpoints", f"{JOB}/checkpoints/{entry['checkpoint_id']}/files"):
        (await sqlite_running.get(path, key=other["api_key"])).refused(404)
    (await sqlite_running.get(f"{JOB}/checkpoints/ckpt_none/files")).refused(404)
    await add_job(sqlite_running, id="tj_2")
    (await sqlite_running.get(f"{JOB[:-1]}2/checkpoints/{entry['checkpoint_id']}/files")).refused(404)


async def test_files_of_a_checkpoint_on_its_way_are_409(sqlite_running: ControlPlane) -> None:
    (await report(sqlite_running, checkpoint())).ok()
    [entry] = await listed(sqlite_running)
    (await sqlite_running.get(f"{JOB}/checkpoints/{entry['checkpoint_id']}/files")).refused(409)


async def test_deleting_a_job_row_deletes_its_checkpoints(running: ControlPlane) -> None:
    (await report(running, synced())).ok()
    async with running.store.write() as tx:
        job = await job_rows.lock_job(tx, "tj_1")
        assert job is not None
        await job_rows.delete_job(tx, job)
    async with running.store.read() as conn:
        assert (await conn.execute(select(training_checkpoints.c.id))).all() == []


# --- downloads ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def downloads(sqlite_url: str, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A control plane with a store that has one checkpoint of two files."""
    url = (tmp_path / "store").as_uri()
    async with running_plane(sqlite_url, checkpoint_store=url) as plane:
        await add_job(plane, status=RUNNING, attempt=1)
        files = (file("model.bin", CONTENT), file('sub/ü ".html', b""))
        entry = synced("step-1", "v1", *files)
        for one, content in zip(files, (CONTENT, b""), strict=True):
            ObjectStore(url).write(store_key(entry.location, one.path), len(content), iter([content]))
        (await report(plane, entry)).ok()
        yield plane


async def files_of(plane: ControlPlane) -> list[Json]:
    [entry] = await listed(plane)
    files: list[Json] = (await plane.get(f"{JOB}/checkpoints/{entry['checkpoint_id']}/files")).ok()["files"]
    return files


def path_of(file: Json) -> str:
    return f"/{file['url'].split('/', 3)[3]}"


async def test_files_open_without_credentials(downloads: ControlPlane) -> None:
    model, page = await files_of(downloads)
    assert model.keys() == {"path", "size_bytes", "sha256", "url", "expires_at"}
    assert model["url"].startswith(f"http://127.0.0.1:{downloads.client.port}/training/files/")
    async with downloads.client.get(path_of(model)) as answer:
        content = await answer.read()
        assert (answer.status, content) == (200, CONTENT)
        assert answer.headers["ETag"] == f'"{model["sha256"]}"'
        assert answer.headers["Content-Length"] == str(model["size_bytes"])
    async with downloads.client.get(path_of(page)) as answer:
        assert (answer.status, await answer.read(), answer.content_type) == (200, b"", "application/octet-stream")
        assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''%C3%BC%20%22.html"


RANGES: tuple[tuple[str, int, slice | None], ...] = (
    ("bytes=10-19", 206, slice(10, 20)),
    ("bytes=2000000-", 206, slice(2_000_000, None)),
    ("bytes=-5", 206, slice(-5, None)),
    ("bytes=0-", 200, slice(None)),
    ("bytes=0-1,5-6", 200, slice(None)),
    ("lines=1-2", 200, slice(None)),
    ("bytes=2097152-", 416, None),
)


async def test_ranges_of_a_file_are_served(downloads: ControlPlane) -> None:
    [model, _] = await files_of(downloads)
    for header, status, part in RANGES:
        async with downloads.client.get(path_of(model), headers={"Range": header}) as answer:
            assert answer.status == status, header
            if part is not None:
                assert await answer.read() == CONTENT[part]
    async with downloads.client.head(path_of(model)) as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, str(len(CONTENT)))


async def test_a_range_of_another_content_gets_the_whole_file(downloads: ControlPlane) -> None:
    [model, _] = await files_of(downloads)
    headers = {"Range": "bytes=0-1", "If-Range": '"another"'}
    async with downloads.client.get(path_of(model), headers=headers) as answer:
        assert (answer.status, await answer.read()) == (200, CONTENT)


async def test_link_tells_neither_the_workspace_nor_where_the_file_is(downloads: ControlPlane) -> None:
    [model, _] = await files_of(downloads)
    token = path_of(model).rsplit("/", 1)[1]
    carried = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)) + token.encode()
    for text in (downloads.workspace_id, "step-1", "model.bin"):
        assert text.encode() not in carried


async def test_links_that_were_changed_are_404_and_expired_ones_410(downloads: ControlPlane) -> None:
    [model, _] = await files_of(downloads)
    token = path_of(model).rsplit("/", 1)[1]
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    for place in (0, 31, 32, len(raw) - 1):
        changed = bytearray(raw)
        changed[place] ^= 1
        (await downloads.get(f"/training/files/{base64.urlsafe_b64encode(changed).decode()}")).refused(404)
    for junk in ("x", "%00", "a" * 5000, "%2e%2e%2fx", "ü"):
        (await downloads.get(f"/training/files/{junk}")).refused(404)
    expired = LinkSealer(SECRET_KEYS).seal(Link(downloads.workspace_id, "ckpt_1", "tj_1/step-1/v1", "model.bin", 1))
    (await downloads.get(f"/training/files/{expired}")).refused(410, "LINK_EXPIRED")


async def test_links_end_with_the_content_the_job_and_the_stored_file(downloads: ControlPlane, tmp_path: Path) -> None:
    [model, page] = await files_of(downloads)
    for stored_file in (tmp_path / "store").rglob("model.bin"):
        stored_file.write_bytes(b"cut off")
    (await downloads.get(path_of(model))).refused(404)
    (await report(downloads, synced("step-1", "v2"))).ok()
    (await downloads.get(path_of(page))).refused(404)
    [model] = await files_of(downloads)
    await change(downloads.store, is_deleted=True)
    (await downloads.get(path_of(model))).refused(404)


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (None, "TOLLGATE_CHECKPOINT_STORE is not set"),
        ("nosuch://user:pa55word@host/x?token=5ecret", "Protocol not known: nosuch"),
    ],
)
async def test_a_store_that_is_away_is_503_with_the_reason(sqlite_url: str, store: str | None, reason: str) -> None:
    async with running_plane(sqlite_url, checkpoint_store=store) as plane:
        await add_job(plane, status=RUNNING, attempt=1)
        (await report(plane, synced())).ok()
        [model] = await files_of(plane)
        problem = (await plane.get(path_of(model))).refused(503, "CHECKPOINT_STORE_UNAVAILABLE")
    assert reason in problem["error"]
    assert "pa55word" not in problem["error"]
    assert "5ecret" not in problem["error"]


def test_a_link_opens_after_the_keys_were_rotated() -> None:
    old = b"o" * 32
    new = b"n" * 32
    link = Link("ws", "c", "l", "ü", 10)
    assert LinkSealer((new, old)).open(LinkSealer((old,)).seal(link), 9) == link
    with pytest.raises(LinkExpiredError):
        LinkSealer((old,)).open(LinkSealer((old,)).seal(link), 10)
    with pytest.raises(CheckpointFileNotFoundError):
        LinkSealer((new,)).open(LinkSealer((old,)).seal(link), 9)


async def test_the_files_of_all_checkpoints_are_paged_in_one_order(running: ControlPlane) -> None:
    parts = [synced(f"step-{n}", "v1", *(file(f"f{m}") for m in range(3)), created_at_ms=n) for n in (1, 2, 3)]
    (await report(running, *parts, checkpoint("step-4", created_at_ms=4))).ok()
    ids = [entry["checkpoint_id"] for entry in await listed(running)]
    names = [f"{id}/f{m}" for id in ids[:3] for m in range(3)]
    everything = (await running.get(f"{JOB}/checkpoint_files")).ok()
    assert [one["relative_file_name"] for one in everything["presigned_urls"]] == names
    assert (everything["next_page_token"], everything["total_count"]) == (None, 9)
    for size in (1, 2, 4, 9):
        token: str | None = "0"
        read = list[str]()
        while token is not None:
            page = (await running.get(f"{JOB}/checkpoint_files?page_size={size}&page_token={token}")).ok()
            read += [one["relative_file_name"] for one in page["presigned_urls"]]
            token = None if page["next_page_token"] is None else str(page["next_page_token"])
        assert read == names
    beyond = (await running.get(f"{JOB}/checkpoint_files?page_token=9")).ok()
    assert beyond == {"presigned_urls": [], "next_page_token": None, "total_count": 9}


async def test_the_files_of_a_job_are_links_that_open(downloads: ControlPlane) -> None:
    listing = (await downloads.get(f"{JOB}/checkpoint_files")).ok()
    model = listing["presigned_urls"][0]
    assert model.keys() == {"url", "relative_file_name", "node_rank", "size_bytes", "last_modified"}
    assert model["relative_file_name"].endswith("/model.bin")
    assert (model["node_rank"], model["size_bytes"]) == (0, len(CONTENT))
    assert model["last_modified"] == "2023-11-14T22:13:20.000Z"
    answer = await downloads.client.get(model["url"].partition(str(downloads.client.port))[2])
    assert await answer.read() == CONTENT


@pytest.mark.parametrize("query", ["page_size=0", "page_size=1001", "page_token=-1", "page_token=x", "limit=1"])
async def test_a_bad_page_of_files_names_the_field(sqlite_running: ControlPlane, query: str) -> None:
    problem = (await sqlite_running.get(f"{JOB}/checkpoint_files?{query}")).refused(400)
    assert [detail["field"] for detail in problem["details"]] == [query.partition("=")[0]]


async def test_files_of_others_are_not_listed(sqlite_running: ControlPlane) -> None:
    key = (await sqlite_running.another_workspace())["api_key"]
    (await sqlite_running.get(f"{JOB}/checkpoint_files", key=key)).refused(404)
    assert (await sqlite_running.get(f"{JOB}/checkpoint_files")).ok()["total_count"] == 0
