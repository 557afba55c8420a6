"""`POST /v1/gateway/groups/{group_id}/usage_links`: a link to a group's usage page, for a frame in a portal.

See docs/reference/console.md#usage-links.
"""

from typing import Annotated

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import INTEGRAL, RequestV1, ResponseV1, TimeText
from control.records.times import time_text
from control.resources.console.usage_links import MAX_ORIGIN_CHARS, MAX_ORIGINS, NewLink, mint_link
from policy.keys.permissions import Permission

DEFAULT_EXPIRY_S = 3600
_Origin = Annotated[str, Field(min_length=1, max_length=MAX_ORIGIN_CHARS, examples=["https://portal.example"])]
_ORIGINS = "Scheme, host and optional port of each site whose pages may frame the page; none may by default."


class CreateUsageLinkRequestV1(RequestV1):
    """A new link to the group's usage page."""

    expires_in_s: Annotated[int, Field(ge=60, le=2_592_000), INTEGRAL] | None = Field(
        None, description=f"{DEFAULT_EXPIRY_S} by default."
    )
    frame_origins: Annotated[list[_Origin] | None, Field(max_length=MAX_ORIGINS, description=_ORIGINS)] = None


class CreatedUsageLinkV1(ResponseV1):
    """The link. Whoever has it reads the group's usage until it expires; it is shown only here."""

    url: str
    expires_at: TimeText


async def _post(request: ApiRequest) -> CreatedUsageLinkV1:
    body = request.body_as(CreateUsageLinkRequestV1)
    workspace_id = request.workspace_id
    group_id = request.path["group_id"]
    prefix = request.caller.prefix
    expires_in_s = DEFAULT_EXPIRY_S if body.expires_in_s is None else body.expires_in_s
    new_link = NewLink(workspace_id, group_id, prefix, expires_in_s, body.frame_origins or ())
    link = await mint_link(request.store, new_link)
    url = f"{request.origin}/console/embed/{request.dependencies.usage_links.seal(link)}"
    return CreatedUsageLinkV1(url=url, expires_at=time_text(link.expires_at_ms))


OPERATIONS = (
    Operation(
        *("POST", "/v1/gateway/groups/{group_id}/usage_links", _post),
        *("Create a link to a group's usage page", CreatedUsageLinkV1),
        body=CreateUsageLinkRequestV1,
        errors=(400, 404),
        needs=Permission.KEYS,
        creates=True,
    ),
)
