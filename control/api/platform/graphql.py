"""`POST /graphql/` answers the one question that the original's tool asks in GraphQL: which teams there are.

See docs/reference/management-api.md#teams.
"""

import re
from typing import Any

from pydantic import RootModel

from control.api.platform.teams import TeamV1, read_team
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import RequestV1, ResponseV1
from policy.keys.permissions import Permission

_BLANK = re.compile(r"[\s,]+")
_TEAMS = re.compile(r"(query( \w+)? ?)?\{ ?teams ?\{ ?id name default ?\} ?\}")
"""The question, with each run of blanks and commas as one blank. There is no parser for one question."""
OTHER_QUESTION = (
    "Tollgate answers one GraphQL question, {teams {id name default}}. Models are not built or pushed here;"
    " everything else is in the management API: see /v1/openapi.json"
)


class GraphqlRequestV1(RequestV1):
    """A GraphQL question. Only the text of the query is looked at."""

    query: str
    variables: dict[str, Any] | None = None


class NamedTeamV1(ResponseV1):
    """The workspace: its only team."""

    id: str
    name: str
    default: bool


class NamedTeamsV1(ResponseV1):
    """All teams."""

    teams: list[NamedTeamV1]


class GraphqlDataV1(ResponseV1):
    """The answer to the question for the teams."""

    data: NamedTeamsV1


class GraphqlErrorV1(ResponseV1):
    """The reason that a question has no answer."""

    message: str


class GraphqlErrorsV1(ResponseV1):
    """The answer to every other question."""

    errors: list[GraphqlErrorV1]


class GraphqlResponseV1(RootModel[GraphqlDataV1 | GraphqlErrorsV1]):
    """Data or errors, never both."""


async def _post(request: ApiRequest) -> GraphqlResponseV1:
    question = _BLANK.sub(" ", request.body_as(GraphqlRequestV1).query).strip()
    if _TEAMS.fullmatch(question) is None:
        return GraphqlResponseV1(GraphqlErrorsV1(errors=[GraphqlErrorV1(message=OTHER_QUESTION)]))
    return GraphqlResponseV1(GraphqlDataV1(data=NamedTeamsV1(teams=[_named(await read_team(request))])))


def _named(team: TeamV1) -> NamedTeamV1:
    return NamedTeamV1(id=team.id, name=team.name, default=team.default)


OPERATIONS = (
    Operation(
        *("POST", "/graphql", _post, "Ask for the teams in GraphQL", GraphqlResponseV1),
        body=GraphqlRequestV1,
        also_at="/graphql/",
        needs=Permission.READ,
    ),
)
