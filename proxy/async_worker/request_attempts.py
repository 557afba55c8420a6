"""Attempts that have begun: sent to a replica, the answer stored, the outcome recorded in the queue.

Whatever happens, the replica's place is freed and the queue is told, or the lease ends and another process takes over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter, time_ns

from policy.hosts import Reach
from proxy.async_requests.endings import WORKER_LOST
from proxy.async_requests.outcomes import (
    BROKEN,
    BUG,
    DELETED,
    EXHAUSTED,
    SILENT,
    TIMED_OUT,
    TOO_LARGE,
    UNREACHABLE,
    UNREADABLE,
    Fault,
    fault_of_answer,
    fault_of_error,
    is_success,
    outcome_of,
)
from proxy.async_requests.queues import AttemptQueue, QueueUnavailableError
from proxy.async_requests.requests import Again, AttemptRef, Failed, Outcome, RequestAttempt, Succeeded
from proxy.async_requests.states import Status
from proxy.async_worker.answer_reading import RETRY_S, AnswerStore, discard, error_text
from proxy.async_worker.leases import Leases
from proxy.async_worker.places import Payload
from proxy.errors import PolicyUnavailableError, UpstreamError
from proxy.parts import AsyncMeters, UpstreamClient
from proxy.records.messages import UpstreamAnswer, UpstreamCall
from proxy.records.request_fields import RequestFields
from proxy.refusals import NoModelReplicaError, NoSuchModelError
from proxy.replicas.replica_calls import BackgroundCall, CallEnded
from proxy.replicas.replica_sending import send_to_replica
from runtime.exhaustion import is_exhausted

PATH = "/predict"
"""Path of the request at the replica, as for synchronous calls."""
SUCCEEDED = "succeeded"
FAILED = "failed"
AGAIN = "again"
LOST = "lost"
"""Results of attempts, for metrics. LOST: another process may have taken it over."""
CUT_OFF = 499
"""The status in the deployment's log of an attempt that this process gave up."""
_STATUSES = {
    BROKEN: 502,
    SILENT: 504,
    TOO_LARGE: 502,
    UNREADABLE: 502,
    UNREACHABLE: 503,
    TIMED_OUT: 504,
    DELETED: 404,
    EXHAUSTED: 529,
    BUG: 500,
}
"""The status there of an attempt without a complete answer."""
_FORESEEN = (UpstreamError, NoModelReplicaError, NoSuchModelError)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptParts:
    """Counterparts and settings of attempts."""

    queue: AttemptQueue
    upstream: UpstreamClient
    leases: Leases[AttemptRef]
    meters: AsyncMeters
    stream_idle_timeout_s: float
    on_exhausted: Callable[[Exception], None] = lambda error: None
    """Callback for an error that means: this process, or the machine, has run out of something."""


@dataclass(slots=True)
class _Run:
    """An attempt while it runs."""

    attempt: RequestAttempt
    call: BackgroundCall
    payload: Payload
    began: float = field(default_factory=perf_counter)
    status: int = 0
    url: str = ""
    is_over: bool = False
    """The exchange with the replica is over."""
    is_lost: bool = False

    @property
    def now_ms(self) -> int:
        """The workspace's time."""
        return self.attempt.started_at_ms + int((perf_counter() - self.began) * 1000)

    @property
    def left_s(self) -> float:
        return max(0.0, (self.attempt.run_until_ms - self.now_ms) / 1000)


class RequestAttempts:
    """Runs attempts, any number at once."""

    def __init__(self, parts: AttemptParts) -> None:
        self._parts = parts
        self._finishing: set[asyncio.Task[None]] = set()

    async def run(self, attempt: RequestAttempt, call: BackgroundCall, payload: Payload, held_since: float) -> None:
        """Run the attempt to its end. Cancelled, it hands the request back, and the attempt is used up.

        `held_since`: before the queue was asked, by the clock of the leases.
        """
        run = _Run(attempt, call, payload)
        ref = attempt.ref
        self._parts.meters.attempt_started(ref.deployment, attempt.queued_ms if ref.attempt == 1 else None)
        handed_back = Again(0, WORKER_LOST)
        outcome: Outcome | None = handed_back  # if this is cancelled
        try:
            outcome = await self._outcome(run, held_since)
        finally:
            run.is_over = True
            payload.release()
            if outcome is None or outcome is handed_back:
                run.status = CUT_OFF
            call.end(_ended(run))
            finishing = self._begin_finish(run, outcome)
        await asyncio.shield(finishing)

    async def finished(self, within_s: float) -> None:
        """Wait until the queue knows how all attempts that have run ended."""
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=within_s)
        for task in self._finishing:
            task.cancel()

    # --- at the replica -----------------------------------------------------------------------------------------------

    async def _outcome(self, run: _Run, held_since: float) -> Outcome | None:
        """None if the attempt was lost: it is not ours any more, or may soon not be."""
        try:
            async with asyncio.timeout(run.left_s) as scope:

                def lose() -> None:
                    run.is_lost = True
                    if not run.is_over:
                        scope.reschedule(asyncio.get_running_loop().time())

                self._parts.leases.hold(run.attempt.ref, held_since, lose)
                result = await self._answer(run)
        except TimeoutError:
            result = TIMED_OUT
        if run.is_lost:
            return None
        if isinstance(result, Fault):
            run.status = _STATUSES.get(result, run.status)
            return outcome_of(result, run.attempt, run.now_ms)
        return result

    async def _answer(self, run: _Run) -> Succeeded | Fault:
        try:
            return await self._exchange(run)
        except PolicyUnavailableError:
            return UNREACHABLE
        except _FORESEEN as error:
            return fault_of_error(error, run.attempt, run.now_ms)
        except Exception as error:
            if is_exhausted(error):
                self._parts.on_exhausted(error)
                return EXHAUSTED
            log.exception(
                "An attempt of asynchronous request %s failed. Please report this bug.", run.attempt.ref.request_id
            )
            return fault_of_error(error, run.attempt, run.now_ms)

    async def _exchange(self, run: _Run) -> Succeeded | Fault:
        answer = await send_to_replica(run.call, lambda base_url: self._send(run, base_url))
        try:
            run.status = answer.status
            if not is_success(answer.status):
                return fault_of_answer(answer.status, answer.headers, await error_text(answer), run.url)
            if run.attempt.keeps_answer:
                return await AnswerStore(self._parts.queue, run.attempt.ref).take_all(answer)
            await discard(answer)
            return Succeeded()
        finally:
            answer.close()

    def _send(self, run: _Run, base_url: str) -> Awaitable[UpstreamAnswer]:
        ref = run.attempt.ref
        run.url = base_url.rstrip("/") + PATH
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": ref.request_id,
            "x-async-attempt": str(ref.attempt),
        }
        call = UpstreamCall(
            url=run.url,
            method="POST",
            headers=RequestFields(headers),
            body=b"",
            deadline=perf_counter() + run.left_s,
            idle_timeout_s=self._parts.stream_idle_timeout_s,
            reach=Reach.REPLICA,
            upload=run.payload.upload(),
        )
        return self._parts.upstream.send(call)

    # --- in the queue -------------------------------------------------------------------------------------------------

    def _begin_finish(self, run: _Run, outcome: Outcome | None) -> asyncio.Task[None]:
        """The queue is told even if this process is stopping."""
        task = asyncio.ensure_future(self._finish(run, outcome))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _finish(self, run: _Run, outcome: Outcome | None) -> None:
        duration_s = perf_counter() - run.began
        try:
            is_ours = outcome is not None and await self._record(run.attempt.ref, outcome)
        finally:
            self._parts.leases.release(run.attempt.ref)
        deployment = run.attempt.ref.deployment
        meters = self._parts.meters
        if not is_ours:
            log.warning(
                "Attempt %d of asynchronous request %s was taken back, because its lease was not renewed in time. If it"
                " has attempts left, another one follows.",
                run.attempt.ref.attempt,
                run.attempt.ref.request_id,
            )
            meters.attempt_ended(deployment, LOST, duration_s)
            return
        meters.attempt_ended(deployment, _name(outcome), duration_s)
        if not run.attempt.keeps_answer and not isinstance(outcome, Again):
            status = Status.SUCCEEDED if isinstance(outcome, Succeeded) else Status.FAILED
            meters.request_ended(deployment, status)

    async def _record(self, ref: AttemptRef, outcome: Outcome) -> bool:
        """Tell the queue, however long it is away; the lease is renewed meanwhile. False if the attempt was lost."""
        while True:
            try:
                return await self._parts.queue.finish(ref, outcome)
            except QueueUnavailableError:
                await asyncio.sleep(RETRY_S)


def _name(outcome: Outcome | None) -> str:
    match outcome:
        case Succeeded():
            return SUCCEEDED
        case Failed():
            return FAILED
        case _:
            return AGAIN


def _ended(run: _Run) -> CallEnded:
    return CallEnded(
        ended_at_ms=time_ns() // 1_000_000,
        request_id=run.attempt.ref.request_id,
        method="POST",
        path=run.attempt.path,
        status=run.status,
        duration_s=perf_counter() - run.began,
    )
