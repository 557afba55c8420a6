"""`…/jobs/{training_job_id}/download`: links to what was uploaded for a job, and `GET /training/artifacts/{token}`.

See docs/reference/training.md#uploads.
"""

import logging
from urllib.parse import quote

from aiohttp import hdrs, web
from pydantic import Field

from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.api.training.jobs import job_ref
from control.errors import CheckpointFileNotFoundError, CheckpointStoreUnavailableError
from control.resources.uploads import downloads
from policy.keys.permissions import Permission
from policy.training.artifacts import Artifact
from runtime.http.server import keep
from runtime.log_lines import cause_of
from runtime.object_store import StoreError

log = logging.getLogger(__name__)


class TrainingJobDownloadV1(ResponseV1):
    """Links to a job's artifacts, in their order. Each opens without credentials for an hour."""

    artifact_presigned_urls: list[str] = Field(description="Each is a tar archive, as it was uploaded.")


async def _get_links(request: ApiRequest) -> TrainingJobDownloadV1:
    links = await downloads.list_links(request.store, job_ref(request))
    seal = request.dependencies.artifact_links.seal
    urls = [f"{request.origin}/training/artifacts/{seal(link)}" for link in links]
    return TrainingJobDownloadV1(artifact_presigned_urls=urls)


async def _get(request: web.Request) -> web.StreamResponse:
    dependencies = request.app[DEPENDENCIES]
    token = request.match_info["token"]
    link, artifact = await downloads.find_artifact(dependencies.store, dependencies.artifact_links, token)
    keep(request, link.workspace_id)
    answer = web.StreamResponse(headers=_headers(artifact))
    answer.content_length = artifact.size_bytes
    with dependencies.downloads.taken(link.workspace_id):
        try:
            await _send(request, answer, artifact)
        except (StoreError, CheckpointFileNotFoundError, CheckpointStoreUnavailableError) as error:
            if not answer.prepared:
                raise
            log.warning(
                "Download of an artifact was cut off: the store failed (%s). The client has to ask again. Check"
                " TOLLGATE_CHECKPOINT_STORE.",
                cause_of(error),
            )
            if request.transport is not None:
                request.transport.abort()  # the caller must not take a part for the whole
    return answer


async def _send(request: web.Request, answer: web.StreamResponse, artifact: Artifact) -> None:
    """Send the parts, one behind the other. Raises StoreError if the store fails within one."""
    store = request.app[DEPENDENCIES].checkpoint_store
    for part in artifact.parts:
        async with store.reading(part.store_key, part.size_bytes) as download:
            if not answer.prepared:
                await answer.prepare(request)
            if request.method == hdrs.METH_HEAD:
                return
            async for piece in download.pieces():
                await answer.write(piece)


def _headers(artifact: Artifact) -> dict[str, str]:
    return {
        hdrs.CONTENT_TYPE: "application/octet-stream",
        hdrs.CONTENT_DISPOSITION: f"attachment; filename*=UTF-8''{quote(artifact.key, safe='')}",
        hdrs.CACHE_CONTROL: "private, no-store",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Referrer-Policy": "no-referrer",
    }


OPERATIONS = (
    Operation(
        *("GET", "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/download", _get_links),
        *("Get links to a job's artifacts", TrainingJobDownloadV1),
        errors=(404,),
        needs=Permission.WORKLOADS,
    ),
)
ROUTES = [web.get("/training/artifacts/{token}", _get, allow_head=True)]
