"""Hostile bytes from an upstream, segmented anywhere, give an answer or an `UpstreamError`, and never a hang.

The tests drive the connection's transport by hand, so that thousands of exchanges need no sockets.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any, TypeVar, cast

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.hosts import Reach
from proxy.edges.upstream.answer import HELD_BYTES, HttpAnswer
from proxy.edges.upstream.connection import HEAD_BYTES, UpstreamConnection
from proxy.edges.upstream.shared_state import READ_BYTES, SharedState
from proxy.errors import CallerGoneError, UpstreamCutError, UpstreamError
from proxy.http_rules.headers import answer_fields
from proxy.records.messages import UpstreamCall
from proxy.records.request_fields import RequestFields

T = TypeVar("T")


class Transport:
    """Records what is written, and whether it is closed and being read."""

    def __init__(self) -> None:
        self.closing = False
        self.reading = True
        self.output = b""

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.output += data

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0


class Pool:
    """Records released and forgotten connections."""

    def __init__(self) -> None:
        self.released = 0
        self.forgotten = False

    def release(self, connection: UpstreamConnection) -> None:
        self.released += 1

    def forget(self, connection: UpstreamConnection) -> None:
        self.forgotten = True


class Rig:
    """One connection with one exchange under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, method: str = "POST") -> None:
        self.shared = SharedState(loop)
        self.pool = Pool()
        self.transport = Transport()
        self.connection = UpstreamConnection(self.pool, self.shared, cast("Any", None))
        self.connection.connection_made(cast("asyncio.Transport", self.transport))
        self.method = method
        self.asking = self.ask()
        assert step(self.asking) is None

    def ask(self) -> Coroutine[Any, Any, HttpAnswer]:
        call = UpstreamCall("http://h/", self.method, RequestFields(), b"{}", perf_counter() + 60, 60, Reach.OPERATOR)
        answer = HttpAnswer(call, self.connection)
        self.connection.begin(answer, call, b"POST / HTTP/1.1\r\n\r\n")
        return _answered(answer)

    def receive(self, data: bytes) -> None:
        for start in range(0, len(data), READ_BYTES):
            piece = data[start : start + READ_BYTES]
            if not self.transport.closing:
                self.shared.buffer[: len(piece)] = piece
                self.connection.buffer_updated(len(piece))

    def end(self) -> None:
        if not self.transport.closing:
            self.connection.eof_received()
        self.transport.closing = True
        self.connection.connection_lost(None)


async def _answered(answer: HttpAnswer) -> HttpAnswer:
    """The answer with its head, as the client awaits it."""
    assert answer.waiter is not None
    await answer.waiter
    if not answer.status and answer.failure is not None:
        raise answer.failure
    return answer


def step(coroutine: Coroutine[Any, Any, T]) -> T | None:
    """Run until it waits (None) or ends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    return None


def result(rig: Rig) -> tuple[int, bytes, UpstreamError | None]:
    """Status, body and error after the connection's end, when no read may wait."""
    try:
        answer = step(rig.asking)
    except UpstreamError as error:
        return 0, b"", error
    assert answer is not None, "still waiting after the end of the connection"
    body = b""
    ended = False
    while True:
        try:
            piece = step(answer.read())
        except UpstreamCutError as error:
            return answer.status, body, error
        assert piece is not None, "a read still waits after the end of the connection"
        if not piece:
            return answer.status, body, None
        assert not ended, "something followed what was said to be the last"
        body = body + piece
        ended = answer.ended


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


TOKENS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 500 x\r\n", b"HTTP/1.1 204 \r\n"),
        *(b"content-length: 5\r\n", b"content-length: 0\r\n", b"Content-Length:\t3\r\n", b"content-length: 99999\r\n"),
        *(b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip\r\n", b"connection: close\r\n"),
        *(
            b"\r\n",
            b"\n",
            b"\r",
            b"hello",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"0\r\nx: y\r\n\r\n",
            b"ffffffffffffffff1\r\n",
        ),
        *(
            b"x: \xff\x00\r\n",
            b" folded\r\n",
            b": \r\n",
            b"upgrade: h2c\r\n",
            b"HTTP/1.1 101 x\r\n",
            b"\x00",
            b"data: x\n\n",
        ),
    ]
)
HOSTILE = st.one_of(st.binary(max_size=300), st.lists(TOKENS, max_size=12).map(b"".join))
CUTS = st.lists(st.integers(0, 10_000), max_size=8)


@given(data=HOSTILE, cuts=CUTS, order=st.booleans())
@example(data=b"HTTP/1.1 200 OK\r\n\r\nhello", cuts=[3], order=True)
@example(data=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", cuts=[], order=True)
def test_any_bytes_give_an_answer_or_an_upstream_error(
    loop: asyncio.AbstractEventLoop, data: bytes, cuts: list[int], order: bool
) -> None:
    rig = Rig(loop)
    for piece in pieces(data, cuts):
        rig.receive(piece)
    if order:
        rig.end()
    else:
        rig.transport.closing = True
        rig.connection.connection_lost(ConnectionResetError("104 from 10.0.0.1"))
    status, _, error = result(rig)
    assert (status == 0) <= (error is not None)
    assert status == 0 or 200 <= status <= 599
    assert rig.pool.forgotten
    assert error is None or "10.0.0.1" not in str(error)


class Reference:
    """The fields of the first final head, as the parser reports them when it is asked to."""

    def __init__(self, data: bytes) -> None:
        self.fields: list[tuple[str, str]] = []
        self.is_final = False
        self._parser = httptools.HttpResponseParser(self)
        with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_final:
            self.fields.append((name.decode("utf-8", "replace").lower(), value.decode("utf-8", "replace")))

    def on_headers_complete(self) -> None:
        self.is_final = self.is_final or self._parser.get_status_code() >= 200
        if not self.is_final:
            self.fields.clear()


NAMES = st.sampled_from(
    ["Content-Type", "content-encoding", "CONNECTION", "transfer-encoding", "x-request-id", "request-id", "Retry-After"]
)
VALUES = st.sampled_from(["a/b", "", "gzip", "identity", "close", "chunked", "b\t ", "x, request-id", "x: y"])
FIELD_LINES = st.builds("{}:{}{}\r\n".format, NAMES, st.sampled_from(["", " ", "\t", "  "]), VALUES)
BEFORE = st.sampled_from(["", "\r\n", "HTTP/1.1 100 x\r\n\r\n", "HTTP/1.1 103 x\r\ncontent-type: i/i\r\n\r\n"])


@given(
    before=st.lists(BEFORE, max_size=3).map("".join),
    lines=st.lists(FIELD_LINES, max_size=6).map("".join),
    odd=st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\0", b"\xff", b"\r\n folded", b"\r\n\r\n"]),
    at=st.integers(0, 500),
    cuts=CUTS,
)
@example(before="", lines="content-encoding: gzip\r\n", odd=b"", at=0, cuts=[])
def test_fields_are_those_that_the_parser_accepts(
    loop: asyncio.AbstractEventLoop, before: str, lines: str, odd: bytes, at: int, cuts: list[int]
) -> None:
    """Segmentation changes no field; neither interim answers nor the body add to them."""
    head = f"{before}HTTP/1.1 200 OK\r\n{lines}content-length: 40\r\n\r\n".encode()
    at %= len(head)
    wire = head[:at] + odd + head[at:] + b"\r\ncontent-encoding: br\r\n\r\nconnection: a\r\n"
    rig = Rig(loop)
    reference = Reference(wire)
    for piece in pieces(wire, cuts):
        rig.receive(piece)
    rig.end()
    with suppress(UpstreamError):
        answer = step(rig.asking)
        assert answer is not None
        assert reference.is_final
        assert answer.headers == reference.fields
        assert answer.fields == answer_fields(reference.fields)


@given(
    body=st.binary(max_size=2000),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    chunked=st.booleans(),
    cuts=CUTS,
)
def test_valid_answer_is_read_whole_whatever_the_segmentation(
    loop: asyncio.AbstractEventLoop, body: bytes, sizes: list[int], chunked: bool, cuts: list[int]
) -> None:
    rig = Rig(loop)
    wire = b"HTTP/1.1 200 OK\r\nx-a: b\r\n"
    if chunked:
        wire += b"transfer-encoding: chunked\r\n\r\n"
        rest = body
        for size in sizes:
            piece = rest[:size]
            rest = rest[size:]
            wire += b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        wire += b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b""
        wire += b"0\r\n\r\n"
    else:
        wire += b"content-length: %d\r\n\r\n%b" % (len(body), body)
    for piece in pieces(wire, cuts):
        rig.receive(piece)
    assert rig.pool.released == 1
    assert not rig.transport.closing
    assert result(rig) == (200, body, None)


@given(body=st.binary(max_size=2000), cut=st.integers(1, 2100))
def test_body_that_came_with_its_head_is_there_at_once(loop: asyncio.AbstractEventLoop, body: bytes, cut: int) -> None:
    wire = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    at_once = Rig(loop)
    in_two = Rig(loop)
    of_head = Rig(loop, "HEAD")
    at_once.receive(wire)
    for piece in (wire[:cut], wire[cut:]):
        if piece:
            in_two.receive(piece)
    of_head.receive(wire)
    answers = [step(rig.asking) for rig in (at_once, in_two, of_head)]
    is_apart = len(wire) - len(body) <= cut < len(wire)
    expected = [body, None if is_apart else body, b""]
    for answer, whole, read in zip(answers, expected, (body, body, b""), strict=True):
        assert answer is not None
        assert answer.whole == whole
        assert step(answer.read()) == read


@pytest.mark.parametrize(("trailer", "reused"), [(b"x-sum: 1", True), (b"connection: close", False)])
def test_trailers_are_no_fields_of_any_answer(loop: asyncio.AbstractEventLoop, trailer: bytes, reused: bool) -> None:
    """Trailers are fields neither of their answer nor of the next one; one that ends the connection ends it."""
    rig = Rig(loop)
    rig.receive(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + trailer + b"\r\n\r\n")
    answer = step(rig.asking)
    assert answer is not None
    assert answer.headers == [("transfer-encoding", "chunked")]
    assert (rig.pool.released, rig.transport.closing) == (reused, not reused)
    if reused:
        again = rig.ask()
        assert step(again) is None
        rig.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        answer = step(again)
        assert answer is not None
        assert answer.headers == [("content-length", "0")]


@pytest.mark.parametrize("more", [b"", b"hello", b"0\r\n\r\n"])
def test_answer_to_head_ends_with_its_head(loop: asyncio.AbstractEventLoop, more: bytes) -> None:
    for split in (False, True):
        rig = Rig(loop, "HEAD")
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
        for data in (head[:20], head[20:] + more) if split else (head + more,):
            rig.receive(data)
        answer = step(rig.asking)
        assert answer is not None
        assert answer.headers == [("content-length", "5")]
        assert step(answer.read()) == b""
        assert rig.transport.closing, "nobody can tell whether a body follows"


@given(data=HOSTILE)
def test_exchange_never_sees_bytes_of_the_one_before(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    """Extra bytes after an answer close the connection, unless they are blank lines."""
    rig = Rig(loop)
    rig.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + data)
    assert result(rig)[:2] == (200, b"ok")
    if rig.pool.released:
        assert not data.strip(b"\r\n")
        again = rig.ask()
        assert step(again) is None
        rig.receive(b"HTTP/1.1 201 OK\r\ncontent-length: 0\r\n\r\n")
        answer = step(again)
        assert answer is not None
        assert answer.status == 201


@given(sizes=st.lists(st.integers(1, 3 * READ_BYTES), min_size=1, max_size=10))
def test_unread_bytes_are_bounded(loop: asyncio.AbstractEventLoop, sizes: list[int]) -> None:
    rig = Rig(loop)
    rig.receive(b"HTTP/1.1 200 OK\r\n\r\n")
    answer = step(rig.asking)
    assert answer is not None
    for size in sizes:
        if rig.transport.reading:
            rig.receive(b"x" * min(size, READ_BYTES))
        assert answer.held_bytes <= HELD_BYTES + READ_BYTES
        assert rig.transport.reading == (answer.held_bytes <= HELD_BYTES)
    step(answer.read())
    assert rig.transport.reading
    answer.close()
    assert rig.transport.closing


STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def poured(loop: asyncio.AbstractEventLoop, first: bytes, take: Callable[[bytes], bool]) -> tuple[Rig, "Pouring"]:
    """A connection whose head and `first` have arrived, with `pour` running."""
    rig = Rig(loop)
    rig.receive(STREAM + first)
    answer = step(rig.asking)
    assert answer is not None
    return rig, Pouring(answer, take)


class Taker:
    """Records its pieces. `room`: its return values in order; True once they are used up."""

    def __init__(self, *room: bool) -> None:
        self.got: list[bytes] = []
        self.room = list(room)

    def __call__(self, piece: bytes) -> bool:
        self.got.append(piece)
        return self.room.pop(0) if self.room else True


class Pouring:
    """`HttpAnswer.pour`, stepped by hand. `now()`: its result, or None while it waits."""

    def __init__(self, answer: HttpAnswer, take: Callable[[bytes], bool]) -> None:
        self.answer = answer
        self.take = take
        self.again()

    def again(self) -> bool | None:
        self._coroutine = self.answer.pour(self.take)
        return self.now()

    def now(self) -> bool | None:
        return step(self._coroutine)

    def cancel(self) -> None:
        assert self.answer.waiter is not None
        self.answer.waiter.cancel()


def test_pour_passes_a_piece_within_the_read_that_brought_it(loop: asyncio.AbstractEventLoop) -> None:
    take = Taker()
    rig, pouring = poured(loop, b"3\r\none\r\n", take)
    assert take.got == [b"one"]
    rig.receive(b"3\r\ntwo\r\n")
    rig.receive(b"5\r\nthree\r\n4\r\nfour\r\n0\r\n\r\n")
    assert take.got == [b"one", b"two", b"threefour"], "before the task that waits had a turn"
    assert not rig.transport.closing
    assert rig.pool.released == 1
    assert (pouring.now(), pouring.answer.ended) == (True, True)


def test_pieces_without_room_are_held_until_the_next_pour(loop: asyncio.AbstractEventLoop) -> None:
    take = Taker(True, False)
    rig, pouring = poured(loop, b"3\r\none\r\n", take)
    for piece in (b"3\r\ntwo\r\n", b"5\r\nthree\r\n", b"0\r\n\r\n"):
        rig.receive(piece)
    assert take.got == [b"one", b"two"]
    assert (pouring.now(), pouring.answer.ended) == (False, False)
    assert pouring.again()
    assert (take.got, pouring.answer.ended) == ([b"one", b"two", b"three"], True)


def test_reading_pauses_while_the_sink_has_no_room(loop: asyncio.AbstractEventLoop) -> None:
    rig, pouring = poured(loop, b"3\r\none\r\n", lambda _: False)
    for _ in range(17):
        assert pouring.answer.held_bytes <= HELD_BYTES
        rig.receive(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    assert not rig.transport.reading
    assert HELD_BYTES < pouring.answer.held_bytes <= HELD_BYTES + READ_BYTES
    assert pouring.again() is False
    assert rig.transport.reading


def test_pieces_before_a_cut_are_passed_and_the_cut_is_raised(loop: asyncio.AbstractEventLoop) -> None:
    take = Taker()
    rig, pouring = poured(loop, b"", take)
    rig.receive(b"3\r\none\r\nno chunk")
    assert take.got == [b"one"]
    with pytest.raises(UpstreamCutError):
        pouring.now()


def test_error_of_the_sink_is_raised_by_pour(loop: asyncio.AbstractEventLoop) -> None:
    pieces: list[bytes] = []

    def take(piece: bytes) -> bool:
        pieces.append(piece)
        raise ZeroDivisionError

    rig, pouring = poured(loop, b"", take)
    rig.receive(b"3\r\none\r\n")
    rig.receive(b"3\r\ntwo\r\n")
    assert pieces == [b"one"], "nothing more is given to who has failed"
    with pytest.raises(ZeroDivisionError):
        pouring.now()
    assert not rig.transport.closing, "whoever waits decides what becomes of the answer"


def test_time_that_the_sink_takes_is_known(loop: asyncio.AbstractEventLoop) -> None:
    def take(piece: bytes) -> bool:
        sleep(0.01)
        return True

    rig, pouring = poured(loop, b"3\r\none\r\n", take)
    assert pouring.answer.taking_s >= 0.01, "of a piece that was there before"
    rig.receive(b"3\r\ntwo\r\n")
    assert pouring.answer.taking_s >= 0.02, "of a piece within its read"
    rig.receive(b"5\r\nthree\r\n0\r\n\r\n")
    assert pouring.answer.taking_s >= 0.03, "of the last piece"


@pytest.mark.parametrize("fault", [CallerGoneError, None])
def test_cancelled_pour_ends_the_exchange(loop: asyncio.AbstractEventLoop, fault: type[Exception] | None) -> None:
    """The sink may be given more before its task runs; it can no longer send that."""
    pieces: list[bytes] = []

    def take(piece: bytes) -> bool:
        if piece == b"two" and fault is not None:
            raise fault
        pieces.append(piece)
        return piece == b"one"

    rig, pouring = poured(loop, b"3\r\none\r\n", take)
    pouring.cancel()
    rig.receive(b"3\r\ntwo\r\n")
    rig.receive(b"5\r\nthree\r\n")
    with pytest.raises(asyncio.CancelledError):
        pouring.now()
    assert b"three" not in pieces
    assert rig.transport.closing


def test_head_of_the_largest_size_is_accepted(loop: asyncio.AbstractEventLoop) -> None:
    rig = Rig(loop)
    field = b"x-filler: " + b"v" * 86 + b"\r\n"
    rig.receive(b"HTTP/1.1 200 OK\r\n")
    for _ in range(HEAD_BYTES // len(field) - 1):
        rig.receive(field)
    rig.receive(b"content-length: 0\r\n\r\n")
    assert result(rig) == (200, b"", None)
