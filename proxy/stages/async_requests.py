"""Queues asynchronous requests, shows and cancels them, instead of steps 3 to 6 (400 404 413 429 503).

Other processes run what is queued here. No group's limit binds it, and it leaves no billing event; the workspace's own
limits for these calls are taken from the same counters. An answer is given only once the queue has answered.

See docs/reference/inference.md#asynchronous-requests.
"""

import re
from asyncio import CancelledError, sleep, timeout
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from policy.deployments import NOT_SERVING, PARKING
from policy.hosts import HostRuleError
from policy.limits.async_limits import console_looks_plan, look_ups_plan, submissions_plan
from policy.limits.effective import Plan
from policy.limits.settlement import NO_TOKENS
from policy.snapshot import WorkspaceRow
from proxy.accounting.reservations import ADMITTED, UNAVAILABLE, LimitDecision, LimitHit, Taken
from proxy.accounting.ulids import Ulids
from proxy.answers import Answered
from proxy.async_requests.answers import accepted_answer, cancellation_answer, figures_answer, state_answer
from proxy.async_requests.queues import ParkedRequestError, QueueFullError, QueueUnavailableError
from proxy.async_requests.requests import Cancellation, DeploymentRef, NewRequest
from proxy.async_requests.states import Status
from proxy.async_requests.submission import WEBHOOK_ENDPOINT, parse_submission
from proxy.directory_values import Identified
from proxy.errors import CountersUnavailableError
from proxy.exchange import RequestContext
from proxy.http_rules.headers import rate_limit_lines
from proxy.http_rules.limit_refusal import limit_refusal
from proxy.http_rules.model_paths import ModelPath
from proxy.parts import AsyncQueueing, Counters, Meters
from proxy.refusals import (
    AsyncNotSetUpError,
    AsyncQueueFullError,
    AsyncUnavailableError,
    CapacityExceededError,
    MalformedRequestError,
    NoModelReplicaError,
    NoSuchAsyncRequestError,
)
from proxy.replicas.direct_call import DirectCall
from proxy.time_slices import Slices

ID_PREFIX = "areq_"
_ID = re.compile(rf"{ID_PREFIX}[0-9A-Z]{{26}}")
TRY_S = 0.6
"""Seconds that the queue may take to answer. It is asked three times at most, so a caller knows within two seconds."""
QUEUED_BYTES_PER_S = 4_000_000
"""A large payload may take longer: a process stores 32 MB/s, and eight of them at once."""
PAUSE_S = 0.1
"""Pause before the second try: long enough for a lost connection to be made again."""
MAX_PLANS = 10_000

Result = TypeVar("Result")


class Plans:
    """The limits of each workspace. Returns the same plan each time: counters know plans by identity."""

    def __init__(self, make: Callable[[str], Plan]) -> None:
        self._make = make
        self._plans: dict[str, Plan] = {}

    def __getitem__(self, workspace_id: str) -> Plan:
        plan = self._plans.get(workspace_id)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[workspace_id] = self._make(workspace_id)
        return plan


class AsyncRequests:
    """Serves the paths of asynchronous requests."""

    def __init__(
        self, queueing: AsyncQueueing | None, counters: Counters, meters: Meters, ulids: Ulids, slices: Slices
    ) -> None:
        """`queueing`: None where asynchronous requests are not set up."""
        self._queueing_if_set_up = queueing
        self._counters = counters
        self._meters = meters
        self._ulids = ulids
        self._slices = slices
        self._submissions = Plans(submissions_plan)
        self._look_ups = Plans(look_ups_plan)
        self._console_looks = Plans(console_looks_plan)

    def check_set_up(self) -> None:
        """Refuse every call where nothing could ever run."""
        if self._queueing_if_set_up is None:
            raise AsyncNotSetUpError

    def max_body_bytes(self, workspace: WorkspaceRow) -> int:
        """The largest request of the workspace, in bytes."""
        own = workspace.async_max_body_bytes
        return self._queueing.max_body_bytes if own is None else own

    async def submit(self, context: RequestContext, call: DirectCall) -> Answered:
        """Queue the request whose body the call holds. The 201 leaves once the queue has it."""
        submission = await parse_submission(call.body, call.replica_request.workspace_id, self._slices)
        call.body = b""  # the queue gets a part of it
        if call.deployment.status in NOT_SERVING:
            raise NoModelReplicaError
        if submission.webhook_endpoint is not None:
            await self._check_webhook(submission.webhook_endpoint)
        request = NewRequest(ID_PREFIX + self._ulids.make(), _ref(call), context.facts.path, submission)
        take = await self._take(context, self._submissions[request.deployment.workspace_id])
        try:
            await self._submit(request, parks=call.deployment.status in PARKING)
        except ParkedRequestError:
            self._counters.give_back(take)
            raise CapacityExceededError from None
        except QueueFullError:
            self._counters.give_back(take)
            raise AsyncQueueFullError from None
        return accepted_answer(request.id)

    async def state(self, context: RequestContext, identified: Identified, path: ModelPath) -> Answered:
        """Answer with the state of a request."""
        workspace_id = identified.key.workspace_id
        await self._take_look_up(context, workspace_id)
        _check_id(path)
        state = await _answer(lambda: self._queueing.queue.state(workspace_id, path.request_id))
        if state is None or path.model_id not in (None, state.deployment.model_id):
            raise NoSuchAsyncRequestError
        return state_answer(state)

    async def cancel(self, context: RequestContext, identified: Identified, path: ModelPath) -> Answered:
        """Cancel a request, if no attempt of it has begun."""
        if path.model_id is not None:
            await self.state(context, identified, path)  # another model's request is not to be canceled by this path
        else:
            await self._take_look_up(context, identified.key.workspace_id)
            _check_id(path)
        workspace_id = identified.key.workspace_id
        cancellation = await self._cancellation(workspace_id, path.request_id)
        if cancellation is None:
            raise NoSuchAsyncRequestError
        if cancellation.canceled:
            await self._count_canceled(workspace_id, path.request_id)
        return cancellation_answer(path.request_id, cancellation)

    async def _cancellation(self, workspace_id: str, request_id: str) -> Cancellation | None:
        """Cancel the request. If the second try finds it CANCELED, this call counts as the one that canceled it."""
        queue = self._queueing.queue

        async def ask_again() -> Cancellation | None:
            cancellation = await queue.cancel(workspace_id, request_id)
            return cancellation and Cancellation(cancellation.status is Status.CANCELED, cancellation.status)

        return await _answer(lambda: queue.cancel(workspace_id, request_id), again=ask_again)

    async def _count_canceled(self, workspace_id: str, request_id: str) -> None:
        queueing = self._queueing
        state = None
        with suppress(QueueUnavailableError):  # then only the metrics lack it
            state = await _once(lambda: queueing.queue.state(workspace_id, request_id))
        if state is not None:
            queueing.counts.request_ended(state.deployment, state.status)
            queueing.counts.left_queue(state.status_at_ms - state.created_at_ms)

    async def figures(self, context: RequestContext, call: DirectCall) -> Answered:
        """Answer how many requests of a deployment wait and run."""
        deployment = _ref(call)
        await self._take_look_up(context, deployment.workspace_id)
        return figures_answer(deployment, await _answer(lambda: self._queueing.queue.figures(deployment)))

    @property
    def _queueing(self) -> AsyncQueueing:
        assert self._queueing_if_set_up is not None  # `check_set_up` comes first
        return self._queueing_if_set_up

    async def _check_webhook(self, url: str) -> None:
        try:
            await self._queueing.webhook_urls.check(url, WEBHOOK_ENDPOINT)
        except HostRuleError as error:
            raise MalformedRequestError(error.message) from None

    async def _take_look_up(self, context: RequestContext, workspace_id: str) -> None:
        """Take from the limit of look-ups. Pages of the console have one of their own, so they refuse no customer."""
        plans = self._console_looks if context.facts.is_look else self._look_ups
        await self._take(context, plans[workspace_id])

    async def _take(self, context: RequestContext, plan: Plan) -> Taken:
        """Take from a limit, and make ready for a question to the queue."""
        decided = _uncounted if context.facts.is_look else self._meters.limit_decision
        question = self._counters.ask(plan, NO_TOKENS)
        try:
            answer = await question
        except CountersUnavailableError:
            decided(UNAVAILABLE)
            raise
        except CancelledError:
            self._counters.abandon(question)
            raise
        context.rate_limit_lines = rate_limit_lines(answer.requests, None)
        if isinstance(answer, LimitHit):
            limit = answer.bound.limit
            decided(("refused", limit.type.value, limit.unit.value))
            raise limit_refusal(plan, answer, context.workspace_id)
        decided(ADMITTED)
        await self._queueing.load()
        return answer

    async def _submit(self, request: NewRequest, parks: bool) -> None:
        """Queue it. A second try with the same id changes nothing if the first one was successful after all.

        Without an answer nobody knows whether it was. Then try to prevent that it runs, and tell the caller its id.
        """
        queue = self._queueing.queue
        workspace_id = request.deployment.workspace_id
        cancellation = None
        try:
            within_s = TRY_S + len(request.submission.model_input) / QUEUED_BYTES_PER_S
            await _answer(lambda: queue.submit(request, parks), within_s)
        except AsyncUnavailableError as error:
            with suppress(QueueUnavailableError):  # the caller is told all the same
                cancellation = await _once(lambda: queue.cancel(workspace_id, request.id))
            if cancellation is not None and cancellation.canceled:
                await self._count_canceled(workspace_id, request.id)
            if cancellation is None or cancellation.canceled:
                doubt = f"{error.message}: the request may have been queued, as {request.id}, or not"
                raise AsyncUnavailableError(doubt) from None


def _uncounted(_decision: LimitDecision) -> None:
    """Count nothing."""


def _ref(call: DirectCall) -> DeploymentRef:
    return DeploymentRef(call.replica_request.workspace_id, call.replica_request.model_id, call.deployment.id)


def _check_id(path: ModelPath) -> None:
    """Ask the queue for nothing that cannot be in it."""
    if not _ID.fullmatch(path.request_id):
        raise NoSuchAsyncRequestError


async def _answer(
    ask: Callable[[], Awaitable[Result]],
    within_s: float | None = None,
    again: Callable[[], Awaitable[Result]] | None = None,
) -> Result:
    """Return the queue's answer; ask it twice at most. `again`: the second question, if it differs from the first."""
    try:
        return await _once(ask, within_s)
    except QueueUnavailableError:
        await sleep(PAUSE_S)
    try:
        return await _once(again or ask, within_s)
    except QueueUnavailableError:
        raise AsyncUnavailableError("The queue of asynchronous requests does not answer") from None


async def _once(ask: Callable[[], Awaitable[Result]], within_s: float | None = None) -> Result:
    try:
        async with timeout(TRY_S if within_s is None else within_s):
            return await ask()
    except TimeoutError:
        raise QueueUnavailableError from None
