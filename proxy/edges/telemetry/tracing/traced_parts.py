"""Parts of the pipeline that record spans: each wraps one of the worker's parts, and does nothing else."""

from asyncio import CancelledError, Future
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial

from opentelemetry.trace import Span, Tracer

from policy.endpoints import Target
from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from policy.spend.effective import BalanceBound, SpendPlan
from proxy.accounting.journaled_call import GoOn, JournaledCall, UnwrittenRecord
from proxy.accounting.request_report import RequestReport
from proxy.accounting.reservations import BALANCE, SPEND, LimitHit, Taken
from proxy.accounting.spend_taken import SpendHit, SpendTaken, SpendUnavailable
from proxy.capacity.call_load import Load
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.registry import Dialects
from proxy.edges.telemetry.tracing.call_trace import CallTrace, fail
from proxy.edges.telemetry.tracing.exemplars import Exemplars
from proxy.json_text.segmented_body import RequestBody
from proxy.parts import Counters, Journal, Meters, Replicas, SpendCounters, UpstreamClient
from proxy.records.messages import Incoming, Outgoing, Received, UpstreamAnswer, UpstreamCall
from proxy.replicas.replica_calls import CallEnded, ReplicaCall, Wanted
from runtime.tracing.current import CURRENT

Handler = Callable[[Incoming, Outgoing], Awaitable[None]]
PLATFORM_SPAN = "replica"
SpendAnswer = SpendTaken | SpendHit | SpendUnavailable
SpendQuestion = Awaitable[SpendAnswer]


def current_call() -> CallTrace | None:
    """The call that the running task works for."""
    work = CURRENT.get()
    return work if isinstance(work, CallTrace) and work.is_open else None


def traced_handler(tracer: Tracer, handle: Handler) -> Handler:
    """Serve requests by `handle`, each under a server span. `TracedMeters` ends it."""

    def serve(incoming: Incoming, outgoing: Outgoing) -> Awaitable[None]:
        CURRENT.set(CallTrace(tracer, incoming))  # the task is the connection's; its next request replaces this
        return handle(incoming, outgoing)

    return serve


class TracedCounters:
    """Records `admit` spans."""

    def __init__(self, counters: Counters) -> None:
        self._ask = counters.ask
        self.abandon = counters.abandon
        self.numbers = counters.numbers
        self.settle = counters.settle
        self.give_back = counters.give_back

    def ask(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Awaitable[Taken | LimitHit]:
        question = self._ask(plan, estimate, further)
        call = current_call()

        return question if call is None or not call.is_recorded else self._awaited(question, call.child("admit"))

    async def _awaited(self, question: Awaitable[Taken | LimitHit], span: Span) -> Taken | LimitHit:
        try:
            answer = await question
            span.set_attributes(_outcome(answer))
            return answer
        except BaseException as error:
            if isinstance(error, CancelledError):
                self.abandon(question)
            fail(span, type(error).__name__)
            raise
        finally:
            span.end()


def _outcome(answer: Taken | LimitHit) -> Mapping[str, str]:
    if isinstance(answer, Taken):
        return {"tollgate.limit.outcome": "admitted"}
    limit = answer.bound.limit
    return {
        "tollgate.limit.outcome": "refused",
        "tollgate.limit.type": limit.type.value,
        "tollgate.limit.unit": limit.unit.value,
    }


class TracedSpend:
    """Records `spend` spans."""

    def __init__(self, spend: SpendCounters) -> None:
        self._ask = spend.ask
        self.abandon = spend.abandon
        self.end = spend.end
        self.give_back = spend.give_back

    def ask(self, plan: SpendPlan, event_key: str, picos: int, least: int = 0) -> SpendQuestion:
        """The same question, as it may be abandoned. Its answer ends the span."""
        question = self._ask(plan, event_key, picos, least)
        call = current_call()
        if call is not None and call.is_recorded and isinstance(question, Future):
            question.add_done_callback(partial(_end_spend, call.child("spend")))
        return question


def _end_spend(span: Span, question: Future[SpendAnswer]) -> None:
    if question.cancelled():  # limits have refused the call, or it is gone
        span.set_attribute("tollgate.limit.outcome", "given_up")
    elif (error := question.exception()) is not None:
        fail(span, type(error).__name__)
    else:
        span.set_attributes(_spend_outcome(question.result()))
    span.end()


def _spend_outcome(answer: SpendAnswer) -> Mapping[str, str]:
    if isinstance(answer, SpendHit):
        bound = answer.bound
        if isinstance(bound, BalanceBound):
            return {"tollgate.limit.outcome": "refused", "tollgate.limit.type": BALANCE}
        unit = bound.limit.unit.value
        return {"tollgate.limit.outcome": "refused", "tollgate.limit.type": SPEND, "tollgate.limit.unit": unit}
    return {"tollgate.limit.outcome": "admitted" if isinstance(answer, SpendTaken) else "unavailable"}


class TracedJournal:
    """Runs what follows a call's close record in the call's context, as its task would."""

    def __init__(self, journal: Journal) -> None:
        self._close = journal.close
        self.open = journal.open
        self.answered = journal.answered
        self.progress = journal.progress

    def close(self, call: JournaledCall, record: bytes) -> UnwrittenRecord | None:
        unwritten = self._close(call, record)
        return None if unwritten is None else _InContext(unwritten)


class _InContext:
    def __init__(self, record: UnwrittenRecord) -> None:
        self._record = record

    def then(self, go_on: GoOn) -> None:
        context = copy_context()
        self._record.then(lambda refused: context.run(go_on, refused))


class TracedUpstream:
    """Records client spans, and tells upstreams their ids."""

    def __init__(self, upstream: UpstreamClient) -> None:
        self._upstream = upstream

    async def send(self, call: UpstreamCall) -> UpstreamAnswer:
        trace = current_call()
        if trace is None:
            return await self._upstream.send(call)
        trace.sends(call)
        try:
            answer = await self._upstream.send(call)
        except BaseException as error:
            trace.not_answered(error)
            raise
        trace.answered(answer.status)
        return answer


class TracedDialects(Dialects):
    """Tells a call's trace its target."""

    def build_body(self, request: Received, target: Target, attempt: DialectAttempt) -> RequestBody:
        _note_target(request, target)
        return super().build_body(request, target, attempt)


def _note_target(request: Received, target: Target) -> None:
    call = current_call()
    if call is not None and call.is_recorded:
        call.asks(target, request)


class TracedReplicas:
    """Records `replica` spans: the time until a platform call has a replica."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.wake = replicas.wake
        self.begin_background = replicas.begin_background

    def begin(self, request: Wanted, load: Load) -> ReplicaCall:
        replica_call = self._replicas.begin(request, load)
        call = current_call()
        return replica_call if call is None or not call.is_recorded else _TracedReplicaCall(replica_call, call)


class _TracedReplicaCall:
    def __init__(self, call: ReplicaCall, trace: CallTrace) -> None:
        self._call = call
        self._trace = trace
        self.answered = call.answered
        self.unreachable = call.unreachable
        self.reset = call.reset

    @property
    def waited_s(self) -> float:
        return self._call.waited_s

    @waited_s.setter
    def waited_s(self, value: float) -> None:
        self._call.waited_s = value

    async def assigned(self) -> str:
        span = self._trace.child(PLATFORM_SPAN)
        try:
            return await self._call.assigned()
        except BaseException as error:
            fail(span, type(error).__name__)
            raise
        finally:
            span.end()

    def end(self, ended: CallEnded) -> None:
        self._call.end(ended)


class TracedMeters:
    """Ends the spans of a call when it is reported, and names them in its log line and in the metrics' exemplars."""

    def __init__(self, meters: Meters, exemplars: Exemplars) -> None:
        self._finished = meters.finished
        self._exemplars = exemplars
        self.watch = meters.watch
        self.limit_decision = meters.limit_decision
        self.limit_reached = meters.limit_reached
        self.usage_not_reported = meters.usage_not_reported
        self.reservation_overrun = meters.reservation_overrun
        self.spend_overrun = meters.spend_overrun

    def finished(self, call: RequestReport) -> None:
        trace = current_call()
        if trace is not None:
            trace.finish(call)
            CURRENT.set(None)
            if trace.is_recorded:
                self._exemplars.note(call, trace.ids.trace_id)
            call.trace_id = trace.ids.trace_id
            call.span_id = trace.ids.span_id
        self._finished(call)
