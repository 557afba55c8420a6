"""`GET /v1/gateway/search`: groups, slugs, keys and requests that a text may mean.

See docs/reference/management-api.md#search.
"""

from typing import Annotated, Literal

from pydantic import Field

from control.api.find.all_keys import KeyGroupV1, KeyTypeName, members_of_key, shown_group_of_key
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import DECIMAL, NO_NUL, RequestV1, ResponseV1, TimeText
from control.errors import InvalidFieldError
from control.records.times import time_text
from control.resources.find.search import search
from policy.keys.permissions import Permission

MAX_CHARS = 128
MOST = 20
_Kind = Literal["groups", "slugs", "keys", "requests"]


class SearchQueryV1(RequestV1):
    """The text to look for."""

    q: Annotated[str, Field(min_length=1, max_length=MAX_CHARS, json_schema_extra=NO_NUL, examples=["customer-42"])]
    limit: Annotated[int, Field(ge=1, le=MOST, description="The most matches of each kind."), DECIMAL] = 5


class MatchingSlugV1(ResponseV1):
    """An endpoint whose slug matches."""

    endpoint_id: str
    slug: str


class MatchingKeyV1(ResponseV1):
    """A key that matches. `group`: null for a key of the workspace itself."""

    prefix: str
    name: str | None
    type: KeyTypeName
    group: KeyGroupV1 | None


class MatchingRequestV1(ResponseV1):
    """A call that had this request id."""

    request_id: str
    timestamp: TimeText
    status: int
    slug: str | None


class SearchResponseV1(ResponseV1):
    """The matches of each kind, best first. `more`: the kinds that have further ones."""

    groups: list[KeyGroupV1]
    slugs: list[MatchingSlugV1]
    keys: list[MatchingKeyV1]
    requests: list[MatchingRequestV1]
    more: list[_Kind]


async def _search(request: ApiRequest) -> SearchResponseV1:
    query = request.query_as(SearchQueryV1)
    text = query.q.strip()
    if not text:
        raise InvalidFieldError("q", "q: must hold a character that is no space")
    limit = query.limit
    matches = await search(request.store, request.workspace_id, text, limit)
    answer = SearchResponseV1(
        groups=[shown_group_of_key(group) for group in matches.groups[:limit]],
        slugs=[MatchingSlugV1(endpoint_id=one.id, slug=one.slug) for one in matches.slugs[:limit]],
        keys=[MatchingKeyV1(**members_of_key(one)) for one in matches.keys[:limit]],
        requests=[
            MatchingRequestV1(
                request_id=one.request_id,
                timestamp=time_text(one.timestamp_ms),
                status=one.status,
                slug=one.slug or None,
            )
            for one in matches.requests[:limit]
        ],
        more=[],
    )
    kinds: tuple[_Kind, ...] = ("groups", "slugs", "keys", "requests")
    answer.more = [kind for kind in kinds if len(getattr(matches, kind)) > limit]
    return answer


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/search", _search, "Search groups, slugs, keys and requests", SearchResponseV1),
        query=SearchQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
)
