"""The id of each request: the caller's `x-request-id`, or a new one. The answer, the log and the audit trail have it.

See docs/reference/management-api.md#conventions.
"""

from aiohttp import web

from control.records.ids import new_request_id
from policy.request_ids import valid_request_id

HEADER = "X-Request-Id"
_ID = web.RequestKey("request_id", str)


def request_id_of(request: web.Request) -> str:
    """The same for the whole life of the request."""
    found = request.get(_ID)
    if found is None:
        found = request[_ID] = valid_request_id(request.headers.get(HEADER)) or new_request_id()
    return found


async def show_request_id(request: web.Request, answer: web.StreamResponse) -> None:
    """For `Application.on_response_prepare`: every answer names its request, refusals and streams too."""
    answer.headers[HEADER] = request_id_of(request)
