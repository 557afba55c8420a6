"""Step 6: pass the answer on as it comes, metering tokens; withhold its last bytes (499 502 504).

A piece of a stream goes through within the read that brought it; the call's task sleeps until the end. Upstream's bytes
are read no faster than the caller takes them. Errors of an upstream become the caller's here.
"""

from asyncio import TimerHandle, get_running_loop, sleep
from collections.abc import Coroutine
from time import perf_counter, time_ns
from typing import Any, Protocol

from policy.billing import Tokens
from policy.endpoints import Target
from proxy.accounting.metering import AnswerReader, DeliveredCounter, tokens_so_far
from proxy.dialects.failures import is_empty_failure
from proxy.exchange import (
    Answered,
    Answering,
    Call,
    Headers,
    Received,
    UpstreamAnswer,
    UpstreamCutError,
)
from proxy.http_rules.headers import returned_headers
from proxy.http_rules.upstream_errors import error_for_caller, host_of, raise_target_fault, without_secrets
from proxy.json_text.json_bounds import SMALL_BYTES
from proxy.refusals import BadUpstreamAnswerError
from proxy.time_slices import Slices

BAD_GATEWAY = 502
MESSAGES_PATH = "/v1/messages"
"""Below it, SDKs read `request-id` from each answer."""
FAILED = "error_in_answer"
"""The cause in metrics and log where an upstream said under a 2xx that it failed."""
PROGRESS_INTERVAL_S = 1.0
"""How often at most it is noted how far a stream has come."""
SLICE_BYTES = 8_192
"""Of a stream no more goes through its reader before the loop turns: in these there is room for thousands of frames."""
MAX_ERROR_BYTES = 1 << 20
"""Of an upstream's error body no more is read."""


class Journal(Protocol):
    """Where it is noted how much of an answer has been delivered, for the bill if this worker dies."""

    def answered(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        """The first bytes of a streamed answer are about to leave."""
        ...

    def progress(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        """So much has been delivered. Never raises."""
        ...


class Dialects(Protocol):
    """How each provider's answers are read, and what callers are given of them counted."""

    def answer_reader(
        self, request: Received, target: Target, status: int, headers: Headers, most: int
    ) -> AnswerReader:
        """`most`: the largest figure of a usage report that is believed."""
        ...

    def delivered_counter(self, request: Received, reader: AnswerReader) -> DeliveredCounter: ...

    def translated_for(self, request: Received, target: Target) -> str | None:
        """The caller's dialect where the answer is translated; else None."""
        ...


class Relay:
    """Brings answers to callers."""

    def __init__(self, journal: Journal, dialects: Dialects, slices: Slices, most_reported: int) -> None:
        self.journal = journal
        self._dialects = dialects
        self._slices = slices
        self._most_reported = most_reported

    def __call__(self, call: Call, answering: Answering) -> Coroutine[Any, Any, Answered]:
        """Not a coroutine itself: it has nothing to wait for."""
        upstream, routed = answering.upstream, answering.admitted.routed
        if not 200 <= upstream.status < 300:
            return self._error(call, answering)
        if _is_encoded(upstream):
            raise BadUpstreamAnswerError  # we asked for identity; what we cannot read we cannot meter
        received, target = routed.received, routed.endpoint.target
        most = self._most_reported
        call.reader = reader = self._dialects.answer_reader(received, target, upstream.status, upstream.headers, most)
        call.delivered = delivered = self._dialects.delivered_counter(received, reader)
        # The request is through and its reader made: an answer may take minutes, and its question 100 MB.
        received.body, received.json, received.outline = b"", {}, None
        assert call.load is not None
        call.load.drop()
        return self._pass_on(call, answering, reader, delivered)

    async def _pass_on(
        self, call: Call, answering: Answering, reader: AnswerReader, delivered: DeliveredCounter
    ) -> Answered:
        """An answer that is no stream is held by its reader until its end."""
        upstream = answering.upstream
        head = Answered(upstream.status, returned_headers(upstream.headers), b"")
        passage = _Passage(self, call, answering, reader, head)
        try:
            while passage.rest or not upstream.ended:
                if not await passage.pour():
                    await call.outgoing.room()
        finally:
            passage.end()
        if call.load is not None and call.load.held_bytes > SMALL_BYTES:
            await self._slices.run(reader.prepare_end_in_slices(), call.load.held_bytes)
        head.final = reader.end()
        if reader.failed:
            return self._failed(call, answering, head)
        # A response that failed before it said anything answers nothing, and is billed only what was reported.
        if reader.reported.tokens is None:
            if is_empty_failure(head.final):
                call.answered = delivered.tokens(None).output > 0
                return head
            delivered.add(head.final)
        call.answered = True
        return head

    async def _error(self, call: Call, answering: Answering) -> Answered:
        """The upstream's error as the caller gets it."""
        upstream = answering.upstream
        raise_target_fault(upstream.status, answering.admitted.routed.endpoint.target)
        body = b"" if _is_encoded(upstream) else _discreet(answering, await _read_error(call, upstream))
        return self._error_of(answering, upstream.status, body)

    def _failed(self, call: Call, answering: Answering, head: Answered) -> Answered:
        """An error under a 2xx is told as one: to the caller if he has no head yet, to metrics and log always."""
        call.cause = FAILED
        final = _discreet(answering, head.final if call.outgoing.started else head.final[:MAX_ERROR_BYTES])
        if not call.outgoing.started:
            return self._error_of(answering, BAD_GATEWAY, final)
        return Answered(BAD_GATEWAY, head.headers, final)

    def _error_of(self, answering: Answering, status: int, body: bytes) -> Answered:
        routed = answering.admitted.routed
        target = routed.endpoint.target
        dialect = self._dialects.translated_for(routed.received, target)
        answered = error_for_caller(status, answering.upstream.headers, body, target, dialect)
        # Taken from decoded JSON, where an escape could have hidden what must not be told.
        answered.reason = _discreet(answering, answered.reason.encode("utf-8", "replace")).decode("utf-8", "replace")
        return answered


class _Passage:
    """One answer on its way: each piece goes through its reader to the caller when it comes."""

    __slots__ = (
        *("_answering", "_call", "_delivered", "_head", "_noted", "_reader", "_relay", "_streaming", "_timer"),
        *("_waiting_since", "rest"),
    )

    def __init__(self, relay: Relay, call: Call, answering: Answering, reader: AnswerReader, head: Answered) -> None:
        assert call.delivered is not None
        self._delivered = call.delivered
        self._timer: TimerHandle | None = None
        self._noted = Tokens()
        self._relay = relay
        self._call = call
        self._answering = answering
        self._reader = reader
        self._head = head
        self._streaming = reader.streams and answering.admitted.routed.received.streaming
        self._waiting_since = 0.0
        self.rest = b""
        """What has come, but waits until the loop has turned."""

    async def pour(self) -> bool:
        """Until the answer's end (True), or until the caller has no room for more of it."""
        self._waiting_since = perf_counter()
        if self.rest:
            await sleep(0)
            self._waiting_since = perf_counter()  # that was for others here, not for the upstream
            rest, self.rest = self.rest, b""
            return self._take(rest)
        try:
            return await self._answering.upstream.pour(self._take)
        finally:
            self._call.upstream_s += perf_counter() - self._waiting_since

    def _take(self, data: bytes) -> bool:
        call, outgoing, reader = self._call, self._call.outgoing, self._reader
        call.upstream_s += perf_counter() - self._waiting_since
        try:
            if len(data) > SLICE_BYTES and reader.streams:
                data, self.rest = data[:SLICE_BYTES], data[SLICE_BYTES:]
            if not reader.streams and not outgoing.started:
                # What a reader holds until its end counts against the worker's memory, as requests do (529).
                assert call.load is not None
                call.load.hold(len(data))
            some = reader.feed(data)
            if reader.failed:
                some = _discreet(self._answering, some)
            elif some:
                self._delivered.add(some)
                if not call.answered:
                    self._begin_to_note()
                    call.answered = True
            if not outgoing.started and (some or self._streaming):
                begin(call, self._head)
                return outgoing.write(some) and not self.rest
            return (not some or outgoing.write(some)) and not self.rest
        finally:
            self._waiting_since = perf_counter()

    def _begin_to_note(self) -> None:
        """From the first byte on; once a second what has come since."""
        self._noted = tokens_so_far(self._reader.reported, self._delivered)
        self._relay.journal.answered(self._answering.admitted.event_key, self._noted, time_ns() // 1_000_000)
        self._timer = get_running_loop().call_later(PROGRESS_INTERVAL_S, self._note)

    def _note(self) -> None:
        tokens = tokens_so_far(self._reader.reported, self._delivered)
        if tokens != self._noted:
            self._noted = tokens
            self._relay.journal.progress(self._answering.admitted.event_key, tokens, time_ns() // 1_000_000)
        self._timer = get_running_loop().call_later(PROGRESS_INTERVAL_S, self._note)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _is_encoded(upstream: UpstreamAnswer) -> bool:
    """We asked for identity: this nobody here can read, let alone look through for what must not be told."""
    for name, value in upstream.headers:  # noqa: SIM110  # a generator costs a call per field
        if name == "content-encoding" and value != "identity":
            return True
    return False


def begin(call: Call, head: Answered) -> None:
    """Send the head of an answer with the fields that each answer has."""
    assert call.arrived is not None
    call.status = head.status
    call.first_byte_s = perf_counter() - call.incoming.received_at
    request_id = call.arrived.request_id
    lines = f"x-request-id: {request_id}\r\n{call.rate_lines}"
    if call.arrived.path.startswith(MESSAGES_PATH) and not any(name == "request-id" for name, _ in head.headers):
        lines += f"request-id: {request_id}\r\n"
    call.outgoing.start(head.status, head.headers, lines, head.reason)


def _discreet(answering: Answering, body: bytes) -> bytes:
    return without_secrets(body, answering.credential, host_of(answering.url))


async def _read(call: Call, upstream: UpstreamAnswer) -> bytes:
    started = perf_counter()
    try:
        return await upstream.read()
    finally:
        call.upstream_s += perf_counter() - started


async def _read_error(call: Call, upstream: UpstreamAnswer) -> bytes:
    """The error's body, as far as it came: a body that breaks off does not make the status another one."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < MAX_ERROR_BYTES and (data := await _read(call, upstream)):
            parts.append(data)
            size += len(data)
    except UpstreamCutError:
        pass
    return b"".join(parts)[:MAX_ERROR_BYTES]
