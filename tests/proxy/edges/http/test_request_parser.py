"""The parser of requests, fed byte by byte and whole: what it tells, what it bounds, and where it stops."""

from collections.abc import Sequence

import httptools
import pytest

from proxy.edges.http.limits import HttpLimits
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.http.request_parser import RequestParser
from proxy.http_rules.header_names import HeaderNames

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
HI = HEAD + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"Connection: upgrade\r\nUpgrade: websocket\r\n"


class Recorded:
    """What the parser told, as text; parts of one body are joined."""

    def __init__(self) -> None:
        self.heads: list[ParsedHead] = []
        self.told: list[str] = []

    def head_came(self, head: ParsedHead) -> None:
        self.heads.append(head)
        self.told.append(f"refused: {head.fault}" if head.fault else f"{head.method} {head.target}")

    def body_came(self, part: bytes) -> None:
        if self.told[-1].startswith("body "):
            self.told[-1] += part.decode()
        else:
            self.told.append(f"body {part.decode()}")

    def body_ended(self) -> None:
        self.told.append("end")

    def broke(self, fault: str) -> None:
        self.told.append(f"broke: {fault}")


def parsed(message: bytes, cut: int = 0, limits: HttpLimits | None = None) -> Recorded:
    recorded = Recorded()
    parser = RequestParser(recorded, HeaderNames(), limits or HttpLimits())
    step = cut or len(message)
    for start in range(0, len(message), step):
        parser.parse(memoryview(message[start : start + step]))
    return recorded


ONE = ["POST /a", "body hi", "end"]
RULE, VERSION = "the request breaks a rule of HTTP", "the request's version must be HTTP/1.0 or HTTP/1.1"
TOO_LONG = "the request line or a header field is too long"
MESSAGES: dict[str, tuple[bytes, Sequence[str]]] = {
    "length": (HI, ONE),
    "three at once": (HI * 3, ONE * 3),
    "empty lines before": (b"\r\n\r\n" + HI, ONE),
    "chunked": (CHUNKED + b"1\r\nh\r\n1;a=b\r\ni\r\n0\r\nT: 1\r\n\r\n", ONE),
    "chunked, then another": (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + HI, ONE * 2),
    "upgrade with a length": (HEAD + UPGRADE + b"Content-Length: 2\r\n\r\nhi" + HI, ONE * 2),
    "upgrade with chunks": (HEAD + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + HI, ONE * 2),
    "upgrade without a body": (HEAD + UPGRADE + b"\r\n" + HI, ["POST /a", "end", *ONE]),
    "upgrade with a length, then close": (
        HEAD + b"Connection: close, upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
        ONE,
    ),
    "upgrade with a length in HTTP/1.0": (
        b"POST /a HTTP/1.0\r\n" + UPGRADE + b"Content-Length: 2\r\n\r\nhi",
        ONE,
    ),
    "length with thousands of zeros": (HEAD + b"Content-Length: " + b"0" * 5000 + b"2\r\n\r\nhi" + HI, ONE * 2),
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
    "HTTP/1.0": (b"POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", ONE),
    "RTSP that looks like HTTP": (b"\r\n" * 5 + b"GET /HTTP/1.1 RTSP/1.0\r\nHost: x\r\n\r\n", [f"refused: {VERSION}"]),
    "nothing after a refusal": (b"GET /a HTTP/1.1\r\n\r\n" + HI, [f"refused: {RULE}"]),
    "two one-letter hosts": (HEAD + b"Host: x\r\n\r\n", [f"refused: {RULE}"]),
    "after close": (HEAD + b"Connection: close\r\n\r\n" + HI, ["POST /a", "end", f"broke: {RULE}"]),
    "a broken chunk": (CHUNKED + b"2\r\nhi\r\nz", ["POST /a", "body hi", f"broke: {RULE}"]),
    "a length among trailers": (
        CHUNKED + b"2\r\nhi\r\n0\r\nContent-Length: 2\r\n\r\n",
        ["POST /a", "body hi", f"broke: {RULE}"],
    ),
}


@pytest.mark.parametrize("cut", [0, 1, 2, 7])
@pytest.mark.parametrize(("message", "told"), MESSAGES.values(), ids=MESSAGES)
def test_what_is_told_does_not_depend_on_where_reads_end(message: bytes, told: Sequence[str], cut: int) -> None:
    assert parsed(message, cut).told == told


def test_a_head_keeps_order_and_values_and_trailing_blanks_go() -> None:
    [head] = parsed(b"GET /a HTTP/1.1\r\nHost: x\r\nX-B: 1 \t\r\nx-a: \xc3\xa9\xff\r\nX-B:2\r\n\r\n").heads
    assert head.fields == [("host", "x"), ("x-b", "1"), ("x-a", "é\udcff"), ("x-b", "2")]
    assert head.first["x-b"] == "1"
    assert (head.modern, head.closes, head.chunked, head.declared_bytes) == (True, False, False, None)


def test_an_http_1_0_head_closes() -> None:
    [head] = parsed(b"GET /a HTTP/1.0\r\n\r\n").heads
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


@pytest.mark.parametrize(("message", "told"), ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_bounded(message: bytes, told: str) -> None:
    assert parsed(message, 1000).told[-1] == told


def test_the_bounds_are_of_one_request_not_of_a_connection() -> None:
    recorded = Recorded()
    parser = RequestParser(recorded, HeaderNames(), HttpLimits(max_line_bytes=50, max_field_bytes=50))
    for _ in range(100):
        for part in (b"GET /a HT", b"TP/1.1\r\nHost: x\r\n\r\n"):
            parser.parse(memoryview(part))
    assert recorded.told == ["GET /a", "end"] * 100


def test_limits_count_the_target_each_field_and_all_fields() -> None:
    limits = HttpLimits(max_line_bytes=10, max_field_bytes=20, max_headers=3)

    def fault(target: str, fields: str) -> str:
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"
        return parsed(head.encode(), limits=limits).heads[0].fault

    assert fault("/" + "a" * 9, "") == ""
    assert fault("/" + "a" * 10, "") == TOO_LONG
    assert fault("/", f"X: {'a' * 19}\r\n") == ""
    assert fault("/", f"X: {'a' * 20}\r\n") == TOO_LONG
    assert fault("/", "X: a\r\nX: a\r\n") == ""
    assert fault("/", "X: a\r\nX: a\r\nX: a\r\n") == TOO_LONG


def test_a_bug_in_what_is_told_is_no_fault_of_the_caller() -> None:
    class Broken(Recorded):
        def head_came(self, head: ParsedHead) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RequestParser(Broken(), HeaderNames(), HttpLimits()).parse(memoryview(HI))


def test_names_are_kept_up_to_a_bound() -> None:
    names = HeaderNames()
    assert [names[b"X-%d" % number] for number in (1, 2)] == ["x-1", "x-2"]
    for number in range(2000):
        assert names[b"X-%d" % number] == f"x-{number}"
    assert len(names) < 1000


def test_the_parser_refuses_by_itself_what_we_rely_on_it_for() -> None:
    """A parser that became lenient would let requests be read in two ways."""
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
