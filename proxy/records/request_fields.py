"""The header fields of a request to an upstream, encoded once however many requests have them."""

from functools import cached_property

from proxy.errors import UpstreamUnreachableError

_CONNECTION_FIELDS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "expect", "te")
)
"""Fields that concern one connection only: the client sets them itself or not at all (RFC 9110 7.6.1)."""


class RequestFields(dict[str, str]):
    """The fields by name, in lower case. They do not change once they are encoded."""

    @cached_property
    def lines(self) -> bytes:
        """The fields as lines, each with CRLF, without those that the upstream's client sets.

        Raises `UpstreamUnreachableError` for a character that could smuggle in a line.
        """
        lines = [f"{name}: {value}\r\n" for name, value in self.items() if name.lower() not in _CONNECTION_FIELDS]
        text = "".join(lines)
        if not text.count("\n") == len(lines) == text.count("\r") or "\0" in text:
            raise UpstreamUnreachableError("the request's head holds a character that cannot be sent")
        return text.encode("utf-8", "surrogateescape")
