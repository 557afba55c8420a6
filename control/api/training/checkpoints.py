"""`…/jobs/{training_job_id}/checkpoints`: a job's checkpoints, and links to their files.

See docs/reference/training.md#checkpoints.
"""

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import DECIMAL, RequestV1, ResponseV1, TimeText
from control.api.training.job_schemas import TrainingJobV1, job_response
from control.api.training.jobs import job_ref
from control.long_work import beside
from control.records.times import time_text
from control.records.training import CheckpointRecord
from control.resources.training import checkpoints
from control.resources.training.checkpoints import ListedFiles
from control.resources.training.download_links import Link
from policy.keys.permissions import Permission
from policy.training.reports import CheckpointFile

MAX_FILES_AT_ONCE = 1000
_MAX_TOKEN = 2**53 - 1


class CheckpointV1(ResponseV1):
    """A checkpoint. `base_model` and `lora_adapter_config` are those of a LoRA adapter, as its configuration says."""

    id: str = Field(description="The same as `checkpoint_id`.")
    checkpoint_id: str
    created_at: TimeText
    checkpoint_type: Literal["FULL", "LORA"]
    base_model: str | None
    lora_adapter_config: dict[str, Any] | None
    size_bytes: int
    training_job_id: str
    sync_status: Literal["SYNCING", "COMPLETE"] | None = Field(description="COMPLETE: it is in the store, verified.")


class CheckpointsResponseV1(ResponseV1):
    """A training job and its checkpoints, the oldest first."""

    training_job: TrainingJobV1
    checkpoints: list[CheckpointV1]


class CheckpointFileV1(ResponseV1):
    """A file of a checkpoint. `url` opens without credentials until `expires_at`."""

    path: str
    size_bytes: int
    sha256: str = Field(description="In hexadecimal.")
    url: str
    expires_at: TimeText


class CheckpointFilesResponseV1(ResponseV1):
    """All files of a checkpoint."""

    files: list[CheckpointFileV1]


class JobFilesQueryV1(RequestV1):
    """Selects a page of files. Tokens are those of the answer before."""

    page_size: Annotated[int, Field(ge=1, le=MAX_FILES_AT_ONCE), DECIMAL] = MAX_FILES_AT_ONCE
    page_token: Annotated[int, Field(ge=0, le=_MAX_TOKEN), DECIMAL] = 0


class JobFileV1(ResponseV1):
    """A file of a checkpoint. `url` opens without credentials for an hour."""

    url: str
    relative_file_name: str = Field(description="The checkpoint's id, and the file's path in it.")
    node_rank: int = Field(description="Always 0: all nodes share the checkpoints.")
    size_bytes: int
    last_modified: TimeText = Field(description="When the checkpoint's newest file changed last.")


class JobFilesResponseV1(ResponseV1):
    """A page of the files of a job's checkpoints that are in the store."""

    presigned_urls: list[JobFileV1]
    next_page_token: int | None = Field(description="Null: there are no more.")
    total_count: int


async def _get(request: ApiRequest) -> Encoded:
    job, records = await checkpoints.list_checkpoints(request.store, job_ref(request))
    job_members = job_response(job).model_dump()

    def encoded() -> Pieces:
        return encode_object({"training_job": job_members, "checkpoints": Array(map(_encoded, records))})

    return Encoded(await beside(request.workspace_id, len(records), encoded))


async def _get_files(request: ApiRequest) -> Encoded:
    listed = await checkpoints.list_files(request.store, job_ref(request), request.path["checkpoint_id"])

    def encoded() -> Pieces:
        files = [(_file(request, file, listed.link(file)).model_dump_json().encode(),) for file in listed.files]
        return encode_object({"files": Array(files)})

    return Encoded(await beside(request.workspace_id, len(listed.files), encoded))


async def _get_job_files(request: ApiRequest) -> Encoded:
    query = request.query_as(JobFilesQueryV1)
    listed = await checkpoints.list_job_files(request.store, job_ref(request), query.page_token, query.page_size)
    count = sum(len(page.files) for page in listed.pages)
    end = query.page_token + count
    members = {"next_page_token": end if count and end < listed.total else None, "total_count": listed.total}

    def encoded() -> Pieces:
        files = [_job_file(request, page, file) for page in listed.pages for file in page.files]
        return encode_object(
            {"presigned_urls": Array([(file.model_dump_json().encode(),) for file in files]), **members}
        )

    return Encoded(await beside(request.workspace_id, count, encoded))


def _encoded(record: CheckpointRecord) -> tuple[bytes]:
    config = record.lora_adapter_config
    checkpoint = CheckpointV1.model_validate(
        {
            "id": record.id,
            "checkpoint_id": record.id,
            "created_at": time_text(record.created_at_ms),
            "checkpoint_type": record.checkpoint_type,
            "base_model": record.base_model,
            "lora_adapter_config": None if config is None else orjson.loads(config),
            "size_bytes": record.size_bytes,
            "training_job_id": record.job_id,
            "sync_status": record.sync_status,
        }
    )
    return (checkpoint.model_dump_json().encode(),)


def _file(request: ApiRequest, file: CheckpointFile, link: Link) -> CheckpointFileV1:
    return CheckpointFileV1(
        path=file.path,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        url=_url(request, link),
        expires_at=time_text(link.expires_at_ms),
    )


def _job_file(request: ApiRequest, listed: ListedFiles, file: CheckpointFile) -> JobFileV1:
    return JobFileV1(
        url=_url(request, listed.link(file)),
        relative_file_name=f"{listed.record.id}/{file.path}",
        node_rank=0,
        size_bytes=file.size_bytes,
        last_modified=time_text(listed.record.created_at_ms),
    )


def _url(request: ApiRequest, link: Link) -> str:
    return f"{request.origin}/training/files/{request.dependencies.links.seal(link)}"


_JOB = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}"
_PATH = f"{_JOB}/checkpoints"
OPERATIONS = (
    Operation(
        *("GET", _PATH, _get, "List checkpoints of a training job", CheckpointsResponseV1),
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", f"{_PATH}/{{checkpoint_id}}/files", _get_files, "List files of a checkpoint"),
        CheckpointFilesResponseV1,
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("GET", f"{_JOB}/checkpoint_files", _get_job_files, "List files of all checkpoints of a training job"),
        JobFilesResponseV1,
        query=JobFilesQueryV1,
        errors=(400, 404),
        needs=Permission.WORKLOADS,
    ),
)
