"""The Messages dialect for targets that speak it: request headers and answer readers.

Pure. `anthropic-version` and `anthropic-beta` are the caller's if it sent them: they choose the form of the answer.
"""

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import VENDOR_A
from proxy.dialects.finish import EventRoles
from proxy.dialects.stream_readers import MessagesStreamReader, StreamFormat
from proxy.dialects.upstream_request import HeaderFields
from proxy.dialects.usage.meters import MessagesMeter
from proxy.records.messages import Incoming, Received

PATH = "/v1/messages"
DEFAULT_VERSION = "2023-06-01"

EVENTS = StreamFormat(
    EventRoles(
        output="message_start|content_block_start|content_block_delta|error",
        part_end="content_block_stop",
        last=frozenset(("message_stop",)),
    ),
    holder="message",
    last=b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)


def request_headers(credential: str | None, provider: str, caller: Incoming | None) -> HeaderFields:
    """Version and betas are the caller's. Repeated fields are joined (RFC 9110 5.3)."""
    fields = {"content-type": "application/json"}
    for name, value in caller.headers if caller is not None else ():
        if name in ("anthropic-version", "anthropic-beta"):
            fields[name] = f"{fields[name]},{value}" if name in fields else value
    fields.setdefault("anthropic-version", DEFAULT_VERSION)
    if credential:
        fields["x-api-key"] = credential
        if provider != VENDOR_A:  # compatible servers know one or the other
            fields["authorization"] = f"Bearer {credential}"
    return fields


def stream_reader(request: Received, most: int = MAX_REPORTED_TOKENS) -> MessagesStreamReader:
    return MessagesStreamReader(EVENTS, request.slug, MessagesMeter(most))
