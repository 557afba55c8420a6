"""The Messages dialect for targets that speak it: request headers and answer readers.

Pure. `anthropic-version` and `anthropic-beta` are the caller's if it sent them: they choose the form of the answer.
"""

import re
from collections.abc import Iterable

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects.body_readers import BodyReader
from proxy.dialects.stream_readers import MessagesStreamReader, StreamFormat
from proxy.dialects.upstream_request import HeaderFields
from proxy.dialects.usage import MessagesMeter

PATH = "/v1/messages"
DEFAULT_VERSION = "2023-06-01"

_EVENTS = StreamFormat(
    (b"message_stop",),
    re.compile(rb'(?:\A|[\r\n])(?:event: ?message_stop\b|data: ?\{\s*"type"\s*:\s*"message_stop")'),
    holder="message",
)


def request_headers(credential: str | None, caller: Iterable[tuple[str, str]] = ()) -> HeaderFields:
    """`caller`: the caller's header fields; for version and betas. Repeated fields are joined (RFC 9110 5.3)."""
    fields = {"content-type": "application/json"}
    for name, value in caller:
        if name in ("anthropic-version", "anthropic-beta"):
            fields[name] = f"{fields[name]},{value}" if name in fields else value
    fields.setdefault("anthropic-version", DEFAULT_VERSION)
    if credential:
        fields["x-api-key"] = credential
    return fields


def stream_reader(slug: str, most: int = MAX_REPORTED_TOKENS) -> MessagesStreamReader:
    return MessagesStreamReader(_EVENTS, slug, MessagesMeter(most))


def body_reader(slug: str, most: int = MAX_REPORTED_TOKENS) -> BodyReader:
    return BodyReader(slug, MessagesMeter(most))
