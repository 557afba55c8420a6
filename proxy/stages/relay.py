"""Step 6: pass the answer on as it arrives and count its tokens, but withhold the last bytes (499 502 504).

Each piece of a stream is passed on within the read that brought it; the request's task sleeps until the end. The
upstream is read no faster than the caller reads. Upstream errors are turned into the caller's here.
"""

import logging
from asyncio import TimerHandle, get_running_loop, sleep
from collections.abc import Coroutine
from time import perf_counter, time_ns
from typing import Any

from policy.billing import event_details, event_end
from proxy.accounting.cost_bounds.bounded_counter import BoundedCounter
from proxy.accounting.metering import AnswerReader, Bill, UnreadAnswer, bill_so_far
from proxy.accounting.recovery import ORPHAN_STATUS, progress_record
from proxy.answer_head import begin
from proxy.answers import Answered, EndCause
from proxy.dialects.failures import is_empty_failure
from proxy.dialects.finish import HELD_S
from proxy.error_bodies import MAX_ERROR_BYTES, read_error
from proxy.errors import UpstreamError
from proxy.exchange import Answering, RequestContext
from proxy.http_rules.masking import mask_fields
from proxy.http_rules.upstream_errors import discreet, error_for_caller, host_of, raise_target_fault, without_secrets
from proxy.json_text.json_bounds import SMALL_BYTES
from proxy.parts import Dialects, Journal
from proxy.progress_clock import Flowing, ProgressClock
from proxy.records.head_facts import Purpose
from proxy.records.messages import UpstreamAnswer
from proxy.refusals import BadUpstreamAnswerError
from proxy.time_slices import Slices

_COUNT = Purpose.COUNT  # a global is ten times as fast as a member
BAD_GATEWAY = 502
EVENT_STREAM = "text/event-stream"
JSON = "application/json"
"""The content type of a translated answer, whatever the target's label."""
FAILED = EndCause("error_in_answer")
"""The cause in metrics and access log if an upstream reported an error under a 2xx."""
SLICE_BYTES = 8_192
"""Bytes of a stream to read before other requests get the event loop: they may hold thousands of frames."""
UNCOUNTED_BYTES = 8_192
"""Bytes of a stream to pass on before what was delivered is counted, all at once."""
MAX_UNKNOWN_STOPS = 100
"""The most words that a worker logs."""
log = logging.getLogger(__name__)


class Relay:
    """Passes answers to callers."""

    def __init__(self, journal: Journal, dialects: Dialects, slices: Slices, most_reported: int) -> None:
        self.journal = journal
        self.clock = ProgressClock(journal.progress)
        self._dialects = dialects
        self._slices = slices
        self._most_reported = most_reported
        self._unknown_stops = UnknownStops()

    def answer(self, context: RequestContext, answering: Answering) -> Answered | Coroutine[Any, Any, Answered]:
        """Return the answer if it is complete; otherwise a coroutine that reads it.

        Complete is one that came whole and reports its usage, as nearly all do that are no streams. Through a passage
        it would take 62 Python calls and 1 560 bytecodes more: 22 µs of a governed call of 53.
        """
        upstream = answering.upstream
        status = upstream.status
        whole = upstream.whole
        if whole is None:  # else its connection serves other calls already
            context.upstream = upstream
        if not 200 <= status < 300:
            return self._error(context, answering)
        content_type, is_encoded, returned, _, longest = upstream.fields
        credential = answering.credential
        if credential is not None and len(credential) <= longest:  # no spelling of a secret is shorter than itself
            returned = mask_fields(returned, credential)
        if is_encoded:
            raise BadUpstreamAnswerError  # we asked for identity, and cannot meter what we cannot read
        if whole is not None:
            read = self._dialects.whole_answer(context, context.attempt, content_type, whole, self._most_reported)
            if read is not None:
                final, context.reported = read
                if context.request_bytes > SMALL_BYTES:  # a small one is gone in a moment
                    _free(context)
                context.answered = True
                return Answered(status, returned, final)
            if context.facts.purpose is _COUNT:
                target = answering.admitted.route.endpoint.target
                if (stand_in := self._dialects.stand_in_answer(context, target, status, whole)) is not None:
                    return _answered_here(stand_in)
        headers = upstream.headers
        unread = self._dialects.unread_answer(context, context.attempt, content_type, headers, self._most_reported)
        return self._pass_on(context, answering, unread, Answered(status, returned, b""))

    async def _pass_on(
        self, context: RequestContext, answering: Answering, unread: UnreadAnswer, head: Answered
    ) -> Answered:
        """Pass an answer on. Its reader holds an answer that is not a stream until its end."""
        upstream = answering.upstream
        context.delivered = self._dialects.delivered_counter(context, upstream.fields.content_type)
        spend = answering.admitted.route.spend
        if spend is not None and spend.is_hard and context.facts.purpose is not _COUNT:
            context.delivered = BoundedCounter(context.delivered, context.cost_bound.most_counted(context.granted_cap))
        _free(context)
        if context.attempt.is_translated:
            media = EVENT_STREAM if context.streaming else JSON
            others = [field for field in head.headers if field[0] != "content-type"]
            head.headers = (*others, ("content-type", media))
        passage = _Passage(self, context, answering, unread, head)
        try:
            while not passage.reader.ended and (passage.rest or not upstream.ended):
                if passage.is_due:
                    has_room = passage.take_held()
                elif passage.rest:
                    await sleep(0)
                    has_room = passage.take_rest()
                else:
                    has_room = await _poured(context, upstream, passage)
                if not has_room and not passage.reader.ended:
                    await context.outgoing.room()
            passage.read_rest()
        except UpstreamError:
            if passage.reader.waits:
                passage.take_held()  # what came before the break leaves before it shows
            if not passage.reader.ended:
                raise
        finally:
            passage.end()
        reader = passage.reader
        if reader.ended:
            upstream.let_end()
        if context.load is not None and context.load.held_bytes > SMALL_BYTES:
            workspace = answering.admitted.route.endpoint.workspace_id
            size_bytes = context.load.held_bytes
            await self._slices.run(workspace, reader.prepare_end_in_slices(), size_bytes, is_paid=True)
        head.final = reader.end()
        context.notice = context.attempt.notice  # only now a translated answer knows what it leaves out
        return self._ended(context, answering, reader, head)

    def _ended(self, context: RequestContext, answering: Answering, reader: AnswerReader, head: Answered) -> Answered:
        """The end of an answer whose last bytes are in `head`."""
        if reader.failed:
            if context.outgoing.has_started:
                self._count_failed(context, head.final)
            return self._failed(context, answering, head)
        if reader.unknown_stop:
            word = _without_secrets(answering, repr(reader.unknown_stop).encode())
            self._unknown_stops.note(answering.admitted.route.plan.slug, word.decode())
        # A response that failed before it said anything is no answer: bill only what was reported.
        if reader.reported.tokens is None:
            delivered = context.delivered
            assert delivered is not None
            if is_empty_failure(head.final):
                context.answered = delivered.tokens(None).output > 0
                return head
            delivered.pending.append(head.final)
        context.answered = True
        return head

    @staticmethod
    def _count_failed(context: RequestContext, final: bytes) -> None:
        """Bill a stream that failed for the text that it brought, if it brought some."""
        delivered = context.delivered
        assert delivered is not None
        delivered.pending.append(final)
        context.answered = context.answered or delivered.tokens(None).output > 0

    async def _error(self, context: RequestContext, answering: Answering) -> Answered:
        """The upstream's error, in the caller's form."""
        upstream = answering.upstream
        target = answering.admitted.route.endpoint.target
        raise_target_fault(upstream.status, target)
        body = b"" if upstream.fields.encoded else _without_secrets(answering, await read_error(context, upstream))
        stand_in = self._dialects.stand_in_answer(context, target, upstream.status, body)
        if stand_in is not None:
            return _answered_here(stand_in)
        return self._error_of(context, answering, upstream.status, body)

    def _failed(self, context: RequestContext, answering: Answering, head: Answered) -> Answered:
        """An error under a 2xx. The caller gets an error if no head was sent; metrics and log always do."""
        context.end_cause = FAILED
        final = _without_secrets(
            answering, head.final if context.outgoing.has_started else head.final[:MAX_ERROR_BYTES]
        )
        if not context.outgoing.has_started:
            return self._error_of(context, answering, BAD_GATEWAY, final)
        return Answered(BAD_GATEWAY, head.headers, final)

    def _error_of(self, context: RequestContext, answering: Answering, status: int, body: bytes) -> Answered:
        target = answering.admitted.route.endpoint.target
        attempt = context.attempt
        dialect = attempt.caller_dialect if attempt.is_translated else None
        answered = error_for_caller(status, answering.upstream.headers, body, target, dialect)
        return discreet(answered, answering.credential, host_of(answering.url))


class _Passage:
    """One answer in transit: each piece goes through the reader to the caller as it arrives."""

    __slots__ = (
        *("_answering", "_context", "_count_at", "_delivered", "_due_at", "_flowing", "_head", "_looked_at"),
        *("_outgoing", "_pending", "_recorded", "_relay", "_timer", "_unread", "_wait", "is_due", "reader", "rest"),
    )

    def __init__(
        self, relay: Relay, context: RequestContext, answering: Answering, unread: UnreadAnswer, head: Answered
    ) -> None:
        assert context.delivered is not None
        self._delivered = context.delivered
        self._pending = context.delivered.pending
        self._relay = relay
        self._context = context
        self._outgoing = context.outgoing
        self._answering = answering
        self._unread = unread
        self.reader: AnswerReader = unread
        self._head = head
        self._flowing = False
        """The caller has the head and the first bytes of a stream, and progress is recorded."""
        self._looked_at: set[Flowing] | None = None
        self._count_at = 0
        self._wait = 0
        """The reader's wait that was seen last."""
        self._due_at = 0.0
        self._timer: TimerHandle | None = None
        self.is_due = False
        """The reader has waited long enough: `take_held` is to be called."""
        self.rest = b""
        """Bytes that wait until other requests had the event loop."""

    def relay_chunk(self, data: bytes) -> bool:
        """Pass a piece on. False: the caller has no room for more, or `rest` is to be taken first.

        For a stream that flows this is the quick way: the other takes 11 Python calls and 390 bytecodes more a chunk.
        """
        if not self._flowing or len(data) > SLICE_BYTES:
            return self._take_first_or_large(data)
        reader = self.reader
        outgoing = self._outgoing
        some = reader.feed(data)
        if not reader.flows:
            return self._take_unusual(some)
        if not some:
            return True
        has_room = outgoing.write(some)
        self._pending.append(some)
        if outgoing.sent_bytes > self._count_at:
            self._count()
        return has_room

    def take_rest(self) -> bool:
        """Pass on what `relay_chunk` left."""
        rest = self.rest
        self.rest = b""
        return self.relay_chunk(rest)

    def _take_first_or_large(self, data: bytes) -> bool:
        context = self._context
        reader = self.reader
        if reader is self._unread:
            if not self._choose(data):
                return self._deliver(b"")  # the head of a stream that begins with white space need not wait
            data = self._unread.begun
            reader = self.reader
        if len(data) > SLICE_BYTES and reader.streams:
            data, self.rest = data[:SLICE_BYTES], data[SLICE_BYTES:]
        if not reader.streams and not context.answered:
            # An answer that is held until its end counts against the worker's memory, as requests do (529).
            assert context.load is not None
            context.load.hold(len(data))
        return self._take_unusual(reader.feed(data)) and not self.rest

    def _take_unusual(self, some: bytes) -> bool:
        """Send what a read let go that may be more than output. False: also if the answer has ended."""
        if self.reader.waits != self._wait:
            self._watch()
        return self._deliver(some) and not self.reader.ended

    def _deliver(self, some: bytes) -> bool:
        """Send what the reader let go."""
        context = self._context
        outgoing = self._outgoing
        reader = self.reader
        if reader.failed:
            some = _without_secrets(self._answering, some)
        if some:
            self._pending.append(some)
            self._count()
            if not context.answered and not reader.failed:
                self._begin_progress()
                context.answered = True
        has_room = True
        if not outgoing.has_started and (some or (reader.streams and context.streaming)):
            begin(context, self._head)
            has_room = outgoing.write(some)
        elif some:
            has_room = outgoing.write(some)
        self._flowing = reader.streams and outgoing.has_started and context.answered
        return has_room

    def take_held(self) -> bool:
        """Pass on what the reader held, or let it end the answer. False: the caller has no room for more."""
        self.is_due = False
        return self._take_unusual(self.reader.waited())

    def _watch(self) -> None:
        """The reader waits for something else than before, or no more. A timer that runs already goes on."""
        self._wait = self.reader.waits
        if not self._wait:
            return
        loop = get_running_loop()
        self._due_at = loop.time() + HELD_S
        if self._timer is None:
            self._timer = loop.call_later(HELD_S, self._look)

    def _look(self) -> None:
        """Let the held frames leave if the wait is over."""
        self._timer = None
        if not self.reader.waits or self.is_due:
            return
        loop = get_running_loop()
        if self._due_at > loop.time():  # another wait began meanwhile
            self._timer = loop.call_at(self._due_at, self._look)
        else:
            self.is_due = True
            self._answering.upstream.interrupt()

    def read_rest(self) -> None:
        """Read what no reader was chosen for: all of the answer has come."""
        if self.reader is self._unread:
            self._choose(b"", is_all=True)
            self._take_first_or_large(self._unread.begun)

    def _choose(self, data: bytes, *, is_all: bool = False) -> bool:
        """Choose the reader by the first bytes. Returns False if more of them are needed."""
        reader = self._unread.reader(data, is_all=is_all)
        if reader is None:
            return False
        self.reader = self._context.reader = reader
        return True

    def _begin_progress(self) -> None:
        """Record the first bytes now, and progress from now on."""
        self._recorded: Bill | None = None
        record = self.progress(time_ns() // 1_000_000)
        assert record is not None
        self._relay.journal.answered(record)
        self._looked_at = self._relay.clock.add(self)

    def progress(self, now_ms: int) -> bytes | None:
        """The record of what was delivered so far; None if the last one says the same."""
        bill = bill_so_far(self.reader.reported, self._delivered)
        if bill == self._recorded:
            return None
        self._recorded = bill
        end = event_end(now_ms, ORPHAN_STATUS, bill.tokens, event_details(bill.details, bill.source))
        return progress_record(self._answering.admitted.event_key, end)

    def _count(self) -> None:
        """Count what was passed on."""
        self._delivered.count()
        self._count_at = self._outgoing.sent_bytes + UNCOUNTED_BYTES

    def end(self) -> None:
        """Record no more, however the passage ended. The bill is made from the counter."""
        if self._looked_at is not None:
            self._looked_at.discard(self)
        if self._timer is not None:
            self._timer.cancel()


async def _poured(context: RequestContext, upstream: UpstreamAnswer, passage: _Passage) -> bool:
    """Pass on what arrives, until the end or until `passage` takes no more. Measures the wait for the upstream."""
    began = perf_counter() - upstream.taking_s
    try:
        return await upstream.pour(passage.relay_chunk)
    finally:  # `take` ran meanwhile: that was no wait for the upstream
        context.upstream_s += perf_counter() - upstream.taking_s - began


def _answered_here(body: bytes) -> Answered:
    return Answered(200, (("content-type", JSON),), body)


def _free(context: RequestContext) -> None:
    """Free the request: its answer may take minutes, and its body may have 100 MB."""
    context.body = b""
    context.json = {}
    context.outline = None
    assert context.load is not None
    context.load.drop()


def _without_secrets(answering: Answering, body: bytes) -> bytes:
    return without_secrets(body, answering.credential, host_of(answering.url))


class UnknownStops:
    """Words of vendors for the end of an answer that are unknown here. Logs each once per worker."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, slug: str, word: str) -> None:
        """`word`: without secrets, as Python writes it."""
        if word in self._logged or len(self._logged) >= MAX_UNKNOWN_STOPS:
            return
        self._logged.add(word)
        log.warning(
            "A target ended a translated answer with a reason that is unknown here (slug %s: %s). Callers see an"
            " ordinary end. If it means anything else, please report it.",
            *(slug, word),
        )
