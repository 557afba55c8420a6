"""The Responses dialect for targets that speak it: stream and body readers.

Pure. The caller's body goes upstream unchanged except for `model`.
"""

import re

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.finish import EventRoles
from proxy.dialects.stream_readers import StreamFormat, StreamReader
from proxy.dialects.upstream_request import HeaderFields, bearer_headers
from proxy.dialects.usage.meters import ReportPlace, ResponsesMeter
from proxy.dialects.usage.server_tools import SERVER_TOOLS
from proxy.records.messages import Incoming, Received

PATH = "/v1/responses"

_LAST = frozenset(("response.completed", "response.incomplete", "response.failed"))
EVENTS = StreamFormat(
    EventRoles(
        output=r"response\.(?:created|.*\.(?:delta|added|partial_image))|error",
        part_end=r"response\..*\.done",
        last=_LAST,
    ),
    holder="response",
    metered=re.compile(rb'"(?:%b)"' % "|".join(sorted(SERVER_TOOLS)).encode()),
)
_REPORT = ReportPlace(EVENTS.holder, _LAST)


def request_headers(credential: str | None, _provider: str, _caller: Incoming | None) -> HeaderFields:
    return bearer_headers(credential)


def stream_reader(request: Received, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    return StreamReader(EVENTS, request.slug, meter(most))


def meter(most: int = MAX_REPORTED_TOKENS) -> ResponsesMeter:
    """A meter of this dialect's streams."""
    return ResponsesMeter(most, _REPORT)
