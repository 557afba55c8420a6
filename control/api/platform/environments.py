"""`/v1/models/{model_id}/environments` (docs/reference/management-api.md#environments)."""

import re
from collections.abc import Sequence

from control.api.endpoints import ENVIRONMENT_PATTERN
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    DeletedV1,
    IdText,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
    WholeListQueryV1,
    original_name,
)
from control.errors import InvalidFieldError
from control.records.models import EnvironmentRecord
from control.resources.changes.shown_platform import shown_environment
from control.resources.platform import environments


class SetEnvironmentRequestV1(RequestV1):
    """The deployment that the environment points to."""

    deployment_id: IdText


class EnvironmentV1(ResponseV1):
    """An environment of a model and the deployment it points to."""

    name: str
    model_id: str
    deployment_id: str
    created_at: TimeText
    updated_at: TimeText


class EnvironmentsResponseV1(ResponseV1):
    """One page of environments."""

    items: list[EnvironmentV1]
    environments: list[EnvironmentV1] = original_name("environments")
    pagination: PaginationResponseV1


class DeletedEnvironmentV1(DeletedV1):
    """The deleted environment. The deployment it pointed to stays."""

    name: str
    model_id: str


async def _put(request: ApiRequest) -> EnvironmentV1:
    model_id, name = _place(request)
    if not re.fullmatch(ENVIRONMENT_PATTERN, name):
        raise InvalidFieldError("environment_name", "an environment's name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    deployment_id = request.body_as(SetEnvironmentRequestV1).deployment_id
    return _response(
        await environments.point_environment(request.store, request.workspace_id, model_id, name, deployment_id)
    )


async def _get(request: ApiRequest) -> EnvironmentV1:
    return _response(await environments.read_environment(request.store, request.workspace_id, *_place(request)))


async def _list(request: ApiRequest) -> Encoded:
    model_id = request.path["model_id"]

    async def fetch(at: Position[EnvironmentRecord]) -> Sequence[EnvironmentRecord]:
        return await environments.read_environments(request.store, request.workspace_id, model_id, at.after, at.limit)

    kind = f"environments {model_id}"
    encode = encoder(_response)
    return await list_page(request, Listing(kind, fetch, lambda record: record.name, encode, name="environments"))


async def _delete(request: ApiRequest) -> DeletedEnvironmentV1:
    record = await environments.remove_environment(request.store, request.workspace_id, *_place(request))
    return DeletedEnvironmentV1(name=record.name, model_id=record.model_id)


def _place(request: ApiRequest) -> tuple[str, str]:
    return request.path["model_id"], request.path["environment_name"]


def _response(record: EnvironmentRecord) -> EnvironmentV1:
    return EnvironmentV1(**shown_environment(record))


_PATH = "/v1/models/{model_id}/environments"
_ONE = f"{_PATH}/{{environment_name}}"
_TAG = "Models"
_PAGE = WholeListQueryV1
_PAGES = EnvironmentsResponseV1
OPERATIONS = (
    Operation(
        *("PUT", _ONE, _put, "Point an environment to a deployment", EnvironmentV1),
        body=SetEnvironmentRequestV1,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation("GET", _PATH, _list, "List environments", _PAGES, query=_PAGE, errors=(400, 404), tag=_TAG),
    Operation("GET", _ONE, _get, "Get an environment", EnvironmentV1, errors=(404,), tag=_TAG),
    Operation("DELETE", _ONE, _delete, "Delete an environment", DeletedEnvironmentV1, errors=(404, 409), tag=_TAG),
)
