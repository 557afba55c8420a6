"""The member `team_name`: a workspace has one team, which has its name (docs/reference/management-api.md#teams)."""

from pydantic import Field

from control.api.protocol.operations import ApiRequest
from control.api.protocol.schemas import Name, RequestV1
from control.errors import InvalidFieldError, TeamNotFoundError


class TeamRequestV1(RequestV1):
    """A write that may name the team, which can only be the workspace's."""

    team_name: Name | None = Field(None, description="The workspace's name, if given.")


def check_team(request: ApiRequest, body: TeamRequestV1, field: str = "team_name") -> None:
    """Refuse the name of another team with 400. `field`: the place of the member in the request."""
    name = request.caller.workspace_name
    if body.team_name not in (None, name):
        raise InvalidFieldError(field, f"a workspace has one team, its own: leave it out, or write {name}")


def check_team_id(request: ApiRequest) -> None:
    """Refuse the path of another team with 404."""
    if request.path["team_id"] != request.workspace_id:
        raise TeamNotFoundError
