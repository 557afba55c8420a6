"""`/v1/training_projects`: training projects (docs/reference/training.md#projects)."""

from collections.abc import Sequence
from functools import partial

from control.api.changes.team import TeamRequestV1, check_team, check_team_id
from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import DeletedV1, Name, RequestV1, ResponseV1, TimeText
from control.api.training.job_schemas import TrainingProjectV1, project_response
from control.long_work import beside
from control.records.times import time_text
from control.resources.training import projects
from control.resources.training.projects import ProjectSummary
from policy.keys.permissions import Permission
from policy.training.caches import CacheEntry, CacheSummary, FileType


class NewTrainingProjectRequestV1(TeamRequestV1):
    """A training project, by its name."""

    name: Name


class PutTrainingProjectRequestV1(RequestV1):
    """The training project to make, unless the workspace has one of that name."""

    training_project: NewTrainingProjectRequestV1


class TrainingProjectResponseV1(ResponseV1):
    """One training project."""

    training_project: TrainingProjectV1


class CachedFileV1(ResponseV1):
    """A file or directory of a cache. `path`: relative to it."""

    path: str
    size_bytes: int
    modified: TimeText
    file_type: FileType
    permissions: str


class TrainingCacheSummaryV1(ResponseV1):
    """The content of a project's cache when the trainer looked last."""

    timestamp: TimeText
    project_id: str
    file_summaries: list[CachedFileV1]


class DeletedTrainingProjectV1(DeletedV1):
    """The deleted training project. Its jobs are deleted too."""

    id: str
    training_project: TrainingProjectV1


class TrainingProjectsResponseV1(ResponseV1):
    """All training projects of the workspace, the newest first."""

    training_projects: list[TrainingProjectV1]


async def _post(request: ApiRequest) -> TrainingProjectResponseV1:
    new = request.body_as(PutTrainingProjectRequestV1).training_project
    check_team(request, new, "training_project.team_name")
    return _response(request, await projects.put_project(request.store, request.workspace_id, new.name))


async def _post_of_team(request: ApiRequest) -> TrainingProjectResponseV1:
    check_team_id(request)
    return await _post(request)


async def _list_of_team(request: ApiRequest) -> Encoded:
    check_team_id(request)
    return await _list(request)


async def _get(request: ApiRequest) -> TrainingProjectResponseV1:
    id = request.path["training_project_id"]
    return _response(request, await projects.read_project(request.store, request.workspace_id, id))


async def _list(request: ApiRequest) -> Encoded:
    summaries = await projects.read_projects(request.store, request.workspace_id)
    encode = partial(_encoded, request.caller.workspace_name, summaries)
    return Encoded(await beside(request.workspace_id, len(summaries), encode))


async def _cache(request: ApiRequest) -> Encoded:
    summary = await projects.read_cache(request.store, request.workspace_id, request.path["training_project_id"])
    encode = partial(_encoded_cache, summary)
    return Encoded(await beside(request.workspace_id, len(summary.entries), encode))


async def _delete(request: ApiRequest) -> DeletedTrainingProjectV1:
    id = request.path["training_project_id"]
    project = await projects.remove_project(request.store, request.workspace_id, id)
    return DeletedTrainingProjectV1(id=id, training_project=project_response(request.caller.workspace_name, project))


def _encoded(team_name: str, summaries: Sequence[ProjectSummary]) -> Pieces:
    items = [(project_response(team_name, project).model_dump_json().encode(),) for project in summaries]
    return encode_object({"training_projects": Array(items)})


def _encoded_cache(summary: CacheSummary) -> Pieces:
    files = [(_cached_file(entry).model_dump_json().encode(),) for entry in summary.entries]
    members = {"timestamp": time_text(summary.at_ms), "project_id": summary.project_id}
    return encode_object({**members, "file_summaries": Array(files)})


def _cached_file(entry: CacheEntry) -> CachedFileV1:
    return CachedFileV1(
        path=entry.path,
        size_bytes=entry.size_bytes,
        modified=time_text(entry.modified_ms),
        file_type=entry.file_type,
        permissions=entry.permissions,
    )


def _response(request: ApiRequest, project: ProjectSummary) -> TrainingProjectResponseV1:
    return TrainingProjectResponseV1(training_project=project_response(request.caller.workspace_name, project))


_PATH = "/v1/training_projects"
_OF_TEAM = "/v1/teams/{team_id}/training_projects"
_ONE = f"{_PATH}/{{training_project_id}}"
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Create a training project", TrainingProjectResponseV1),
        body=PutTrainingProjectRequestV1,
        errors=(400, 409),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
    Operation("GET", _PATH, _list, "List training projects", TrainingProjectsResponseV1, needs=Permission.READ),
    Operation(
        *("POST", _OF_TEAM, _post_of_team, "Create a training project of a team", TrainingProjectResponseV1),
        body=PutTrainingProjectRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
    Operation(
        *("GET", _OF_TEAM, _list_of_team, "List training projects of a team", TrainingProjectsResponseV1),
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _ONE, _get, "Get a training project", TrainingProjectResponseV1),
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", f"{_ONE}/cache/summary", _cache, "Get the summary of a training project's cache"),
        TrainingCacheSummaryV1,
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete a training project", DeletedTrainingProjectV1),
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
)
