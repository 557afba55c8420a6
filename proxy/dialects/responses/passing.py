"""The Responses dialect for targets that speak it: stream and body readers.

Pure. The caller's body goes upstream unchanged except for `model`.
"""

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.finish import EventRoles
from proxy.dialects.stream_readers import StreamFormat, StreamReader
from proxy.dialects.upstream_request import HeaderFields, bearer_headers
from proxy.dialects.usage import OpenAiMeter, ReportPlace
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
)
_REPORT = ReportPlace(EVENTS.holder, _LAST)


def request_headers(credential: str | None, _provider: str, _caller: Incoming | None) -> HeaderFields:
    return bearer_headers(credential)


def stream_reader(request: Received, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    return StreamReader(EVENTS, request.slug, meter(most))


def meter(most: int = MAX_REPORTED_TOKENS) -> OpenAiMeter:
    """A meter of this dialect's streams."""
    return OpenAiMeter(most, _REPORT)
