"""Parses a connection's bytes into heads and bodies, with httptools and the checks that httptools lacks.

It stops at the first byte that breaks a rule. It bounds the size of the request target and of each field, the number of
fields, and the bytes that are neither head nor body (chunk extensions, trailers, empty lines).
"""

from typing import Protocol

import httptools

from proxy.edges.http import request_head
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.http.request_head import ParsedHead, RawFields
from proxy.http_rules.header_names import HeaderNames
from runtime.http.framing import says_http

_NOTHING = memoryview(b"")
_VERSIONS = ("1.0", "1.1")


class Listener(Protocol):
    """Receives the parser's events."""

    def head_came(self, head: ParsedHead) -> None:
        """A head is complete. If it has a fault, no event follows."""
        ...

    def body_came(self, part: bytes) -> None: ...
    def body_ended(self) -> None: ...

    def broke(self, fault: str) -> None:
        """The bytes are malformed; no event follows. `fault` is the reason shown if a head was malformed."""
        ...


class _StopParsingError(Exception):
    """Ends parsing from within a callback."""


class RequestParser:
    """Parses one connection's requests."""

    __slots__ = (
        "_data",
        "_fields",
        "_known_fields",
        "_limits",
        "_line",
        "_listener",
        "_names",
        "_parser",
        "_repeating",
        "_silent_bytes",
        "_skipped_framing",
        "_stopped",
        "_url",
        "in_body",
        "in_head",
    )

    def __init__(self, listener: Listener, names: HeaderNames, limits: HttpLimits) -> None:
        self._listener = listener
        self._names = names
        self._limits = limits
        self._parser: httptools.HttpRequestParser | None = None  # made when needed: heads seen before need none
        self._data = _NOTHING  # the bytes being parsed
        self._line: bytes | None = b""
        """The bytes of the request line before `_data`; None if the line began at an unknown offset."""
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._known_fields = 0
        """Number of fields after the last read; -1 after a piece of a body."""
        self._silent_bytes = 0
        """Bytes parsed since the last field or piece of a body."""
        self._skipped_framing = b""
        """The framing field of a body that httptools does not expect, as its head asks for an upgrade."""
        # While both are False, the next byte begins a request, or is part of an empty line before one.
        self.in_head = self.in_body = self._repeating = self._stopped = False

    def close(self) -> None:
        """Stop parsing, and drop the listener and httptools' parser: both refer back to this parser."""
        self._stopped = True
        self._parser = None
        del self._listener

    def parse(self, data: memoryview) -> None:
        """Parse all of `data`; the caller may reuse its memory afterwards."""
        while data and not self._stopped:
            data = self._feed(data)

    def skip_body(self) -> None:
        """Leave the rest of a body of known length to the caller: the next byte parsed begins a request."""
        self._parser = None
        self._line = b""
        self.in_body = False

    def _feed(self, data: memoryview) -> memoryview:
        """Parse `data`. Return its unparsed rest."""
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        self._data = data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            data = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            _raise_bugs(error)
            self._break_off(_fault(error))
            return _NOTHING
        else:
            if self.in_head or self.in_body:
                self._note_progress(data)
                return _NOTHING
            data = _NOTHING
        if not self.in_body:
            self._line = b""  # the next request begins with the next bytes
        return data

    def _note_progress(self, data: memoryview) -> None:
        """Keep the bytes of an incomplete request's line, and bound the bytes that cause no callback."""
        if self.in_head and self._line is not None and b"\n" not in self._line.lstrip(b"\r\n"):
            self._line += data
        limits = self._limits
        if len(self._fields) == self._known_fields:
            self._silent_bytes += len(data)
        else:
            self._known_fields = len(self._fields)
            self._silent_bytes = 0
        if (
            self._silent_bytes > limits.max_line_bytes + limits.max_field_bytes
            or self._known_fields > limits.max_headers
        ):
            self._break_off(request_head.TOO_LONG)

    def _ignore_upgrade(self) -> None:
        """Continue in HTTP, as RFC 9110 7.8 allows. httptools then expects no body; feed it a head that announces one.

        A new parser reads that head: the old one accepts nothing more if the request also asked to close.
        """
        framing = self._skipped_framing
        self._skipped_framing = b""
        if framing:
            self._repeating = True
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    def _break_off(self, fault: str) -> None:
        if not self._stopped:
            self._stopped = True
            self._listener.broke(fault)

    # --- httptools' callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.in_head = False
        self.in_body = True
        self._known_fields = self._silent_bytes = 0
        url = self._url
        self._url = b""
        fields = self._fields
        self._fields = []
        if self._repeating:
            self._repeating = False
            return
        head = self._read_head(url, fields)
        self._line = None
        self._listener.head_came(head)
        if head.fault:
            self._stopped = True
            raise _StopParsingError
        if "upgrade" in head.first and self._parser is not None and self._parser.should_upgrade():
            self._skipped_framing = head.framing

    def on_body(self, body: bytes) -> None:
        self._known_fields = -1  # progress
        self._listener.body_came(body)

    def on_message_complete(self) -> None:
        if self._skipped_framing:
            return
        self.in_body = False
        if self._fields:  # trailers
            trailers = self._fields
            self._fields = []
            if self._is_large(b"", trailers):
                self._break_off(request_head.TOO_LONG)
                raise _StopParsingError
        self._listener.body_ended()

    def _read_head(self, url: bytes, fields: RawFields) -> ParsedHead:
        parser = self._parser
        assert parser is not None
        method = parser.get_method()
        line = b"%b %b HTTP/1.1" % (method, url)
        head = ParsedHead(method.decode(), url.decode("latin-1"))
        is_plain = self._line == b"" and self._data[: len(line)] == line  # nearly always
        if not is_plain:
            head.modern = parser.get_http_version() == "1.1"
        head.closes = not (head.modern and parser.should_keep_alive()) or method == b"CONNECT"
        head.take_fields(fields, self._names)
        if self._is_large(url, fields):
            head.fault = request_head.TOO_LONG
        elif not is_plain and not self._names_http(head, parser.get_http_version()):
            head.fault = request_head.BAD_VERSION
        elif not head.fault and not url.startswith(b"/"):
            head.resolve_target()
        return head

    def _is_large(self, url: bytes, fields: RawFields) -> bool:
        limits = self._limits
        if len(url) > limits.max_line_bytes or len(fields) > limits.max_headers:
            return True
        if self._line == b"" and len(self._data) <= limits.max_field_bytes:
            return False  # the whole head arrived in one small read
        return any(len(name) + len(value) > limits.max_field_bytes for name, value in fields)

    def _names_http(self, head: ParsedHead, version: str) -> bool:
        """Return whether the request line names HTTP/1.x: the parser also accepts other versions, RTSP and ICE."""
        line = self._line
        return version in _VERSIONS and (line is None or says_http(line + self._data, head.method, head.target))


def _raise_bugs(error: httptools.HttpParserError) -> None:
    """Raise the exception of a callback, which httptools wraps."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
    if cause is not None and not isinstance(cause, _StopParsingError):
        raise cause


def _fault(error: httptools.HttpParserError) -> str:
    match error:
        case httptools.HttpParserInvalidMethodError():
            return request_head.BAD_METHOD
        case httptools.HttpParserInvalidURLError():
            return request_head.BAD_TARGET
        case _:
            return request_head.BREAKS_A_RULE
