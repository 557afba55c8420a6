"""`/v1/users/me`: a key acts for its workspace, and belongs to no person; or the person who logged in.

See docs/reference/management-api.md#teams.
"""

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from policy.keys.permissions import Permission


class UserV1(ResponseV1):
    """Whoever calls: a key of the workspace, or a person in the console."""

    user_id: str = Field(description="The prefix of the key, or a name of the person with the form of one.")
    email: str | None = Field(description="A person's verified address; null for a key, which belongs to no person.")
    name: None = Field(description="Always null.")
    workspace_name: str


async def _get(request: ApiRequest) -> UserV1:
    caller = request.caller
    email = None if caller.person is None else caller.person.email
    return UserV1(user_id=caller.prefix, email=email, name=None, workspace_name=caller.workspace_name)


OPERATIONS = (Operation("GET", "/v1/users/me", _get, "Get whoever calls", UserV1, needs=Permission.READ),)
