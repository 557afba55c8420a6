"""The request's path: seven steps on one screen, and the shorter ways of direct and asynchronous calls.

The HTTP server calls `Pipeline.handle` once per request, in a task that it cancels when the caller disconnects.
`settle` runs in any case. Every admitted call is journaled as ended before its last byte leaves, and logged and counted
after that. The last bytes leave with the journal's write, which may come after `handle` (docs/hot-path.md).
"""

import logging
import secrets
from asyncio import CancelledError, Future, get_running_loop
from functools import partial
from time import perf_counter, time_ns

from proxy.accounting.journaled_call import UnwrittenRecord
from proxy.accounting.ulids import Ulids
from proxy.answer_head import begin
from proxy.answers import Answered, EndCause
from proxy.callers.caller_addresses import CallerAddresses
from proxy.capacity.worker_capacity import Capacity
from proxy.directory_values import Identified
from proxy.errors import CallerGoneError
from proxy.exchange import RequestContext
from proxy.http_rules.model_paths import ASYNC_ACTIONS, Action, ModelPath
from proxy.parts import Parts
from proxy.records.head_facts import Purpose
from proxy.records.messages import Incoming, Outgoing
from proxy.refusals import BUG, EXHAUSTED, OutOfDescriptorsError, RefusalError, render, row_of
from proxy.replicas.replica_calls import CallEnded
from proxy.stages import admit, async_requests, authenticate, count_tokens, dispatch, invoke, relay, route, settle
from proxy.stages.receive import Receive
from proxy.stages.spend_admission import AdmitSpend
from proxy.stages.token_callers import TokenCallers
from proxy.time_slices import Slices

log = logging.getLogger(__name__)

_COUNT = Purpose.COUNT
_INFER = Purpose.INFER
_INVOKE = Purpose.INVOKE
_LIST = Purpose.LIST  # a global is ten times as fast as a member


class Pipeline:
    """The path of all requests through one worker."""

    def __init__(self, parts: Parts) -> None:
        self._capacity = Capacity(parts.capacity)
        parts.meters.watch(self._capacity)
        self._on_exhausted = parts.on_exhausted
        ulids = Ulids(time_ns, secrets.token_bytes)
        slices = Slices()
        tokens = TokenCallers(parts.directory, parts.now_ms)
        addresses = CallerAddresses(parts.trusted_proxies)
        self._authenticate = authenticate.Authenticate(parts.directory, tokens.holder, parts.now_ms, addresses)
        self._receive = Receive(parts, ulids, slices)
        self._route = route.Route(parts.directory, parts.dialects)
        self._admit = admit.Admit(parts, ulids, AdmitSpend(parts, ulids, slices))
        self._count_tokens = count_tokens.CountTokens(parts.dialects)
        self._dispatch = dispatch.Dispatch(parts, slices)
        self._relay = relay.Relay(parts.journal, parts.dialects, slices, parts.max_reported_tokens)
        self._settle = settle.Settle(parts)
        self._invoke = invoke.Invoke(parts.directory, parts.replicas, parts.upstream, parts.dispatch)
        self._async_requests = async_requests.AsyncRequests(
            parts.async_queueing, parts.counters, parts.meters, ulids, slices
        )

    async def handle(self, incoming: Incoming, outgoing: Outgoing) -> None:
        """Serve one request: take the steps, journal the call's end, then send the last bytes.

        If only the journal is to be waited for, `_finish` sends them, and this returns before.
        """
        context = self._receive.head(incoming, outgoing)
        finishes_later = False
        try:
            try:
                answered = await self._steps(context)
                context.status = answered.status
                if (pending_record := self._settle.journal_end(context)) is not None:
                    last = partial(self._finish, context, answered)
                    if finishes_later := outgoing.finish_later(pending_record, last, len(answered.final)):
                        return
                    await _written(pending_record)
            except CallerGoneError:
                raise
            # The one broad except. Whatever goes wrong, our own bugs included: the caller gets an answer from the table
            # of refusals, the call is journaled, and an unknown error is logged with its traceback.
            except Exception as error:  # noqa: BLE001
                answered = await self._refused(context, error)
                if outgoing.has_started:
                    # Too late for an error response: cut the connection, so that the caller notices.
                    outgoing.abort()
                    return
            final = answered.final
            if not (outgoing.finish(final) if outgoing.has_started else begin(context, answered, final)):
                await outgoing.room()
        except (CancelledError, CallerGoneError) as gone:
            _mark(context, CallerGoneError())
            if isinstance(gone, CancelledError):
                raise
        finally:
            if not finishes_later:
                self._end(context)

    async def refuse(self, incoming: Incoming, outgoing: Outgoing) -> None:
        """Answer a request of a caller whose connection takes one of the last file descriptors (529)."""
        context = self._receive.head(incoming, outgoing)
        try:
            answered = self._refusal(context, OutOfDescriptorsError())
            begin(context, answered, answered.final)
        except CallerGoneError as gone:
            _mark(context, gone)
        finally:
            self._end(context)

    def _finish(self, context: RequestContext, answered: Answered, refused: Exception | None) -> None:
        """Send the last bytes of a call after `handle`: the journal has its end, or `refused` it."""
        outgoing = context.outgoing
        try:
            if refused is not None:
                answered = self._refusal(context, refused)
            if not outgoing.has_started:
                begin(context, answered, answered.final)
            elif refused is None:
                outgoing.finish(answered.final)
            else:
                outgoing.abort()
        except CallerGoneError as gone:
            _mark(context, gone)
        finally:
            self._end(context)

    async def _steps(self, context: RequestContext) -> Answered:
        """Take the steps; each needs results of the one before. Beside each: the statuses that it may refuse with."""
        context.load = load = self._capacity.enter()  # 529
        identified = self._authenticate.recalled(context.facts)
        if identified is None:  # no valid call with this head came before under this policy
            if context.incoming.fault is not None:
                raise context.incoming.fault  # 400: not HTTP. Other faults are told only to callers with a credential
            if context.incoming.method == "OPTIONS" and (preflight := self._receive.preflight(context)) is not None:
                return preflight
            local_identity = self._authenticate.known(context)  # 400 401 402 403
            identified = local_identity or await self._authenticate.confirmed(context)  # 401 503
        elif identified.terms is not None:
            self._authenticate.check_terms(context, identified, identified.terms)  # 403
        context.identified = identified
        load.claim(identified.key.workspace_id, identified.turn)  # 529
        purpose = context.facts.purpose
        if purpose is not _INFER:
            if purpose is _INVOKE:
                return await self._direct_steps(context, identified)
            if purpose is _LIST and context.incoming.method in ("GET", "HEAD"):
                return self._route.list_slugs(context, identified)  # 404
        if (reading := self._receive.body(context, load)) is not None:  # 400 404 405 408 413 415 529
            await reading
        self._route.find(context, identified)  # 403 404
        context.admitted = admitted = await self._admit.admit(context, identified)  # 402 429 503
        if purpose is _COUNT and (counted := self._count_tokens.answer(context, admitted)) is not None:
            return counted
        answering = await self._dispatch.send(context, admitted)  # 400 404 500 502 503 504 529
        answered = self._relay.answer(context, answering)  # 499 502 504
        return answered if isinstance(answered, Answered) else await answered

    async def _direct_steps(self, context: RequestContext, identified: Identified) -> Answered:
        """A direct call to a platform model, with a workspace key: no limits, no journal, no event."""
        path = self._invoke.path(context)  # 400 404 405
        if path.action in ASYNC_ACTIONS:
            return await self._async_steps(context, identified, path)
        context.direct = call = self._invoke.route(identified, path)  # 404
        if not call.target:
            return await self._invoke.wake(call)  # 404 503
        call.body = await self._receive.whole(context)  # 400 408 413 529
        context.upstream = answer = await self._invoke.send(context, call)  # 404 500 502 503 504 529
        return await self._invoke.relay(context, call, answer)  # 499 502 504

    async def _async_steps(self, context: RequestContext, identified: Identified, path: ModelPath) -> Answered:
        """A call about asynchronous requests. Other processes run them, and tell their results to webhooks."""
        requests = self._async_requests
        is_get = context.incoming.method in ("GET", "HEAD")
        requests.check_set_up()  # 503
        if path.action is Action.ASYNC_REQUEST:
            return await (requests.state if is_get else requests.cancel)(context, identified, path)  # 404 429 503
        context.direct = call = self._invoke.route(identified, path)  # 404
        if path.action is Action.ASYNC_QUEUE_STATUS:
            return await requests.figures(context, call)  # 429 503
        max_bytes = requests.max_body_bytes(identified.workspace)
        call.body = await self._receive.submission(context, max_bytes)  # 400 408 413 415 529
        return await requests.submit(context, call)  # 400 429 503

    async def _refused(self, context: RequestContext, error: Exception) -> Answered:
        answered = self._refusal(context, error)
        if (pending_record := self._settle.journal_end(context)) is not None:
            await _written(pending_record)
        return answered

    def _refusal(self, context: RequestContext, error: Exception) -> Answered:
        request_id = context.request_id
        row = row_of(error)
        if row is BUG:
            log.error("Request %s failed with a bug of the gateway. Please report it.", request_id, exc_info=error)
        elif row in EXHAUSTED:
            self._on_exhausted(error)
        _mark(context, error)
        return render(error, request_id)

    def _end(self, context: RequestContext) -> None:
        """Release what the request holds, then report it. Must not await: the task may be cancelled."""
        try:
            if not context.ended:
                self._settle.journal_end(context)
        finally:
            if context.upstream is not None:
                context.upstream.close()
            if context.replica_call is not None:
                context.replica_call.end(_call_ended(context))
            if context.load is not None:
                context.load.leave()
            self._settle.report(context)


async def _written(record: UnwrittenRecord) -> None:
    """Wait until the journal has the record. Raises the error that refused it."""
    completion: Future[None] = get_running_loop().create_future()

    def go_on(refused: Exception | None) -> None:
        if completion.done():  # this call was cancelled
            return
        if refused is None:
            completion.set_result(None)
        else:
            completion.set_exception(refused)

    record.then(go_on)
    await completion


def _mark(context: RequestContext, error: Exception) -> None:
    row = row_of(error)
    context.status = row.status
    context.end_cause = EndCause(row.cause, error.limit if isinstance(error, RefusalError) else None)


def _call_ended(context: RequestContext) -> CallEnded:
    return CallEnded(
        ended_at_ms=time_ns() // 1_000_000,
        request_id=context.request_id,
        method=context.incoming.method,
        path=context.facts.path,
        status=context.status,
        duration_s=perf_counter() - context.incoming.received_at,
    )
