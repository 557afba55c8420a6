"""Uploads as S3's clients send them: what is taken, what is refused and leaves nothing, and what jobs hold.

See docs/reference/training.md#uploads.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from control.api.protocol.dependencies import DEPENDENCIES
from control.edges.checkpoint_store import CheckpointStore
from control.edges.sql.training import job_rows
from control.edges.sql.training.tables import training_upload_parts, training_uploads
from control.resources.training import claims, job_states
from control.resources.uploads import removal, uploads
from control.resources.workspaces import set_workspace
from policy.training.reports import JobReport
from policy.training.statuses import Outcome, Phase
from tests.control.api.uploads.conftest import CREDENTIALS, Place
from tests.control.plane import ControlPlane
from tests.control.training import end
from tests.s3_client import S3, Answered, completion, crc32

BODY = bytes(range(256)) * 8192
"""2 MiB: more than one piece."""


async def statuses(place: Place) -> list[str]:
    async with place.plane.store.read() as conn:
        rows = await conn.execute(select(training_uploads.c.status).order_by(training_uploads.c.id))
        return list(rows.scalars())


async def clean_up(place: Place) -> int:
    return await removal.remove_unheld(place.plane.store, CheckpointStore(f"file://{place.directory}"))


async def grow_old(place: Place) -> None:
    async with place.plane.store.write() as tx:
        await tx.conn.execute(update(training_uploads).values(created_at_ms=1))


async def move_on(place: Place, job_id: str) -> None:
    """End a job that was claimed and is to stop."""
    async with place.plane.store.write() as tx:
        job = await job_rows.lock_job(tx, job_id)
        assert job is not None
        report = JobReport(job_id, job.attempt, Phase.ENDED, Outcome.STOPPED)
        await job_rows.update_job(tx, job, job_states.reported(job, report, tx.now_ms))


async def claimed_artifacts(place: Place, job_id: str) -> Any:
    return (await claims.claim(place.plane.store, job_id, 0)).artifacts


async def test_credentials_have_what_clients_read(place: Place) -> None:
    answer = (await place.plane.get(CREDENTIALS)).ok()
    assert answer.keys() == {"s3_bucket", "s3_key", "creds", "endpoint_url", "region_name", "expires_at"}
    assert answer["s3_bucket"] == "training_uploads"
    assert answer["endpoint_url"] == answer["creds"]["endpoint_url"] == str(place.plane.client.make_url("")).rstrip("/")
    assert answer["region_name"] == answer["creds"]["region_name"] == "us-east-1"
    assert answer["creds"].keys() == {
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "region_name")
    }
    assert (await place.plane.get(CREDENTIALS)).ok()["s3_key"] != answer["s3_key"]


async def test_credentials_of_other_kinds_are_not_found(sqlite_place: Place) -> None:
    (await sqlite_place.plane.get("/v1/blobs/credentials/model")).refused(404, "NOT_FOUND")


async def test_credentials_need_the_right_to_train_and_a_store(plane: ControlPlane) -> None:
    (await plane.get(CREDENTIALS)).refused(503, "CHECKPOINT_STORE_UNAVAILABLE")


async def test_workspace_that_may_not_train_uploads_nothing(sqlite_place: Place) -> None:
    client = await sqlite_place.client()
    await set_workspace(sqlite_place.plane.store, "workspace acme", training=False)
    (await sqlite_place.plane.get(CREDENTIALS)).refused(403, "TRAINING_NOT_ENABLED")
    refusal = await client.put(b"abc")
    assert (refusal.status, refusal.code) == (403, "AccessDenied")


async def test_small_upload_is_a_jobs_artifact(place: Place) -> None:
    client = await place.client()
    answer = await client.put(BODY)
    assert answer.status == 200
    assert answer.headers["ETag"] == f'"{hashlib.md5(BODY, usedforsecurity=False).hexdigest()}"'
    job = (await place.create(client)).ok()["training_job"]
    (artifact,) = await claimed_artifacts(place, job["id"])
    (part,) = artifact.parts
    assert (part.size_bytes, part.sha256) == (len(BODY), hashlib.sha256(BODY).hexdigest())
    assert (place.directory / part.store_key).read_bytes() == BODY


async def test_parts_are_in_their_order_whatever_the_order_of_arrival(place: Place) -> None:
    client = await place.client()
    upload_id = (await client.call("POST", "uploads")).member("UploadId")
    etags = dict[int, str]()
    for number, part in ((2, b"second"), (1, b"replaced"), (3, b"not chosen"), (1, b"first")):
        etags[number] = (await client.put(part, f"uploadId={upload_id}&partNumber={number}")).headers["ETag"]
    body = completion(etags[1], etags[2])
    first = await client.call("POST", f"uploadId={upload_id}", body)
    assert (first.status, first.member("Key")) == (200, client.path.rpartition("/")[2])
    again = await client.call("POST", f"uploadId={upload_id}", body)
    assert (again.status, again.text) == (200, first.text)
    assert place.stored == [b"first", b"second"]
    job = (await place.create(client)).ok()["training_job"]
    (artifact,) = await claimed_artifacts(place, job["id"])
    assert [(place.directory / part.store_key).read_bytes() for part in artifact.parts] == [b"first", b"second"]


async def test_chunked_body_with_its_checksum_behind_is_taken(sqlite_place: Place) -> None:
    client = await sqlite_place.client()
    assert (await client.put_chunked(BODY)).status == 200
    assert sqlite_place.stored == [BODY]
    refusal = await (await sqlite_place.client()).put_chunked(BODY, trailer=crc32(b"other"))
    assert (refusal.status, refusal.code) == (400, "BadDigest")
    assert sqlite_place.stored == [BODY]


async def test_empty_upload_is_taken(sqlite_place: Place) -> None:
    client = await sqlite_place.client()
    assert (await client.put(b"")).status == 200
    (await sqlite_place.create(client)).ok()


REFUSED: dict[str, tuple[Callable[[S3], Awaitable[Answered]], int, str]] = {
    "no signature": (lambda s3: s3.call("PUT", unsigned={"Authorization": "Bearer x"}), 400, "InvalidRequest"),
    "another path": (lambda s3: s3.put(b"a", path="/training_uploads/upload_other.tar"), 403, "AccessDenied"),
    "another secret": (
        lambda s3: s3.put(b"a", keys=replace(s3.keys, aws_secret_access_key="x")),
        *(403, "SignatureDoesNotMatch"),
    ),
    "another access key": (
        lambda s3: s3.put(b"a", keys=replace(s3.keys, aws_access_key_id="x")),
        *(403, "InvalidAccessKeyId"),
    ),
    "a forged token": (
        lambda s3: s3.put(b"a", keys=replace(s3.keys, aws_session_token=s3.keys.aws_session_token[:-4] + "AAAA")),
        *(400, "InvalidToken"),
    ),
    "an old request": (lambda s3: s3.put(b"a", date="20200101T000000Z"), 403, "RequestTimeTooSkewed"),
    "another digest": (
        lambda s3: s3.put(b"a", headers={"x-amz-content-sha256": "0" * 64}),
        *(400, "XAmzContentSHA256Mismatch"),
    ),
    "another checksum": (
        lambda s3: s3.put(b"a", headers={"x-amz-checksum-crc32": crc32(b"b")}),
        *(400, "BadDigest"),
    ),
    "an unknown checksum": (
        lambda s3: s3.call("PUT", "", b"a", headers={"x-amz-checksum-crc64nvme": "AAAA"}),
        *(501, "NotImplemented"),
    ),
    "a signed stream": (
        lambda s3: s3.put(b"a", headers={"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}),
        *(501, "NotImplemented"),
    ),
    "too much": (
        lambda s3: s3.call("PUT", "", b"", unsigned={"Content-Length": str(5 * 1024**3 + 1)}),
        *(400, "EntityTooLarge"),
    ),
    "a copy": (lambda s3: s3.call("PUT", headers={"x-amz-copy-source": "/a/b"}), 501, "NotImplemented"),
    "an unknown call": (lambda s3: s3.call("PUT", "acl"), 501, "NotImplemented"),
    "a read": (lambda s3: s3.call("GET"), 501, "NotImplemented"),
    "an unknown upload": (lambda s3: s3.put(b"a", "uploadId=up_x&partNumber=1"), 404, "NoSuchUpload"),
    "a part's number": (lambda s3: s3.put(b"a", "uploadId=up_x&partNumber=0"), 400, "InvalidArgument"),
    "no such upload to complete": (
        lambda s3: s3.call("POST", "uploadId=up_x", completion("a")),
        *(404, "NoSuchUpload"),
    ),
    "malformed xml": (lambda s3: s3.call("POST", "uploadId=up_x", b"<a>"), 400, "MalformedXML"),
    "no such upload to abort": (lambda s3: s3.call("DELETE", "uploadId=up_x"), 404, "NoSuchUpload"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_refused_request_leaves_nothing(sqlite_place: Place, kind: str) -> None:
    call, status, code = REFUSED[kind]
    refusal = await call(await sqlite_place.client())
    assert (refusal.status, refusal.code) == (status, code), refusal.text
    assert refusal.headers["Content-Type"].startswith("application/xml")
    assert sqlite_place.stored == []
    assert await statuses(sqlite_place) == []


async def test_keys_expire(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.resources.uploads.grants.VALID_MS", -1)
    refusal = await (await sqlite_place.client()).put(b"a")
    assert (refusal.status, refusal.code) == (400, "ExpiredToken")


async def test_client_whose_clock_is_a_little_wrong_is_served(sqlite_place: Place) -> None:
    date = datetime.now(UTC) + timedelta(minutes=14)
    assert (await (await sqlite_place.client()).put(b"a", date=f"{date:%Y%m%dT%H%M%SZ}")).status == 200


async def test_workspaces_see_only_their_own_uploads(place: Place) -> None:
    other = await place.plane.another_workspace()
    await set_workspace(place.plane.store, "other", training=True)
    theirs = await place.client(key=other["api_key"])
    own = await place.client()
    upload_id = (await theirs.call("POST", "uploads")).member("UploadId")
    assert (await own.put(b"a", f"uploadId={upload_id}&partNumber=1")).code == "NoSuchUpload"
    assert (await own.call("DELETE", f"uploadId={upload_id}")).code == "NoSuchUpload"
    assert (await theirs.put(b"a")).status == 200
    (await place.create(theirs)).refused(400, field="training_job.runtime.artifacts.0.s3_key")


async def test_job_names_only_completed_uploads(place: Place) -> None:
    complete, unknown, begun = [await place.client() for _ in range(3)]
    assert (await complete.put(b"a")).status == 200
    await begun.call("POST", "uploads")
    (await place.create(complete, unknown)).refused(400, field="training_job.runtime.artifacts.1.s3_key")
    (await place.create(begun)).refused(400, field="training_job.runtime.artifacts.0.s3_key")
    complete.path = complete.path.replace("training_uploads", "elsewhere")
    (await place.create(complete)).refused(400, field="training_job.runtime.artifacts.0.s3_bucket")


async def test_upload_that_a_job_holds_is_not_replaced(place: Place) -> None:
    client = await place.client()
    for body in (b"first", b"second"):
        assert (await client.put(body)).status == 200
    assert place.stored == [b"second"]
    (await place.create(client)).ok()
    refusal = await client.put(b"third")
    assert (refusal.status, refusal.code) == (409, "OperationAborted")
    assert place.stored == [b"second"]


async def test_aborted_upload_leaves_the_store_at_once(place: Place) -> None:
    client = await place.client()
    upload_id = (await client.call("POST", "uploads")).member("UploadId")
    await client.put(BODY, f"uploadId={upload_id}&partNumber=1")
    assert (await client.call("DELETE", f"uploadId={upload_id}")).status == 204
    assert place.stored == []
    assert await statuses(place) == []


async def test_uploads_go_after_a_day_unless_a_job_holds_them(place: Place) -> None:
    free_client, job_client = await place.client(), await place.client()
    await free_client.put(b"unheld")
    await job_client.multipart(b"held, 1", b"held, 2..")
    job = (await place.create(job_client)).ok()["training_job"]
    assert await clean_up(place) == 0
    await grow_old(place)
    assert await clean_up(place) == 1
    assert place.stored == [b"held, 1", b"held, 2.."]

    path = f"/v1/training_projects/{place.project}/jobs/{job['id']}"
    again = (await place.plane.post(f"{path}/recreate")).ok()["training_job"]
    await end(place.plane.store, job["id"])
    (await place.plane.delete(path)).ok()
    assert await clean_up(place) == 0
    assert len(await claimed_artifacts(place, again["id"])) == 1
    (await place.plane.post(f"/v1/training_projects/{place.project}/jobs/{again['id']}/stop")).ok()
    await move_on(place, again["id"])
    (await place.plane.delete(f"/v1/training_projects/{place.project}/jobs/{again['id']}")).ok()
    assert await clean_up(place) == 1
    assert place.stored == []


async def test_store_that_fails_is_an_outage_and_is_cleaned_up_later(sqlite_place: Place, tmp_path: Path) -> None:
    client = await sqlite_place.client()
    sqlite_place.directory.parent.mkdir(exist_ok=True)
    sqlite_place.directory.write_text("no directory")
    refusal = await client.put(b"a")
    assert (refusal.status, refusal.code) == (503, "ServiceUnavailable")
    sqlite_place.directory.unlink()
    await clean_up(sqlite_place)
    assert await statuses(sqlite_place) == []


async def test_workspace_has_so_many_uploads_that_no_job_holds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_UNHELD", 1)
    monkeypatch.setattr(uploads, "MAX_UNHELD_BYTES", 5)
    first = await place.client()
    assert (await first.put(b"abcdef")).code == "QuotaExceeded"
    assert (await first.put(b"abc")).status == 200
    second = await place.client()
    assert (await second.put(b"a")).code == "QuotaExceeded"
    (await place.create(first)).ok()
    assert (await second.put(b"a")).status == 200


async def test_parts_together_have_a_bound(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_ARTIFACT_BYTES", 5)
    client = await sqlite_place.client()
    upload_id = (await client.call("POST", "uploads")).member("UploadId")
    assert (await client.put(b"abc", f"uploadId={upload_id}&partNumber=1")).status == 200
    assert (await client.put(b"abc", f"uploadId={upload_id}&partNumber=2")).code == "EntityTooLarge"
    assert (await client.put(b"abcd", f"uploadId={upload_id}&partNumber=1")).status == 200


async def test_workspace_has_a_share_of_the_requests(sqlite_place: Place) -> None:
    client = await sqlite_place.client()
    app = sqlite_place.plane.client.app
    assert app is not None
    places = app[DEPENDENCIES].uploads
    for _ in range(47):
        places.acquire(sqlite_place.plane.workspace_id)
    assert (await client.put(b"a")).status == 200
    places.acquire(sqlite_place.plane.workspace_id)
    refusal = await client.put(b"a")
    assert (refusal.status, refusal.code) == (503, "SlowDown")


async def test_a_job_gives_back_what_was_uploaded_for_it(place: Place) -> None:
    client = await place.client()
    await client.multipart(BODY, b"the end")
    job = (await place.create(client)).ok()["training_job"]
    path = f"/v1/training_projects/{place.project}/jobs/{job['id']}"
    (url,) = (await place.plane.get(f"{path}/download")).ok()["artifact_presigned_urls"]
    async with place.plane.client.session.get(url) as answer:
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert await answer.read() == BODY + b"the end"
    async with place.plane.client.session.get(url[:-4] + "AAAA") as answer:
        assert answer.status == 404
    await end(place.plane.store, job["id"])
    (await place.plane.delete(path)).ok()
    async with place.plane.client.session.get(url) as answer:
        assert answer.status == 404


async def test_links_expire(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await sqlite_place.client()
    await client.put(b"a")
    job = (await sqlite_place.create(client)).ok()["training_job"]
    monkeypatch.setattr("control.resources.uploads.downloads.VALID_MS", -1)
    path = f"/v1/training_projects/{sqlite_place.project}/jobs/{job['id']}/download"
    (url,) = (await sqlite_place.plane.get(path)).ok()["artifact_presigned_urls"]
    async with sqlite_place.plane.client.session.get(url) as answer:
        assert answer.status == 410


async def test_job_without_artifacts_has_nothing_to_download(sqlite_place: Place) -> None:
    job = (await sqlite_place.create()).ok()["training_job"]
    path = f"/v1/training_projects/{sqlite_place.project}/jobs/{job['id']}/download"
    assert "artifacts" in (await sqlite_place.plane.get(path)).refused(404)["error"]


async def test_parts_that_do_not_arrive_are_forgotten(sqlite_place: Place) -> None:
    client = await sqlite_place.client()
    upload_id = (await client.call("POST", "uploads")).member("UploadId")
    refusal = await client.put(b"a", f"uploadId={upload_id}&partNumber=1", headers={"x-amz-checksum-crc32": "AAAA"})
    assert refusal.code == "BadDigest"
    async with sqlite_place.plane.store.read() as conn:
        assert (await conn.execute(select(training_upload_parts))).all() == []
    wrong = await client.call("POST", f"uploadId={upload_id}", completion("a"))
    assert (wrong.status, wrong.code) == (400, "InvalidPart")
