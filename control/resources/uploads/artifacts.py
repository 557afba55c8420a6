"""The uploads that a job is created with: they must be there, and stay for as long as the job does.

See docs/reference/training.md#uploads.
"""

from collections.abc import Sequence

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training import upload_rows
from control.errors import InvalidFieldError
from control.records.training import UploadRecord
from policy.training.artifacts import Artifact, ArtifactPart
from policy.training.store_keys import part_key


async def find_artifacts(tx: WriteTx, workspace_id: str, keys: Sequence[str]) -> list[UploadRecord]:
    """The completed uploads of these keys. The caller has locked the workspace. InvalidFieldError for one without."""
    uploads = list[UploadRecord]()
    for place, key in enumerate(keys):
        upload = await upload_rows.find_complete(tx.conn, workspace_id, key)
        if upload is None:
            field = f"training_job.runtime.artifacts.{place}.s3_key"
            message = "the workspace has no completed upload of this key; upload it, with keys of"
            raise InvalidFieldError(field, f"{message} GET /v1/blobs/credentials/train")
        uploads.append(upload)
    return uploads


async def artifacts_of(conn: Connection, job_id: str, keys: Sequence[str]) -> tuple[Artifact, ...]:
    """The artifacts of a job by the keys of its spec, as they are in the store."""
    uploads = {upload.key: upload for upload in await upload_rows.held_uploads(conn, job_id)} if keys else {}
    return tuple([await _artifact(conn, uploads[key]) for key in keys])


async def _artifact(conn: Connection, upload: UploadRecord) -> Artifact:
    parts = await upload_rows.list_parts(conn, upload.id)
    present = [(part, part.sha256) for part in parts if part.sha256 is not None]
    return Artifact(
        upload.key,
        tuple(ArtifactPart(part_key(upload.id, part.id), part.size_bytes, sha256) for part, sha256 in present),
    )
