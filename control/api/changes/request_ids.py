"""The id of each request: the caller's `x-request-id`, or a new one. The answer, the log and the audit trail have it.

See docs/reference/management-api.md#conventions.
"""

from aiohttp import web

from control.records.ids import new_request_id
from policy.request_ids import valid_request_id

HEADER = "X-Request-Id"
_ID = web.RequestKey("request_id", str)


def request_id_of(request: web.Request) -> str:
    """Return the request's id, which is the same for its whole life."""
    id = request.get(_ID)
    if id is None:
        id = request[_ID] = valid_request_id(request.headers.get(HEADER)) or new_request_id()
    return id


async def show_request_id(request: web.Request, answer: web.StreamResponse) -> None:
    """Name the request in an answer, refusals and streams too: for `Application.on_response_prepare`."""
    answer.headers[HEADER] = request_id_of(request)
