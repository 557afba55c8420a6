"""The request parser, fed byte by byte and at once: its events, its limits, and where it stops."""

from collections.abc import Sequence

import httptools
import pytest

from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.http.request_parser import RequestParser
from proxy.http_rules.header_names import HeaderNames

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"Connection: upgrade\r\nUpgrade: websocket\r\n"


class RecordingListener:
    """Records the parser's events as text; parts of one body are joined."""

    def __init__(self) -> None:
        self.heads: list[ParsedHead] = []
        self.events: list[str] = []

    def head_came(self, head: ParsedHead) -> None:
        self.heads.append(head)
        self.events.append(f"refused: {head.fault}" if head.fault else f"{head.method} {head.target}")

    def body_came(self, part: bytes) -> None:
        if self.events[-1].startswith("body "):
            self.events[-1] += part.decode()
        else:
            self.events.append(f"body {part.decode()}")

    def body_ended(self) -> None:
        self.events.append("end")

    def broke(self, fault: str) -> None:
        self.events.append(f"broke: {fault}")


def parse(message: bytes, cut: int = 0, limits: HttpLimits | None = None) -> RecordingListener:
    recorded = RecordingListener()
    parser = RequestParser(recorded, HeaderNames(), limits or HttpLimits())
    step = cut or len(message)
    for start in range(0, len(message), step):
        parser.parse(memoryview(message[start : start + step]))
    return recorded


ONE_REQUEST = ["POST /a", "body hi", "end"]
RULE = "the request breaks a rule of HTTP"
VERSION = "the request's version must be HTTP/1.0 or HTTP/1.1"
TOO_LONG = "the request line or a header field is too long"
MESSAGES: dict[str, tuple[bytes, Sequence[str]]] = {
    "length": (REQUEST, ONE_REQUEST),
    "three at once": (REQUEST * 3, ONE_REQUEST * 3),
    "empty lines before": (b"\r\n\r\n" + REQUEST, ONE_REQUEST),
    "chunked": (CHUNKED + b"1\r\nh\r\n1;a=b\r\ni\r\n0\r\nT: 1\r\n\r\n", ONE_REQUEST),
    "chunked, then another": (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + REQUEST, ONE_REQUEST * 2),
    "upgrade with a length": (HEAD + UPGRADE + b"Content-Length: 2\r\n\r\nhi" + REQUEST, ONE_REQUEST * 2),
    "upgrade with chunks": (
        HEAD + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + REQUEST,
        ONE_REQUEST * 2,
    ),
    "upgrade without a body": (HEAD + UPGRADE + b"\r\n" + REQUEST, ["POST /a", "end", *ONE_REQUEST]),
    "upgrade with a length, then close": (
        HEAD + b"Connection: close, upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
        ONE_REQUEST,
    ),
    "upgrade with a length in HTTP/1.0": (
        b"POST /a HTTP/1.0\r\n" + UPGRADE + b"Content-Length: 2\r\n\r\nhi",
        ONE_REQUEST,
    ),
    "length with thousands of zeros": (
        HEAD + b"Content-Length: " + b"0" * 5000 + b"2\r\n\r\nhi" + REQUEST,
        ONE_REQUEST * 2,
    ),
    "upgrades in a row": ((HEAD + UPGRADE + b"\r\n") * 3, ["POST /a", "end"] * 3),
    "upgrade, then RTSP": (
        HEAD + UPGRADE + b"\r\nGET /b RTSP/1.0\r\nHost: x\r\n\r\n",
        ["POST /a", "end", f"refused: {VERSION}"],
    ),
    "connect": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", ["CONNECT /", "end"]),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", ["OPTIONS *", "end"]),
    "absolute": (b"GET http://y/b?c HTTP/1.1\r\nHost: x\r\n\r\n", ["GET /b?c", "end"]),
    "absolute without a path": (b"GET http://y?c HTTP/1.1\r\nHost: x\r\n\r\n", ["GET /?c", "end"]),
    "no authority": (b"GET http:///b HTTP/1.1\r\nHost: x\r\n\r\n", ["refused: the request target is malformed"]),
    "asterisk of a GET": (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", ["refused: the request target is malformed"]),
    "HTTP/1.0": (b"POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", ONE_REQUEST),
    "RTSP that looks like HTTP": (b"\r\n" * 5 + b"GET /HTTP/1.1 RTSP/1.0\r\nHost: x\r\n\r\n", [f"refused: {VERSION}"]),
    "nothing after a refusal": (b"GET /a HTTP/1.1\r\n\r\n" + REQUEST, [f"refused: {RULE}"]),
    "two one-letter hosts": (HEAD + b"Host: x\r\n\r\n", [f"refused: {RULE}"]),
    "after close": (HEAD + b"Connection: close\r\n\r\n" + REQUEST, ["POST /a", "end", f"broke: {RULE}"]),
    "a broken chunk": (CHUNKED + b"2\r\nhi\r\nz", ["POST /a", "body hi", f"broke: {RULE}"]),
    "a length among trailers": (
        CHUNKED + b"2\r\nhi\r\n0\r\nContent-Length: 2\r\n\r\n",
        ["POST /a", "body hi", f"broke: {RULE}"],
    ),
}


@pytest.mark.parametrize("cut", [0, 1, 2, 7])
@pytest.mark.parametrize(("message", "events"), MESSAGES.values(), ids=MESSAGES)
def test_events_do_not_depend_on_where_reads_end(message: bytes, events: Sequence[str], cut: int) -> None:
    assert parse(message, cut).events == events


def test_head_keeps_field_order_and_strips_trailing_blanks() -> None:
    [head] = parse(b"GET /a HTTP/1.1\r\nHost: x\r\nX-B: 1 \t\r\nx-a: \xc3\xa9\xff\r\nX-B:2\r\n\r\n").heads
    assert head.fields == [("host", "x"), ("x-b", "1"), ("x-a", "é\udcff"), ("x-b", "2")]
    assert head.first["x-b"] == "1"
    assert (head.modern, head.closes, head.chunked, head.declared_bytes) == (True, False, False, None)


@pytest.mark.parametrize(
    ("target", "host"), [(b"http://y/b", "y"), (b"http://a:b@y.z:81/b", "y.z:81"), (b"/b", "x"), (b"//y/b", "x")]
)
def test_host_of_an_absolute_target_replaces_the_field(target: bytes, host: str) -> None:
    [head] = parse(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n").heads
    assert head.first["host"] == host


def test_http_1_0_head_closes_the_connection() -> None:
    [head] = parse(b"GET /a HTTP/1.0\r\n\r\n").heads
    assert (head.modern, head.closes) == (False, True)


ENDLESS = {
    "target": (b"GET /" + b"a" * 60_000, f"broke: {TOO_LONG}"),
    "field": (HEAD + b"X: " + b"a" * 60_000, f"broke: {TOO_LONG}"),
    "name": (HEAD + b"X" * 60_000, f"broke: {TOO_LONG}"),
    "chunk extension": (CHUNKED + b"2;" + b"a" * 60_000, f"broke: {TOO_LONG}"),
    "trailer": (CHUNKED + b"0\r\nX: " + b"a" * 60_000, f"broke: {TOO_LONG}"),
    "trailers": (CHUNKED + b"0\r\n" + b"X: a\r\n" * 1000, f"broke: {TOO_LONG}"),
    "fields": (HEAD + b"X: a\r\n" * 1000, f"broke: {TOO_LONG}"),
}


@pytest.mark.parametrize(("message", "events"), ENDLESS.values(), ids=ENDLESS)
def test_endless_head_chunk_extension_or_trailer_is_refused(message: bytes, events: str) -> None:
    assert parse(message, 1000).events[-1] == events


@pytest.mark.parametrize("cut", [0, 1000])
@pytest.mark.parametrize("trailers", [b"X: a\r\n" * 200, b"X: " + b"a" * 20_000 + b"\r\n"])
def test_trailers_are_bounded_however_they_are_cut(trailers: bytes, cut: int) -> None:
    recorded = parse(CHUNKED + b"2\r\nhi\r\n0\r\n" + trailers + b"\r\n" + REQUEST, cut)
    assert recorded.events == ["POST /a", "body hi", f"broke: {TOO_LONG}"]


def test_limits_apply_to_each_request_of_a_connection() -> None:
    recorded = RecordingListener()
    parser = RequestParser(recorded, HeaderNames(), HttpLimits(max_line_bytes=50, max_field_bytes=50))
    for _ in range(100):
        for part in (b"GET /a HT", b"TP/1.1\r\nHost: x\r\n\r\n"):
            parser.parse(memoryview(part))
    assert recorded.events == ["GET /a", "end"] * 100


def test_limits_apply_to_the_target_each_field_and_their_number() -> None:
    limits = HttpLimits(max_line_bytes=10, max_field_bytes=20, max_headers=3)

    def fault(target: str, fields: str) -> str:
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"
        return parse(head.encode(), limits=limits).heads[0].fault

    assert fault("/" + "a" * 9, "") == ""
    assert fault("/" + "a" * 10, "") == TOO_LONG
    assert fault("/", f"X: {'a' * 19}\r\n") == ""
    assert fault("/", f"X: {'a' * 20}\r\n") == TOO_LONG
    assert fault("/", "X: a\r\nX: a\r\n") == ""
    assert fault("/", "X: a\r\nX: a\r\nX: a\r\n") == TOO_LONG


def test_exception_in_the_listener_is_not_blamed_on_the_caller() -> None:
    class Broken(RecordingListener):
        def head_came(self, head: ParsedHead) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RequestParser(Broken(), HeaderNames(), HttpLimits()).parse(memoryview(REQUEST))


def test_header_name_cache_is_bounded() -> None:
    names = HeaderNames()
    assert [names[b"X-%d" % number] for number in (1, 2)] == ["x-1", "x-2"]
    for number in range(2000):
        assert names[b"X-%d" % number] == f"x-{number}"
    assert len(names) < 1000


def test_httptools_refuses_what_we_leave_to_it() -> None:
    """A new version of httptools that is lenient would let requests be read in two ways."""
    for message in (
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"X : a\r\n\r\n",
        HEAD + b"X: a\r\n b\r\n\r\n",
        HEAD + b"X: a\n\r\n",
        HEAD + b"X: \0\r\n\r\n",
        CHUNKED + b"2 \r\nhi\r\n",
    ):
        with pytest.raises(httptools.HttpParserError):
            httptools.HttpRequestParser(object()).feed_data(message)
