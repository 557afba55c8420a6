"""A request with a head seen before means what the parser says it means, however its bytes are changed or cut."""

import asyncio
import re
from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.edges.http import heads_seen, server
from proxy.edges.http.connection import MAX_QUEUED, MAX_UNREAD_BYTES, Connection, Handle
from proxy.edges.http.heads_seen import HeadsSeen
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.http.server import HttpServer
from proxy.records.messages import ALIKE, Incoming, Outgoing
from proxy.refusals import RefusalError
from tests.fakes.front import listening
from tests.proxy.budget.canned_wires import FirstDescriptor
from tests.waiting import PATIENCE_S

LINE = b"POST /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
HEAD = LINE + b"Content-Length: 2\r\nX-A: 1\r\n\r\n"
REQUEST = HEAD + b"hi"
LAST = LINE + b"Content-Length: 2\r\n\r\nhi"
"""The length is the head's last field."""
_DATE = re.compile(rb"date: [^\r]*\r\n")


class SinkTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"socket": FirstDescriptor()})
        self.output = b""
        self.closing = self.paused = False

    def write(self, data: Any) -> None:
        self.output += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def write_eof(self) -> None:
        self.output += b"FIN"

    def close(self) -> None:
        self.closing = True


class Forgetful(HeadsSeen):
    """Keeps nothing, so that each request is parsed."""

    def remember(self, data: memoryview, head: ParsedHead, body_bytes: int) -> None:
        """Keep nothing."""


class CountedHeads(HeadsSeen):
    """Counts how often it is asked, and with success."""

    lookups = recalled = 0

    def recall(self, buffer: memoryview, nbytes: int) -> tuple[ParsedHead, bytes] | None:
        request = super().recall(buffer, nbytes)
        self.lookups += 1
        self.recalled += request is not None
        return request


def connect(handle: Handle, heads: HeadsSeen) -> tuple[Connection, SinkTransport]:
    http = HttpServer(handle)
    http.loop = asyncio.get_running_loop()
    http.heads_seen = heads
    connection = Connection(http)
    transport = SinkTransport()
    connection.connection_made(transport)
    return connection, transport


async def arrive(connection: Connection, read: bytes) -> None:
    """One read, and time for its requests to be answered."""
    await asyncio.sleep(0)  # a real connection's task runs before the first read
    buffer = connection.get_buffer(-1)
    buffer[: len(read)] = read
    connection.buffer_updated(len(read))
    buffer[: len(read)] = bytes(len(read))  # by the next read of any connection
    for _ in range(4):
        await asyncio.sleep(0)


async def meanings(reads: list[bytes], heads: HeadsSeen) -> tuple[list[Any], bytes]:
    """Return the requests of one connection that the pipeline gets, and the bytes that are written to it."""
    requests: list[Any] = []

    async def note(incoming: Incoming, outgoing: Outgoing) -> None:
        body = b""
        try:
            while part := await incoming.read():
                body += part
        except RefusalError as error:
            body += repr(error).encode()
        names = [name for name, _ in incoming.headers]
        values = [(incoming.header(name), list(incoming.header_values(name))) for name in (*names, "content-length")]
        head = (incoming.method, incoming.request_target, incoming.declared_bytes, repr(incoming.fault))
        requests.append((head, list(incoming.headers), values, body))
        outgoing.start(200, [], whole=b"ok")

    connection, transport = connect(note, heads)
    for read in reads:
        if read and not transport.closing:
            await arrive(connection, read)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    return requests, _DATE.sub(b"", transport.output)


def remembering(*requests: bytes) -> HeadsSeen:
    heads = HeadsSeen()
    for request in requests:
        asyncio.run(meanings([request] * 2, heads))
    return heads


def test_connection_that_sends_only_known_heads_makes_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser with its callbacks costs memory, which thousands of open streams would multiply."""
    heads = remembering(REQUEST)
    parsers = list[object]()
    monkeypatch.setattr(httptools, "HttpRequestParser", parsers.append)
    requests, output = asyncio.run(meanings([REQUEST] * 2, heads))
    assert len(requests) == 2 == output.count(b"200 OK")
    assert not parsers


def agree(reads: list[bytes]) -> None:
    """Parsed anew, and by a server that knows both heads, `reads` are the same requests with the same answers."""
    parsed = asyncio.run(meanings(reads, Forgetful()))
    assert asyncio.run(meanings(reads, remembering(REQUEST, LAST, OURS))) == parsed
    assert asyncio.run(meanings(reads * 3, HeadsSeen())) == asyncio.run(meanings(reads * 3, Forgetful()))


def recalled(heads: HeadsSeen, request: bytes) -> tuple[ParsedHead, bytes] | None:
    return heads.recall(memoryview(request + b"of an earlier read"), len(request))


def is_known(heads: HeadsSeen, request: bytes) -> bool:
    return recalled(heads, request) is not None


def with_length(length: bytes, body: bytes = b"hi", request: bytes = REQUEST) -> bytes:
    return request.replace(b"Length: 2", b"Length: " + length).removesuffix(b"hi") + body


def test_known_head_is_recalled_with_each_request_s_own_body() -> None:
    heads = remembering(REQUEST)
    first, second = (recalled(heads, with_length(b"%d" % n, b"x" * n)) for n in (5, 5000))
    assert first is not None
    assert second is not None
    assert first[0] is second[0]
    assert (first[1], second[1]) == (b"x" * 5, b"x" * 5000)
    agree([with_length(b"5", b"hello"), REQUEST, with_length(b"0", b""), with_length(b"0002"), REQUEST])


def test_head_is_kept_when_it_comes_a_second_time() -> None:
    heads = HeadsSeen()
    asyncio.run(meanings([REQUEST], heads))
    assert not is_known(heads, REQUEST)
    asyncio.run(meanings([with_length(b"3", b"abc")], heads))
    assert is_known(heads, REQUEST)
    heads.drop()
    assert not is_known(heads, REQUEST)


NOT_RECALLED = {
    "cut in the body": REQUEST[:-1],
    "cut in the head": HEAD[:-1],
    "nothing": b"",
    "byte after it": REQUEST + b"\r",
    "another after it": REQUEST * 2,
    "empty line before": b"\r\n" + REQUEST,
    "sign": with_length(b"+2"),
    "underscore": with_length(b"0_2"),
    "blank after the digits": with_length(b"2 "),
    "blank before the digits": with_length(b" 2"),
    "no digits": with_length(b"", b""),
    "other digits": with_length("２".encode()),
    "NUL": with_length(b"2\0"),
    "many zeros": with_length(b"0" * 30 + b"2"),
    "huge": with_length(b"9" * 5000),
    "list": with_length(b"2, 2"),
    "second length": with_length(b"2\r\nContent-Length: 2"),
    "second length before": REQUEST.replace(b"Host", b"Content-Length: 3\r\nHost"),
    "bare LF": REQUEST.replace(b"2\r\n", b"2\n"),
    "bare CR": REQUEST.replace(b"2\r\n", b"2\r"),
    "folded": REQUEST.replace(b"2\r\n", b"2\r\n 3\r\n"),
    "coding": REQUEST.replace(b"X-A: 1", b"Transfer-Encoding: chunked"),
    "other case": REQUEST.replace(b"Host", b"host"),
    "other name": REQUEST.replace(b"Content-Length", b"Content-Strength"),
    "no name of a length": REQUEST.replace(b"Content-Length", b"Content_Length"),
    "other version": REQUEST.replace(b"1.1", b"1.0"),
    "other credential": REQUEST.replace(b"Bearer k", b"Bearer l"),
    "length elsewhere": LINE.replace(b"x\r\n", b"x\r\nX-Length: 2\r\n") + b"X-A: 1\r\n\r\nhi",
    "end of the head in the length": with_length(b"2\r\n\r\n"),
    "last: bare CR": with_length(b"2\r", request=LAST),
    "last: cut after the digits": with_length(b"0", request=LAST).removesuffix(b"\r\n\r\nhi"),
    "last: cut after the line": LAST.removesuffix(b"\r\nhi"),
}


@pytest.mark.parametrize("request_", NOT_RECALLED.values(), ids=NOT_RECALLED)
def test_anything_else_is_parsed(request_: bytes) -> None:
    assert not is_known(remembering(REQUEST, LAST), request_)
    agree([REQUEST, REQUEST, request_, REQUEST])
    agree([LAST, request_, b"5\r\n\r\nhello", LAST])


NOT_KEPT = {
    "upgrade": HEAD.replace(b"X-A: 1", b"Connection: upgrade\r\nUpgrade: a") + b"hi",
    "expect": HEAD.replace(b"X-A: 1", b"Expect: 100-continue") + b"hi",
    "chunked": HEAD.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "no body": HEAD.replace(b"Content-Length: 2\r\n", b""),
    "connect": REQUEST.replace(b"POST /a", b"CONNECT a:1"),
    "connect without a body": HEAD.replace(b"POST /a", b"CONNECT a:1").replace(b"Length: 2", b"Length: 0"),
    "HTTP/1.0": REQUEST.replace(b"1.1", b"1.0"),
    "HTTP/1.0 kept alive": HEAD.replace(b"1.1", b"1.0").replace(b"X-A: 1", b"Connection: keep-alive") + b"hi",
    "two hosts": HEAD.replace(b"X-A: 1", b"Host: x") + b"hi",
    "misleading name before": REQUEST.replace(b"Host", b"X-Strength: 2\r\nHost"),
    "long": HEAD.replace(b"X-A: 1", b"X-A: " + b"1" * heads_seen.MAX_HEAD_BYTES) + b"hi",
    "long digits": REQUEST.replace(b"Length: 2", b"Length: " + b"0" * 10 + b"2"),
}


@pytest.mark.parametrize("request_", NOT_KEPT.values(), ids=NOT_KEPT)
def test_other_heads_are_not_kept(request_: bytes) -> None:
    heads = HeadsSeen()
    for _ in range(3):
        asyncio.run(meanings([request_], heads))
    assert not is_known(heads, request_)
    agree([request_, request_, REQUEST])


OURS = REQUEST.replace(b"Bearer k", b"Bearer tg_a.b")
"""The only field before the length that has one of our keys is the credential's."""


def of_caller(caller: bytes, request: bytes = OURS) -> bytes:
    return request.replace(b"tg_a.b", caller)


LAST_OF_ALL = OURS.replace(b"X-A: 1", b"Connection: close")
AFTER_THE_LAST = {
    "nothing": [],
    "another request": [OURS],
    "the same again": [LAST_OF_ALL],
    "many requests": [OURS] * (MAX_QUEUED + 2),
    "beginning of a request": [OURS[:9]],
    "rubbish": [b"\0\r\n"],
    "empty line": [b"\r\n"],
}


@pytest.mark.parametrize("reads", AFTER_THE_LAST.values(), ids=AFTER_THE_LAST)
@pytest.mark.parametrize("first", [[LAST_OF_ALL], [LAST_OF_ALL[:-1], b"i"]], ids=["whole", "in pieces"])
@pytest.mark.parametrize("is_quick", [True, False])
def test_last_request_of_a_connection_is_recalled_and_stays_the_last(
    first: list[bytes], reads: list[bytes], is_quick: bool
) -> None:
    """Clients that make a connection for each call say so in each head."""
    heads = remembering(LAST_OF_ALL, LAST_OF_ALL)
    assert is_known(heads, LAST_OF_ALL)
    with_others = [b"".join([*first, *reads])] if is_quick else [*first, *reads]
    requests, output = asyncio.run(meanings(with_others, heads))
    assert len(requests) == output.count(b"200 OK") == output.count(b"connection: close") == 1
    assert (requests, output) == asyncio.run(meanings(with_others, Forgetful()))


def test_last_request_of_another_caller_is_the_last_too() -> None:
    heads = remembering(LAST_OF_ALL, LAST_OF_ALL)
    request = recalled(heads, of_caller(b"tg_c-d", LAST_OF_ALL))
    assert request is not None
    assert request[0].closes
    agree([of_caller(b"tg_%d-0" % number, LAST_OF_ALL) for number in range(4)])


def test_head_that_came_with_other_bytes_is_not_kept() -> None:
    heads = HeadsSeen()
    for reads in ([REQUEST * 2], [HEAD[:-1], b"\nhi"], [REQUEST + b"\r\n"], [REQUEST + b"POST"], [b"\r\n" + REQUEST]):
        asyncio.run(meanings(reads * 3, heads))
    assert not is_known(heads, REQUEST)


def test_beginning_of_a_long_head_is_not_taken_for_a_head() -> None:
    """The first bytes of one head are all of the other, but for the digits and the end."""
    padding = b"1" * (heads_seen.MAX_HEAD_BYTES - len(LINE + b"Content-Length: 100000\r\nX-A: "))
    long = LINE + b"Content-Length: 100000\r\nX-A: " + padding + b"\r\nX-B: 2\r\n\r\n" + b"x" * 100_000
    short = LINE + b"Content-Length: 10\r\nX-A: " + padding + b"\r\n\r\n" + b"x" * 10
    assert not is_known(remembering(long, long), short)
    agree([long, long, short])


def test_recalled_body_is_handed_over_whole_and_once() -> None:
    bodies: list[tuple[bytes, bytes]] = []

    async def take(incoming: Incoming, outgoing: Outgoing) -> None:
        body = await incoming.read()
        bodies.append((body, await incoming.read()))
        outgoing.start(200, [], whole=b"ok")

    async def serve(heads: HeadsSeen) -> None:
        connection, _ = connect(take, heads)
        for body in (b"hi", b"", b"x" * 5000):
            await arrive(connection, with_length(b"%d" % len(body), body))
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(serve(remembering(REQUEST)))
    assert bodies == [(b"hi", b""), (b"", b""), (b"x" * 5000, b"")]


def begins(heads: HeadsSeen, read: bytes) -> tuple[bytes, int] | None:
    """Return the body's first bytes and declared size that are recalled of an incomplete request."""
    if is_known(heads, read):
        return None
    recalled = heads.recall_begun(memoryview(read))
    return recalled and recalled[1:]


@pytest.mark.parametrize("requests", [[REQUEST], [HEAD, b"hi"], [HEAD + b"h", b"i"]])
def test_head_is_recalled_when_its_body_is_still_to_come(requests: list[bytes]) -> None:
    heads = HeadsSeen()
    for _ in range(2):
        assert begins(heads, HEAD) is None
        asyncio.run(meanings(requests, heads))
    assert begins(heads, HEAD) == (b"", 2)
    assert begins(heads, with_length(b"300000", b"x" * 200_000)) == (b"x" * 200_000, 300_000)
    assert begins(heads, with_length(b"999999999")) == (b"hi", 999_999_999)
    agree([REQUEST, HEAD, b"hi" + REQUEST, HEAD + b"h", b"i", with_length(b"300000", b"x" * 200_000), b"x" * 100_000])


NOT_BEGUN = ("cut in the head", "byte after it", "another after it", "huge", "no digits", "many zeros", "sign")


@pytest.mark.parametrize("name", NOT_BEGUN)
def test_anything_else_does_not_begin_a_known_request(name: str) -> None:
    assert begins(remembering(REQUEST), NOT_RECALLED[name]) is None


@pytest.mark.parametrize("length", [b"+9", b"09", b"9 ", b" 9", b"0x9", b"9, 9", b"9_0", b"1000000000", b"9\r\n9"])
def test_only_plain_lengths_begin_a_known_request(length: bytes) -> None:
    assert begins(remembering(REQUEST), with_length(length)) is None
    agree([REQUEST, REQUEST, with_length(length), b"2345678", REQUEST])


@st.composite
def changed_requests(draw: st.DrawFn) -> list[bytes]:
    """Requests like `REQUEST`, with bytes replaced, inserted and cut out, in reads of any length."""
    stream = b""
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.sampled_from([0, 1, 2, 9, 10]))
        message = with_length(
            b"%d" % length, b"h" * length, draw(st.sampled_from([REQUEST, LAST, OURS, of_caller(b"tg_c.d")]))
        )
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            start = draw(st.integers(0, len(message)))
            pieces = st.sampled_from(
                [b"", b"\r", b"\n", b"\r\n", b"\r\n ", b"\0", b"0", b"1", b":", b" ", HEAD, REQUEST]
            )
            message = (
                message[:start] + draw(pieces | st.binary(max_size=3)) + message[start + draw(st.integers(0, 3)) :]
            )
        stream += message
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=3)) + [len(REQUEST)] * draw(st.integers(0, 1)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@given(changed_requests())
@example([HEAD, b"hi", REQUEST])
@example([REQUEST, REQUEST * 2, REQUEST])
@example([LAST, LAST, LAST[:-3], LAST[-3:]])
@example([b"\r", b"\n", REQUEST, b"\r\n", REQUEST])
@example([REQUEST, b"POST /a HT", b"TP/1.1\r\nHost: x\r\n\r\n", REQUEST])
def test_changed_requests_mean_the_same(reads: list[bytes]) -> None:
    agree([REQUEST, *reads, REQUEST])


@given(changed_requests())
@example([HEAD, b"h", b"iPOST"])
@example([HEAD + b"h", b"i" + HEAD, b"hi"])
def test_cut_requests_mean_what_they_mean_whole(reads: list[bytes]) -> None:
    """Bytes behind the cut of a body are not parsed."""
    requests, output = asyncio.run(meanings([b"".join(reads)], Forgetful()))
    cut_seen, cut_written = asyncio.run(meanings(reads, Forgetful()))
    assert cut_seen == requests
    assert cut_written == output


@given(st.lists(st.binary(max_size=80) | st.just(REQUEST), max_size=4))
def test_arbitrary_bytes_mean_the_same(reads: list[bytes]) -> None:
    agree(reads)


def test_requests_ahead_of_their_turn_pause_reading() -> None:
    async def hold(*_: object) -> None:
        await asyncio.Event().wait()

    async def sent_ahead(heads: HeadsSeen) -> int:
        connection, transport = connect(hold, heads)
        count = 0
        while not transport.paused:
            await arrive(connection, REQUEST)
            count += 1
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return count

    assert asyncio.run(asyncio.wait_for(sent_ahead(remembering(REQUEST)), PATIENCE_S)) == 1 + MAX_QUEUED


def test_large_body_with_a_known_head_is_recalled_and_bounds_what_is_read_ahead() -> None:
    async def hold(*_: object) -> None:
        await asyncio.Event().wait()

    async def pauses(heads: HeadsSeen) -> list[bool]:
        connection, transport = connect(hold, heads)
        paused = []
        for _ in range(2):
            await arrive(connection, with_length(b"%d" % (MAX_UNREAD_BYTES + 1), b"x" * (MAX_UNREAD_BYTES + 1)))
            paused.append(transport.paused)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return paused

    assert asyncio.run(pauses(remembering(REQUEST))) == [False, True]
    agree([REQUEST, REQUEST, with_length(b"300000", b"x" * 300_000), REQUEST])


@pytest.mark.parametrize("reads_body", [True, False])
def test_recalled_bodies_are_no_longer_unread_once_answered(reads_body: bool) -> None:
    async def answer(incoming: Incoming, outgoing: Outgoing) -> None:
        if reads_body:
            await incoming.read()
        outgoing.start(200, [], whole=b"ok")

    async def unread_bytes(heads: HeadsSeen) -> int:
        connection, _ = connect(answer, heads)
        for _ in range(3):
            await arrive(connection, REQUEST)
        unread = connection.unread_bytes
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return unread

    assert asyncio.run(unread_bytes(remembering(REQUEST))) == 0


def test_heads_that_are_not_used_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_seen, "KEPT_BYTES", 2 * 3 * 2200)
    heads = [REQUEST.replace(b"X-A: 1", b"X-A: %d" % number) for number in range(8)]
    memory = remembering(*heads)
    assert [is_known(memory, head) for head in (*heads[:3], *heads[6:])] == [False] * 3 + [True] * 2
    for head in 3 * heads[:6]:
        assert is_known(memory, heads[7]), "it is in use"
        asyncio.run(meanings([head] * 2, memory))


def test_heads_are_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = remembering(REQUEST)

    async def watch(keep_s: float) -> bool:
        monkeypatch.setattr(server, "KEEP_HEADS_S", keep_s)
        async with listening(options=HttpLimits(watch_interval_s=0.01)) as front:
            front.server.heads_seen = heads
            await asyncio.sleep(0.05)
        return is_known(heads, REQUEST)

    assert asyncio.run(watch(keep_s=1e9))
    assert not asyncio.run(watch(keep_s=0.0))


def test_heads_of_many_callers_on_one_connection_are_all_recalled() -> None:
    """A balancer sends them so; others never repeat."""
    heads = CountedHeads()
    callers = [REQUEST.replace(b"Bearer k", b"Bearer k%d" % number) for number in range(100)]
    strange = [REQUEST.replace(b"X-A: 1", b"X-A: %d" % (number + 2)) for number in range(100)]
    reads = [read for pair in zip(callers, strange, strict=True) for read in pair]
    asyncio.run(meanings(reads + callers + callers, heads))
    assert heads.recalled == 100


def test_head_of_another_caller_is_made_of_one_that_came_twice() -> None:
    heads = remembering(OURS)
    request = recalled(heads, of_caller(b"tg_c-d"))
    assert request is not None
    head, body = request
    assert body == b"hi"
    assert (head.first["authorization"], head.values("authorization")) == ("Bearer tg_c-d", ("Bearer tg_c-d",))
    assert ("authorization", "Bearer tg_c-d") in head.fields
    own = recalled(heads, OURS)
    assert own is not None
    assert own[0].first["authorization"] == "Bearer tg_a.b"
    assert head.facts == {ALIKE: own[0].facts}
    assert head.facts[ALIKE] is own[0].facts


def test_head_of_another_caller_repeats_from_its_second_coming() -> None:
    heads = remembering(OURS)
    coming = [recalled(heads, of_caller(b"tg_c-d")) for _ in range(3)]
    first, second, third = (request[0] for request in coming if request is not None)
    assert [first.repeats, second.repeats] == [False, True]
    assert third is second


NOT_ALIKE = {
    "other size": of_caller(b"tg_c"),
    "not one of our keys": of_caller(b"sk_a.b"),
    "byte that no key has": of_caller(b"tg_a b"),
    "tab": of_caller(b"tg_a\tb"),
    "NUL": of_caller(b"tg_a\0b"),
    "bare LF": of_caller(b"tg_a\nb"),
    "bare CR": of_caller(b"tg_a\rb"),
    "byte above ASCII": of_caller(b"tg_a\xffb"),
    "more fields": of_caller(b"tg_c.d\r\nX-B: 1"),
    "second length": of_caller(b"tg_c.d\r\nContent-Length: 3"),
    "folded": of_caller(b"tg_c.d\r\n e"),
    "other field": of_caller(b"tg_c.d").replace(b"X-A: 1", b"X-A: 2"),
    "other path": of_caller(b"tg_c.d").replace(b"/a", b"/b"),
    "cut in the body": of_caller(b"tg_c.d")[:-1],
    "byte after it": of_caller(b"tg_c.d") + b"\r",
}


@pytest.mark.parametrize("request_", NOT_ALIKE.values(), ids=NOT_ALIKE)
def test_head_that_differs_in_more_than_the_caller_is_parsed(request_: bytes) -> None:
    assert not is_known(remembering(OURS), request_)
    callers = [of_caller(b"tg_%d-0" % number) for number in range(3)]
    agree([*callers, request_, OURS])


@pytest.mark.parametrize(
    "request_",
    [
        OURS.replace(b"Authorization: Bearer", b"X-Request-Id:"),
        OURS.replace(b"X-A", b"Authorization"),
        OURS.replace(b"Host", b"Authorization: Bearer tg_a.b\r\nHost"),
        OURS.replace(b"/a", b"/tg_a.b"),
    ],
    ids=["no credential", "second credential", "repeated", "in the target"],
)
def test_other_heads_stand_for_no_other_caller(request_: bytes) -> None:
    heads = remembering(*(of_caller(b"tg_%d-0" % number, request_) for number in range(3)))
    assert not is_known(heads, of_caller(b"tg_c-d", request_))
    agree([of_caller(b"tg_%d-0" % number, request_) for number in range(4)])


@pytest.mark.parametrize("field", [b"Authorization: Bearer", b"authorization:", b"X-Api-Key:"])
def test_callers_may_present_their_credential_as_clients_do(field: bytes) -> None:
    request = OURS.replace(b"Authorization: Bearer", field)
    assert is_known(remembering(request), of_caller(b"tg_c-d", request))
    agree([of_caller(b"tg_%d-0" % number, request) for number in range(4)])


def test_heads_that_never_repeat_displace_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_seen, "SEEN_ONCE", 8)
    memory = remembering(REQUEST)
    for number in range(50):
        asyncio.run(meanings([REQUEST.replace(b"X-A: 1", b"X-A: %d" % (number + 2))], memory))
    assert is_known(memory, REQUEST)
