"""One HTTP/1.1 connection to an upstream, which carries one exchange at a time.

`client.py` pools connections; httptools parses answers. An exchange needs no task: the consumer of an answer waits on
one future, which the protocol's callbacks wake. Error texts never name a host, an address or a credential.
"""

import asyncio
import socket
from time import perf_counter
from typing import Protocol, cast

import httptools

from proxy.edges.upstream.answer import HELD_BYTES, HttpAnswer
from proxy.edges.upstream.answer_head import END, KNOWN_BYTES, BrokenHttpError, cached_facts_of, facts_of, wanted_fields
from proxy.edges.upstream.request_writer import RequestWriter
from proxy.edges.upstream.shared_state import SharedState
from proxy.edges.upstream.status_lines import FINAL, UnusualHead
from proxy.edges.upstream.unacknowledged import unacknowledged_bytes
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError
from proxy.records.messages import UpstreamCall

HEAD_BYTES = 65_536
"""Most bytes in a row that are not body: a head, trailers, chunk extensions, interim answers."""
END_WAIT_S = 1.0
"""Seconds until a connection is closed that does not end the message of an answer that was read."""
LAST_CHUNK = b"0\r\n\r\n"
"""The end of a chunked body without trailers."""
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110 9.2.2


class StaleConnectionError(UpstreamResetError):
    """A kept connection was closed before the request reached the upstream. The request may be sent again."""


class _NoBodyError(BrokenHttpError):
    """Stops the parser, which would wait for the body that `content-length` declares in an answer to HEAD."""


class OwningPool(Protocol):
    """The pool of a connection. `release`: the connection is free again. `forget`: it is closed."""

    def release(self, connection: "UpstreamConnection") -> None: ...
    def forget(self, connection: "UpstreamConnection") -> None: ...


class UpstreamConnection(asyncio.BufferedProtocol):
    """A connection and the exchange on it. A free connection waits in its pool."""

    __slots__ = (
        *("_answer", "_awaited", "_non_body_bytes", "_parser", "_pieces", "_pool", "_reading_paused", "_received_any"),
        *("_received_at", "_reusable", "_shared", "_sock", "_timer", "_timer_at", "_unfinished", "_unusual", "_writer"),
        *("freed_at", "loop", "on_body", "on_message_begin", "on_message_complete", "transport"),
    )

    def __init__(self, pool: OwningPool, shared: SharedState, sock: socket.socket) -> None:
        self._pool = pool
        self._shared = shared
        self._sock = sock
        self.loop = shared.loop
        self.transport: asyncio.Transport
        self._pieces: list[bytes] = []
        """Pieces of a body that the parser found in the present read."""
        self._awaited: list[None] = []
        """One entry for each answer that may begin, so that one without a request fails."""
        self._unfinished: list[None] = []
        """One entry from the end of an answer's head to the end of its body."""
        # Three of the parser's callbacks, which must cost nothing: methods of the lists, not of ours.
        self.on_body = self._pieces.append
        self.on_message_begin = self._awaited.pop
        self.on_message_complete = self._unfinished.clear
        self._parser = httptools.HttpResponseParser(self)
        self._unusual: UnusualHead | None = None
        self._answer: HttpAnswer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._writer: RequestWriter
        self._non_body_bytes = 0
        self._received_any = self._reading_paused = False
        self._reusable = True
        self._received_at = 0.0
        self.freed_at = 0.0  # since when it is free, or was before this exchange; 0: never

    # --- called by the pool -------------------------------------------------------------------------------------------

    def begin(
        self,
        answer: HttpAnswer,
        call: UpstreamCall,
        head: bytes,
        waited: bool = False,
        failure: Exception | None = None,
    ) -> None:
        """Send a request on a free connection. Once the answer's `waiter` is done, it has a status or a failure.

        `StaleConnectionError` as its failure: the request may be sent again. `waited`: until the journal had the call's
        record, or refused it with `failure`. Does not raise, because the journal calls it then.
        """
        if answer.exchange is None:  # the call was cancelled meanwhile
            return
        now = perf_counter()
        if waited:
            call.waiting_since = now
        if failure is None and self.transport.is_closing():  # since the pool handed it out: no callback would follow
            failure = StaleConnectionError("the connection was closed before it was used")
        if failure is None:
            try:
                self._answer = answer
                self._received_any = False
                self._non_body_bytes = 0
                self._awaited.append(None)
                self._unusual = None
                silent_at = now + call.idle_timeout_s
                until = silent_at if silent_at < call.deadline else call.deadline
                if self._timer is None or self._timer_at > until:  # an earlier exchange's that fires sooner will do
                    self._set_timer(until)
                call.has_begun = True
                if call.upload is None:
                    self._writer.write(head, call.body)
                else:
                    self._writer.upload(head, call.upload, self._fail)
            except Exception as error:  # noqa: BLE001  # raised again in the call's own task
                failure = error
        if failure is not None:
            answer.close()
            answer.failure = failure
            answer.wake()

    def drop(self) -> None:
        """Close at once and discard unsent bytes."""
        self._pool.forget(self)
        self._writer.stop()
        self.transport.abort()

    def await_end(self) -> None:
        """Discard the rest of the answer. Keep the connection only if the answer's end follows within `END_WAIT_S`.

        More than `HELD_BYTES` that follow pause the reading, so that the end is not seen.
        """
        answer = self._answer
        assert answer is not None  # nobody ended the exchange yet
        answer.deadline = min(answer.deadline, perf_counter() + END_WAIT_S)
        self.resume_receiving()
        self._set_timer(answer.deadline)

    def abandon(self) -> None:
        """Give up the rest of the answer: close the connection, unless nothing was sent on it."""
        if self._answer is None and not self.transport.is_closing():
            self._pool.release(self)
            return
        self._answer = None
        self.drop()

    # --- sending ------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it
        self._writer = RequestWriter(self.loop, self.transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read. Most reads are a piece of a stream that flows, or all of an answer."""
        answer = self._answer
        shared = self._shared
        if answer is None:  # bytes without a request: a 408 before an idle close, or worse
            self.drop()
            return
        self._received_at = perf_counter()
        data = shared.buffer[:nbytes]
        had_head = answer.status
        pieces = self._pieces
        try:
            if not had_head and (self._unusual is not None or not shared.received.startswith(FINAL, 0, nbytes)):
                self._check_status_lines(data)
            self._parser.feed_data(data)
        except (BrokenHttpError, httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._receive_last(answer)
            return
        piece = b"".join(pieces)  # no copy if there is one
        pieces.clear()
        sink = answer.sink
        waiter = answer.waiter
        if sink is not None and piece and self._unfinished:  # flows: pass it on without a layer between
            self._non_body_bytes = 0
            try:
                if not sink(piece):
                    answer.end_pour(has_room=False)
            except Exception as error:  # noqa: BLE001  # raised again in `pour`
                answer.fail_pour(error)
            answer.taking_s += perf_counter() - self._received_at
        elif waiter is None or waiter.done() or not answer.status or had_head or self._unfinished:
            self._receive(answer, piece, nbytes)
        else:  # all of an answer
            answer.whole = piece
            if piece:
                answer.chunks.append(piece)
            self._finish(answer, nbytes)
            waiter.set_result(True)

    def _receive(self, answer: HttpAnswer, piece: bytes, nbytes: int) -> None:
        """Take a read of any kind. `piece`: the part of the body in it."""
        if not answer.status and self._unusual is None:
            self._unusual = UnusualHead(is_final=True)
            self._unusual.are_http(self._shared.buffer[:nbytes])
        self._received_any = True
        if piece:
            answer.chunks.append(piece)
            answer.held_bytes += len(piece)
            self._non_body_bytes = 0
        else:
            self._non_body_bytes += nbytes
        if answer.status and not self._unfinished:
            self._finish(answer, nbytes)
        elif self._non_body_bytes > HEAD_BYTES:
            self._break("the upstream's head is too large")
            return
        elif answer.held_bytes > HELD_BYTES:
            self._pause_receiving()
        if answer.status:
            answer.wake()

    def _receive_last(self, answer: HttpAnswer) -> None:
        """Take a read that the parser could not take to its end: no other may follow."""
        self._received_any = True
        self._reusable = False
        if self._pieces:
            answer.chunks += self._pieces
            self._pieces.clear()
        self._break("what the upstream sent is not HTTP")

    def _check_status_lines(self, data: memoryview) -> None:
        """Take a read of a head that is not complete with it, or does not begin as nearly every one does."""
        if self._unusual is None:
            self._unusual = UnusualHead(is_final=False)
        if not self._unusual.are_http(data):
            raise BrokenHttpError("not HTTP/1.0 or HTTP/1.1")

    def resume_receiving(self) -> None:
        """Read from the socket again."""
        if self._reading_paused:
            self._reading_paused = False
            self._received_at = perf_counter()  # the idle timeout must not count the time that we paused
            self.transport.resume_reading()

    def _pause_receiving(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _finish(self, answer: HttpAnswer, nbytes: int = 0) -> None:
        """End a complete answer: release the connection if it can carry another exchange, else close it.

        `nbytes`: the size of the read that ended it.
        """
        self._answer = answer.exchange = None
        answer.complete = True
        if self._reading_paused:
            self.resume_receiving()
        if answer.fields.codings and not self._shared.received.endswith(LAST_CHUNK, 0, nbytes):
            self._pass_trailers(self._shared.received[:nbytes])
        if self._reusable and self._writer.is_free:
            self.freed_at = self._received_at
            self._pool.release(self)
        else:
            self.drop()

    def _pass_trailers(self, last: bytearray) -> None:
        """Pass the trailers that an answer's end may have. `last`: the last read of it.

        They must not concern the connection (RFC 9110 6.5.1), but one may end it, and the parser obeys: another parser
        reads what follows.
        """
        self._reusable = self._reusable and b"connection" not in last.lower()
        self._parser = httptools.HttpResponseParser(self)

    # --- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        answer = self._answer
        status = self._parser.get_status_code()
        assert answer is not None
        if 200 <= status <= 599:
            received = self._shared.received if self._unusual is None else self._unusual.final()
            answer.head = head = received[: received.find(END)]
            raw = tuple(wanted_fields(head))
            answer.fields = cached_facts_of(raw) if len(head) <= KNOWN_BYTES else facts_of(raw)
            answer.status = status
            self._reusable = self._parser.should_keep_alive()
            if answer.method == "HEAD":
                answer.whole = b""
                raise _NoBodyError
            self._unfinished.append(None)
            if status >= 400 and self._writer.is_sending:
                self._writer.stop()  # the upstream refused: stop sending the body (RFC 9112 9.3)
        elif status in (100, 102, 103):
            self._awaited.append(None)  # it has no body, so the next bytes begin an answer
            if self._unusual is not None:
                self._unusual.drop_interim()
        else:
            raise BrokenHttpError("a status outside 200 to 599 that is not 100, 102 or 103")

    # --- ends ---------------------------------------------------------------------------------------------------------

    def eof_received(self) -> None:
        answer = self._answer
        if answer is None:
            self._pool.forget(self)
        elif answer.status and not any(name in ("content-length", "transfer-encoding") for name, _ in answer.headers):
            self._finish(answer)
            answer.wake()
        else:
            self._break("the upstream closed the connection", closed_in_order=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.forget(self)
        if self._answer is not None:
            self._break("the connection to the upstream broke off")
        self._writer.stop()
        del self._parser  # it refers to our bound methods: break the cycle

    def _break(self, text: str, closed_in_order: bool = False) -> None:
        answer = self._answer
        if answer is None:
            self.drop()
        elif answer.status and not self._unfinished:
            self._finish(answer)
            answer.wake()
        elif answer.status:
            self._fail(UpstreamCutError(text))
        elif self.freed_at and not self._received_any and self._may_repeat(answer.method, closed_in_order):
            self._fail(StaleConnectionError(text))
        else:
            self._fail(UpstreamResetError(text))

    def _fail(self, failure: Exception) -> None:
        answer = self._answer
        self._answer = None
        self.drop()
        if answer is not None:
            answer.exchange = None
            answer.failure = failure
            answer.wake()

    def _may_repeat(self, method: str, closed_in_order: bool) -> bool:
        """Return whether the request may be sent again, given that no byte of an answer arrived.

        RFC 9110 9.2.2: idempotent methods may be repeated; others only by "means to detect that the original request
        was never applied". An orderly close (FIN) acknowledges all bytes that the upstream's kernel had received. If
        every byte of the request is still unacknowledged, none of it had arrived: the upstream closed the idle
        connection while the request was on its way. A reset proves nothing: acknowledgements may lag behind it.
        """
        if method in IDEMPOTENT:
            return True
        if not closed_in_order:
            return False
        unacknowledged = unacknowledged_bytes(self._sock)
        handed_over = self._writer.written_bytes - self.transport.get_write_buffer_size()
        return unacknowledged is not None and unacknowledged >= handed_over

    # --- time ---------------------------------------------------------------------------------------------------------

    def _set_timer(self, at: float) -> None:
        """Call `_on_timer` at `at` (`perf_counter` seconds)."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(0.0, at - perf_counter()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        answer = self._answer
        if answer is None:
            return
        now = perf_counter()
        if now >= answer.deadline:
            self._fail(UpstreamTimeoutError("the deadline passed"))
        elif not answer.status or self._reading_paused:
            self._set_timer(min(answer.deadline, now + answer.idle_timeout_s))
        elif now >= self._received_at + answer.idle_timeout_s:
            self._fail(UpstreamTimeoutError("the upstream fell silent"))
        else:
            self._set_timer(min(answer.deadline, self._received_at + answer.idle_timeout_s))
