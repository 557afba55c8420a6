"""`/v1/teams`: the workspace, under the name that the original's clients ask for.

See docs/reference/management-api.md#teams.
"""

from typing import Annotated, Literal

from pydantic import Field

from control.api.changes.team import check_team_id
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import Name, RequestV1, ResponseV1, TimeText
from control.records.times import time_text
from control.resources.workspaces import read_workspace
from policy.keys.permissions import Permission


class TeamsQueryV1(RequestV1):
    """Selects teams."""

    name: Annotated[Name | None, Field(description="Teams of exactly this name.")] = None


class TeamV1(ResponseV1):
    """The workspace: its only team."""

    id: str
    name: str
    default: Literal[True]
    created_at: TimeText


class TeamsResponseV1(ResponseV1):
    """All teams."""

    teams: list[TeamV1]


async def _list(request: ApiRequest) -> TeamsResponseV1:
    team = await read_team(request)
    name = request.query_as(TeamsQueryV1).name
    return TeamsResponseV1(teams=[team] if name in (None, team.name) else [])


async def _get(request: ApiRequest) -> TeamV1:
    check_team_id(request)
    return await read_team(request)


async def read_team(request: ApiRequest) -> TeamV1:
    """Return the workspace as a team."""
    record = await read_workspace(request.store, request.workspace_id)
    return TeamV1(id=record.id, name=record.name, default=True, created_at=time_text(record.created_at_ms))


OPERATIONS = (
    Operation(
        *("GET", "/v1/teams", _list, "List teams", TeamsResponseV1),
        query=TeamsQueryV1,
        needs=Permission.READ,
    ),
    Operation("GET", "/v1/teams/{team_id}", _get, "Get a team", TeamV1, errors=(404,), needs=Permission.READ),
)
