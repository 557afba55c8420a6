"""Takes requests from the queue when their deployments have a replica free, and runs them.

First a replica, then a request: it keeps background asks at the switchboard for what is startable, and begins a request
only when one is granted. So a request stays QUEUED, and can be canceled, until the moment before it is sent.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from weakref import WeakValueDictionary

from policy.deployments import Where
from proxy.async_requests.queues import AttemptQueue, QueueUnavailableError
from proxy.async_requests.requests import DeploymentRef, RequestAttempt, Work
from proxy.async_requests.states import Status
from proxy.async_worker.deployments import Deployments
from proxy.async_worker.places import Payload, Places
from proxy.async_worker.request_attempts import RequestAttempts
from proxy.async_worker.standings import Standings
from proxy.capacity.call_load import Load
from proxy.errors import PolicyUnavailableError
from proxy.parts import AsyncMeters, Replicas
from proxy.refusals import NoModelReplicaError, NoSuchModelError
from proxy.replicas.replica_calls import BackgroundCall, Wanted

MAX_ASKS = 16
"""Most asks for one deployment at once."""
STARTS_AT_ONCE = 8
STARTS_OF_ONE_WORKSPACE = 4
"""Most payloads on their way from the queue at once, in all and of one workspace. A large one takes seconds, and nobody
knows its size before; requests of other workspaces begin meanwhile."""
HAND_BACK_S = 1.0
"""Seconds that the queue may take at the end to hear of attempts that are handed back."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """Counterparts of the runner. `holder`: this process's incarnation."""

    queue: AttemptQueue
    replicas: Replicas
    attempts: RequestAttempts
    places: Places
    deployments: Deployments
    meters: AsyncMeters
    holder: str
    clock: Callable[[], float] = monotonic


@dataclass(slots=True, eq=False)
class _Ask:
    """A question for a replica. `place`: held from the ask until it is told to wait, and again from the grant."""

    deployment: DeploymentRef
    place: Load | None
    granted: bool = False
    task: "asyncio.Task[None] | None" = None

    def leave_place(self) -> None:
        if self.place is not None:
            self.place.leave()
            self.place = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """An attempt that this process holds."""

    attempt: RequestAttempt
    payload: Payload
    held_since: float


class RequestRunner:
    """One process's attempts. Whoever sweeps the queue calls `found`."""

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self.standings = Standings(parts.queue, self._asking, parts.clock)
        self._startable: dict[str, dict[DeploymentRef, int]] = {}
        self._asks: defaultdict[DeploymentRef, set[_Ask]] = defaultdict(set)
        self._short: OrderedDict[DeploymentRef, None] = OrderedDict()
        """Deployments with fewer asks than they may have. The first one is next."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks of asks and of attempts."""
        self._unknown_deployments: set[DeploymentRef] = set()
        """Deployments that seem to be deleted; nothing is asked for them until that is known."""
        self._looking: set[asyncio.Task[None]] = set()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._starts_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Semaphores by workspace, while one of its requests is to begin."""
        self._asks_soon = self._is_stopping = False

    # --- what there is to do ------------------------------------------------------------------------------------------

    def found(self, workspace_id: str, work: Work) -> None:
        """A sweep of the workspace has found this."""
        before = self._startable.pop(workspace_id, {})
        if work.startable:
            self._startable[workspace_id] = dict(work.startable)
        for deployment in before.keys() | work.startable.keys():
            self._review(deployment)
        for _, status, queued_ms in work.ended:
            if status is Status.EXPIRED:
                self._parts.meters.left_queue(queued_ms)
        for (deployment, status), count in work.uncounted.items():
            self._parts.meters.request_ended(deployment, status, count)

    def _review(self, deployment: DeploymentRef) -> None:
        """Withdraw asks for requests that are not startable any more, and have others made."""
        number = self._wanted(deployment)
        asks = self._asks[deployment]
        for ask in [ask for ask in asks if not ask.granted][: max(0, len(asks) - number)]:
            self._withdraw(ask)
        if len(asks) < number:
            self._short.setdefault(deployment)
            self._ask_soon()
        else:
            self._short.pop(deployment, None)
        if not asks:
            del self._asks[deployment]

    def _wanted(self, deployment: DeploymentRef) -> int:
        if self._is_stopping or deployment in self._unknown_deployments:
            return 0
        return min(self._count(deployment), MAX_ASKS)

    def _count(self, deployment: DeploymentRef) -> int:
        """Return how many of its requests are startable, as far as is known."""
        return self._startable.get(deployment.workspace_id, {}).get(deployment, 0)

    def _take_off(self, deployment: DeploymentRef, count: int | None = None) -> None:
        """Subtract `count` from the startable requests that are known; None: forget them until the next sweep."""
        startable = self._startable.get(deployment.workspace_id, {})
        if deployment in startable:
            startable[deployment] = 0 if count is None else max(0, startable[deployment] - count)

    def _asking(self) -> Iterable[DeploymentRef]:
        return list(self._asks)

    # --- asks ---------------------------------------------------------------------------------------------------------

    def _ask_soon(self) -> None:
        if not self._asks_soon:
            self._asks_soon = True
            asyncio.get_running_loop().call_soon(self._ask_in_turn)

    def _ask_in_turn(self) -> None:
        """Make one ask per deployment and round, while there are places."""
        self._asks_soon = False
        if self._is_stopping:
            return
        refused = 0
        while self._short and refused < len(self._short) and not self._parts.places.is_full:
            deployment = next(iter(self._short))
            self._short.move_to_end(deployment)
            place = self._parts.places.acquire(deployment)
            if place is None:
                refused += 1
                continue
            refused = 0
            self._begin(_Ask(deployment, place))

    def _begin(self, ask: _Ask) -> None:
        self._asks[ask.deployment].add(ask)
        ask.task = task = asyncio.ensure_future(self._serve(ask))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(ask, task))
        self._review(ask.deployment)

    def _withdraw(self, ask: _Ask) -> None:
        self._asks[ask.deployment].discard(ask)
        if ask.task is not None:
            ask.task.cancel()

    def _ended(self, ask: _Ask, task: asyncio.Task[None]) -> None:
        """Clean up after an ask. Not in the task itself: a task that is cancelled at once never begins."""
        self._tasks.discard(task)
        ask.leave_place()
        self._ask_soon()
        _log_bug(task)

    # --- from an ask to the end of an attempt -------------------------------------------------------------------------

    async def _serve(self, ask: _Ask) -> None:
        def told(ready: bool) -> None:
            ask.leave_place()  # it may wait for long
            self.standings.tell(ask.deployment, ready)
            self._ask_soon()

        call = self._parts.replicas.begin_background(_wanted_of(ask.deployment), told)
        start: _Begun | None = None
        try:
            start = await self._attempt_for(ask, call)
        except Exception:
            self._take_off(ask.deployment)
            raise
        finally:
            if start is None:
                call.withdraw()
            self._asks[ask.deployment].discard(ask)
            self._review(ask.deployment)
        if start is not None:
            await self._parts.attempts.run(start.attempt, call, start.payload, start.held_since)

    async def _attempt_for(self, ask: _Ask, call: BackgroundCall) -> _Begun | None:
        """Wait for a replica, then begin a request. None if there is nothing to begin, or no place for it."""
        try:
            await call.assigned()
        except NoSuchModelError:
            self._deployment_unknown(ask.deployment)
            return None
        except (NoModelReplicaError, PolicyUnavailableError):
            self._take_off(ask.deployment)
            return None
        ask.granted = True
        self.standings.tell(ask.deployment, ready=True)
        ask.place = ask.place or self._parts.places.acquire(ask.deployment)
        return None if ask.place is None else await self._start(ask.deployment)

    async def _start(self, deployment: DeploymentRef) -> _Begun | None:
        parts = self._parts
        workspace_id = deployment.workspace_id
        of_workspace = self._starts_of.setdefault(workspace_id, asyncio.Semaphore(STARTS_OF_ONE_WORKSPACE))
        async with of_workspace, self._starts:
            if self._is_stopping or parts.places.holds_too_much or not self._count(deployment):
                return None
            held_since = parts.clock()
            try:
                attempt = await parts.queue.start(deployment, parts.holder)
            except QueueUnavailableError:
                attempt = None
            if attempt is None:
                self._take_off(deployment)
                return None
            self._take_off(deployment, 1)
            return _Begun(attempt, Payload(attempt.model_input, parts.places), held_since)

    # --- deployments that do not exist --------------------------------------------------------------------------------

    def _deployment_unknown(self, deployment: DeploymentRef) -> None:
        """Fail its requests, once control has confirmed that it was deleted: this machine's policy may be older."""
        if deployment not in self._unknown_deployments:
            self._unknown_deployments.add(deployment)
            task = asyncio.ensure_future(self._fail_if_deleted(deployment))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
            task.add_done_callback(_log_bug)

    async def _fail_if_deleted(self, deployment: DeploymentRef) -> None:
        try:
            if await self._parts.deployments.is_deleted(deployment):
                failed = await self._parts.queue.fail_deployment(deployment)
                log.info(
                    "Deployment %s was deleted: failed its %d asynchronous requests.", deployment.deployment_id, failed
                )
        except (PolicyUnavailableError, QueueUnavailableError):
            pass  # asked again after the next sweep
        finally:
            self._unknown_deployments.discard(deployment)
            self._take_off(deployment)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Begin no more, let attempts run until the timeout, then hand the rest back."""
        self._is_stopping = True
        for deployment in list(self._asks):
            self._review(deployment)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        rest = list(self._tasks)
        for task in rest:
            task.cancel()
        if rest:
            log.warning(
                "Handing back %d asynchronous requests that did not end within TOLLGATE_DRAIN_TIMEOUT_S; their attempts"
                " are used up.",
                len(rest),
            )
            await asyncio.wait(rest, timeout=HAND_BACK_S)
        await self._parts.attempts.finished(HAND_BACK_S)


def _log_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("An asynchronous request was not served. Please report this bug.", exc_info=error)


def _wanted_of(deployment: DeploymentRef) -> Wanted:
    where = Where(None, deployment.deployment_id)
    return Wanted(deployment.workspace_id, deployment.model_id, where, deployment.deployment_id, background=True)
