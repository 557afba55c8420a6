"""The Responses dialect for targets that speak it: stream and body readers.

Pure. The caller's body goes upstream unchanged except for `model`.
"""

import re

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.stream_readers import StreamFormat, StreamReader
from proxy.dialects.upstream_request import HeaderFields, bearer_headers
from proxy.dialects.usage import OpenAiMeter, ReportPlace
from proxy.exchange import Incoming, Received

PATH = "/v1/responses"

_EVENTS = StreamFormat(
    (b"response.completed", b"response.incomplete", b"response.failed", b"[DONE]"),
    re.compile(
        rb"(?:\A|[\r\n])(?:event: ?response\.(?:completed|incomplete|failed)\b|data: ?\[DONE\]"
        rb'|data: ?\{\s*"type"\s*:\s*"response\.(?:completed|incomplete|failed)")'
    ),
    holder="response",
)


_REPORT = ReportPlace(_EVENTS.holder, frozenset(("response.completed", "response.incomplete", "response.failed")))


def request_headers(credential: str | None, _provider: str, _caller: Incoming | None) -> HeaderFields:
    return bearer_headers(credential)


def stream_reader(request: Received, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    return StreamReader(_EVENTS, request.slug, meter(most))


def meter(most: int = MAX_REPORTED_TOKENS) -> OpenAiMeter:
    """A meter of this dialect's streams."""
    return OpenAiMeter(most, _REPORT)
