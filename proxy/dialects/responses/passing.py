"""The Responses dialect for targets that speak it: stream and body readers.

Pure. The caller's body goes upstream unchanged except for `model`.
"""

import re

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.body_readers import BodyReader
from proxy.dialects.stream_readers import StreamFormat, StreamReader
from proxy.dialects.usage import OpenAiMeter

PATH = "/v1/responses"

_EVENTS = StreamFormat(
    (b"response.completed", b"response.incomplete", b"response.failed", b"[DONE]"),
    re.compile(
        rb"(?:\A|[\r\n])(?:event: ?response\.(?:completed|incomplete|failed)\b|data: ?\[DONE\]"
        rb'|data: ?\{\s*"type"\s*:\s*"response\.(?:completed|incomplete|failed)")'
    ),
    holder="response",
)


def stream_reader(slug: str, most: int = MAX_REPORTED_TOKENS) -> StreamReader:
    return StreamReader(_EVENTS, slug, meter(most))


def body_reader(slug: str, most: int = MAX_REPORTED_TOKENS) -> BodyReader:
    return BodyReader(slug, OpenAiMeter(most=most))


def meter(most: int = MAX_REPORTED_TOKENS) -> OpenAiMeter:
    """A meter of this dialect's streams and bodies."""
    return OpenAiMeter(_EVENTS.holder, most)
