"""`…/jobs/{training_job_id}/checkpoints`: a job's checkpoints, and links to their files.

See docs/reference/training.md#checkpoints.
"""

from typing import Any, Literal

import orjson
from pydantic import Field

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1, TimeText
from control.api.training.job_schemas import TrainingJobV1, job_response
from control.api.training.jobs import job_ref
from control.long_work import beside
from control.records.times import time_text
from control.records.training import CheckpointRecord
from control.resources.training import checkpoints
from control.resources.training.download_links import Link
from policy.training.reports import CheckpointFile


class CheckpointV1(ResponseV1):
    """A checkpoint. `base_model` and `lora_adapter_config` are those of a LoRA adapter, as its configuration says."""

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


def _encoded(record: CheckpointRecord) -> tuple[bytes]:
    config = record.lora_adapter_config
    checkpoint = CheckpointV1.model_validate(
        {
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
        url=f"{request.origin}/training/files/{request.dependencies.links.seal(link)}",
        expires_at=time_text(link.expires_at_ms),
    )


_PATH = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/checkpoints"
OPERATIONS = (
    Operation(
        *("GET", _PATH, _get, "List checkpoints of a training job", CheckpointsResponseV1),
        errors=(404,),
        tag="Training",
    ),
    Operation(
        *("GET", f"{_PATH}/{{checkpoint_id}}/files", _get_files, "List files of a checkpoint"),
        CheckpointFilesResponseV1,
        errors=(404, 409),
        tag="Training",
    ),
)
