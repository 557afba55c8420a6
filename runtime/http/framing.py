"""Parses a connection's bytes a second time, to find what aiohttp's parser reports late or not at all. Pure."""

from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:  # a worker checks its heads with `says_http`, and has no aiohttp
    from aiohttp import web


class Framing:
    """Parses a copy of a connection's bytes to find a malformed body at once.

    aiohttp's C parser reports it only when the handler is done, and the handler may wait for the rest of that body.
    Detection stops at a request for an upgrade: httptools expects no body after it, aiohttp does.
    """

    __slots__ = ("_parser", "_place", "broken")

    def __init__(self) -> None:
        self._place = _Place()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self._place)
        self.broken = 0
        """The number of the request with the malformed body, counted from 1; 0 if there is none."""

    @property
    def requests(self) -> int:
        """The number of complete heads, as far as it parses."""
        return self._place.request

    def read(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = None
        except httptools.HttpParserError:  # aiohttp reports malformed heads itself
            self._parser = None
            self.broken = self._place.request if self._place.in_body else 0


class _Place:
    """The parser's position: the number of the request, and whether within its body."""

    __slots__ = ("in_body", "request")

    def __init__(self) -> None:
        self.request = 0
        self.in_body = False

    def on_headers_complete(self) -> None:
        self.request += 1
        self.in_body = True

    def on_message_complete(self) -> None:
        self.in_body = False


def says_http(head: bytes, method: str, target: str) -> bool:
    """Return whether the request line that `head` begins with names HTTP, or is not this request's.

    The parsers accept `RTSP` and `ICE` as HTTP without a sign. A pipelined request has no `head`, as the offset at
    which it began is unknown.
    """
    if head.startswith(b"HTTP/", len(method) + len(target) + 2):  # nearly always
        return True
    words = [word for word in head.lstrip(b"\r\n").partition(b"\r\n")[0].split(b" ") if word]
    is_this = words[:2] == [method.encode(), target.encode(errors="surrogateescape")]
    return not is_this or all(word.startswith(b"HTTP/") for word in words[2:3])


def framing_fault(request: "web.BaseRequest", is_http: bool) -> str:
    """Return why a request that the parser accepts is ambiguous to others; "" if it is not (RFC 9112 6.1).

    `is_http`: whether its request line names HTTP.
    """
    version = tuple(request.version)
    codings = request.headers.getall("Transfer-Encoding", ())
    if version not in ((1, 0), (1, 1)) or not is_http:
        return "The request's version must be HTTP/1.0 or HTTP/1.1"
    plain = [coding.strip().lower() for coding in codings] in ([], ["chunked"]) and (version == (1, 1) or not codings)
    return "" if plain else "Transfer-Encoding must be chunked, in HTTP/1.1, or absent"
