"""The queue of asynchronous requests in memory, by the test's own clock. It passes the same suite as the one in Redis.

Also the model that a state machine compares the Lua scripts with: all at once, every time, by looking at everything.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from proxy.async_requests.endings import (
    ANSWER_LOST,
    DEPLOYMENT_GONE,
    NEVER_FREE,
    NEVER_READY,
    OUT_OF_TIME,
    WORKER_LOST,
    visible_status,
    visible_webhook_status,
)
from proxy.async_requests.queues import (
    DELIVERY_TRIES,
    KEPT_S,
    LEASE_S,
    STANDING_S,
    ParkedRequestError,
    QueueFullError,
    QueueUnavailableError,
    RequestUnknownError,
)
from proxy.async_requests.requests import (
    PRIORITIES,
    Again,
    AttemptRef,
    Cancellation,
    Delivery,
    DeploymentFigures,
    DeploymentRef,
    Failed,
    NewRequest,
    Outcome,
    QueueFigures,
    RequestAttempt,
    RequestError,
    RequestState,
    Succeeded,
    Work,
)
from proxy.async_requests.states import OUTCOMES, Phase, RequestEvent, Status, after

LEASE_MS = int(LEASE_S * 1000)
STANDING_MS = int(STANDING_S * 1000)
KEPT_MS = int(KEPT_S * 1000)
PAUSED_AND_QUEUED = (Phase.PAUSED, Phase.QUEUED)


@dataclass(eq=False)
class Entry:
    """One request. `holder`: of its attempt while it is RUNNING, of its delivery while it is DELIVERING."""

    request: NewRequest
    created_ms: int
    phase: Phase = Phase.QUEUED
    place: int = 0
    """The entry's place among those that wait like it: paused ones, and ends on their way to the webhook."""
    attempt: int = 0
    tries: int = 0
    holder: str = ""
    held_until_ms: int = 0
    due_ms: int | None = None
    """The end of its pause, or the time of its next delivery. None if it waits for neither."""
    begun_ms: int | None = None
    deadline_ms: int = 0
    status_ms: int = 0
    outcome: Status | None = None
    decided_ms: int = 0
    error: RequestError | None = None
    answer: Succeeded | None = None
    chunks: dict[int, bytes] = field(default_factory=dict)

    @property
    def deployment(self) -> DeploymentRef:
        return self.request.deployment

    @property
    def has_webhook(self) -> bool:
        return self.request.submission.webhook_endpoint is not None

    @property
    def stored_bytes(self) -> int:
        return sum(map(len, self.chunks.values()))

    @property
    def expires_ms(self) -> int:
        return self.created_ms + self.request.submission.max_time_in_queue_s * 1000

    @property
    def in_progress(self) -> bool:
        return self.phase in (Phase.RUNNING, Phase.PAUSED, Phase.DELIVERING)

    def queued_ms(self, now_ms: int) -> int:
        return (now_ms if self.begun_ms is None else self.begun_ms) - self.created_ms

    def move(self, event: RequestEvent, now_ms: int) -> None:
        """Raises `IllegalMoveError`."""
        before = visible_status(self.phase, self.outcome)
        self.phase = after(self.phase, event, self.has_webhook)
        self.outcome = OUTCOMES.get(event, self.outcome)
        self.holder = ""
        self.due_ms = None
        if visible_status(self.phase, self.outcome) is not before:
            self.status_ms = now_ms


class FakeAsyncQueue:
    """Implements `RequestQueue`, `AttemptQueue`, `DeliveryQueue` and `QueueOverview`. `unavailable`: Redis is away."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        max_queued_bytes: int = 1_000_000,
        max_answer_bytes: int = 1_000_000,
        timeout_s: float = 3600,
    ) -> None:
        self.now_ms = now_ms
        self.unavailable = False
        self._max_queued_bytes = max_queued_bytes
        self._max_answer_bytes = max_answer_bytes
        self._timeout_ms = int(timeout_s * 1000)
        self.entries: dict[str, Entry] = {}
        self.preferred = ""
        """The request that goes first among those that one sweep lets go on: their order is not promised."""
        self._places = 0
        self._grows: dict[str, str] = {}
        """The request of each workspace whose answer may exceed the bound of answers."""
        self._uncounted: Counter[tuple[DeploymentRef, Status]] = Counter()
        self._ready_ms: dict[DeploymentRef, int] = {}
        self._parked_ms: dict[DeploymentRef, int] = {}
        self._listeners: list[asyncio.Queue[str]] = []

    # --- callers ---

    async def submit(self, request: NewRequest, parks: bool) -> None:
        self._check_available()
        workspace_id = request.deployment.workspace_id
        if self._entry(workspace_id, request.id) is not None:
            return
        queued = [one for one in self._of(workspace_id) if one.phase is Phase.QUEUED]
        if any(one.deployment == request.deployment for one in queued) and self._is_parked(request.deployment, parks):
            raise ParkedRequestError
        sizes = (len(one.request.submission.model_input) for one in queued)
        if sum(sizes) + len(request.submission.model_input) > self._max_queued_bytes:
            raise QueueFullError
        now_ms = self.now_ms()
        self.entries[request.id] = Entry(request, now_ms, place=self._next_place(), status_ms=now_ms)
        self._hint(workspace_id)

    async def state(self, workspace_id: str, request_id: str) -> RequestState | None:
        self._check_available()
        entry = self._entry(workspace_id, request_id)
        if entry is None:
            return None
        status = visible_status(entry.phase, entry.outcome)
        ended = entry.phase is Phase.ENDED and entry.error is not None
        return RequestState(
            request_id,
            entry.deployment,
            status,
            visible_webhook_status(entry.has_webhook, status),
            entry.created_ms,
            entry.status_ms,
            (entry.error,) if ended and entry.error is not None else (),
        )

    async def cancel(self, workspace_id: str, request_id: str) -> Cancellation | None:
        self._check_available()
        entry = self._entry(workspace_id, request_id)
        if entry is None:
            return None
        if entry.phase is not Phase.QUEUED:
            return Cancellation(False, visible_status(entry.phase, entry.outcome))
        entry.move(RequestEvent.CANCEL, self.now_ms())
        return Cancellation(True, Status.CANCELED)

    async def figures(self, deployment: DeploymentRef) -> QueueFigures:
        self._check_available()
        entries = [one for one in self._of(deployment.workspace_id) if one.deployment == deployment]
        priorities = [one.request.submission.priority for one in entries if one.phase is Phase.QUEUED]
        queued = {priority: priorities.count(priority) for priority in PRIORITIES}
        return QueueFigures(queued, sum(one.in_progress for one in entries))

    # --- attempts ---

    async def queue_hints(self) -> AsyncIterator[str]:
        listener: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.append(listener)
        try:
            yield ""
            while True:
                yield await listener.get()
        finally:
            self._listeners.remove(listener)

    async def workspaces(self) -> Sequence[str]:
        self._check_available()
        return sorted({one.deployment.workspace_id for one in self._open()})

    async def sweep(self, workspace_id: str) -> Work:
        self._check_available()
        now_ms = self.now_ms()
        place = self._next_place()
        ended = [entry for entry in self._of(workspace_id) if self._sweep_one(entry, now_ms, place)]
        entries = list(self._of(workspace_id))
        startable: dict[DeploymentRef, int] = {}
        stored = sum(one.stored_bytes for one in entries)
        for one in entries:
            if one.phase in PAUSED_AND_QUEUED and one.due_ms is None and stored <= self._max_answer_bytes:
                startable[one.deployment] = startable.get(one.deployment, 0) + 1
        return Work(
            startable,
            sum(self._deliverable(one) for one in entries),
            stored,
            min((due - now_ms for one in entries if (due := self._due_ms(one)) is not None), default=None),
            [(one.deployment, one.outcome, one.queued_ms(now_ms)) for one in ended if one.outcome is not None],
            uncounted=self._take_uncounted(workspace_id),
        )

    async def start(self, deployment: DeploymentRef, holder: str) -> RequestAttempt | None:
        self._check_available()
        now_ms = self.now_ms()
        if sum(one.stored_bytes for one in self._of(deployment.workspace_id)) > self._max_answer_bytes:
            return None
        queue = [
            one
            for one in self._of(deployment.workspace_id)
            if one.deployment == deployment and one.phase in PAUSED_AND_QUEUED and one.due_ms is None
        ]
        for entry in sorted(queue, key=self._turn):
            if not self._decide_late(entry, now_ms, self._next_place()):
                return self._begin(entry, holder, now_ms)
        return None

    async def renew(self, attempts: Collection[AttemptRef]) -> Collection[AttemptRef]:
        self._check_available()
        losses = []
        for ref in attempts:
            if (entry := self._held(ref)) is not None:
                entry.held_until_ms = self.now_ms() + LEASE_MS
            elif self._entry(ref.deployment.workspace_id, ref.request_id) is not None:
                losses.append(ref)
        return losses

    async def store(self, attempt: AttemptRef, number: int, chunk: bytes) -> bool:
        self._check_available()
        self._known(attempt)
        if (entry := self._held(attempt)) is not None:
            more = len(chunk) - len(entry.chunks.get(number, b""))
            workspace_id = entry.request.deployment.workspace_id
            stored = sum(one.stored_bytes for one in self._of(workspace_id))
            exceeds = more > 0 and stored + more > self._max_answer_bytes
            if exceeds and self._grows.setdefault(workspace_id, entry.request.id) != entry.request.id:
                return False
            entry.chunks[number] = chunk
        return True

    def _forget_chunks(self, entry: Entry) -> None:
        entry.chunks.clear()
        if self._grows.get(entry.request.deployment.workspace_id) == entry.request.id:
            del self._grows[entry.request.deployment.workspace_id]

    async def finish(self, attempt: AttemptRef, outcome: Outcome) -> bool:
        self._check_available()
        own_entry = self._known(attempt)
        entry = self._held(attempt)
        if entry is None:
            ends = {Succeeded: Status.SUCCEEDED, Failed: Status.FAILED}
            return own_entry.attempt == attempt.attempt and own_entry.outcome is ends.get(type(outcome), Status.QUEUED)
        now_ms = self.now_ms()
        place = self._next_place()
        if isinstance(outcome, Succeeded) and entry.has_webhook and entry.stored_bytes < outcome.size_bytes:
            outcome = Again(0, ANSWER_LOST)
        match outcome:
            case Succeeded():
                entry.answer = outcome
                self._decide(entry, RequestEvent.SUCCEED, None, place)
            case Failed(error):
                self._decide(entry, RequestEvent.FAIL, error, place)
            case Again(delay_ms, error):
                rules = entry.request.submission.retries
                if entry.attempt >= rules.max_attempts or now_ms + delay_ms >= entry.deadline_ms:
                    self._decide(entry, RequestEvent.FAIL, error, place)
                    self._count_end(entry)
                else:
                    self._pause(entry, delay_ms, place)
        return True

    async def fail_deployment(self, deployment: DeploymentRef) -> int:
        self._check_available()
        failures = [
            one
            for one in self._of(deployment.workspace_id)
            if one.deployment == deployment and one.phase in PAUSED_AND_QUEUED
        ]
        place = self._next_place()
        for entry in failures:
            self._decide(entry, RequestEvent.FAIL, DEPLOYMENT_GONE, place)
            self._count_end(entry)
        return len(failures)

    async def report_standing(self, deployment: DeploymentRef, ready: bool) -> None:
        self._check_available()
        (self._ready_ms if ready else self._parked_ms)[deployment] = self.now_ms()

    # --- deliveries ---

    async def next_delivery(self, workspace_id: str, holder: str) -> Delivery | None:
        self._check_available()
        due = sorted((one for one in self._of(workspace_id) if self._deliverable(one)), key=self._turn)
        if not due:
            return None
        entry = due[0]
        entry.tries += 1
        entry.holder = holder
        entry.held_until_ms = self.now_ms() + LEASE_MS
        endpoint = entry.request.submission.webhook_endpoint
        assert endpoint is not None
        assert entry.outcome is not None
        return Delivery(
            entry.deployment,
            entry.request.id,
            endpoint,
            entry.tries,
            holder,
            entry.outcome,
            entry.decided_ms,
            self.now_ms() - entry.decided_ms,
            () if entry.error is None else (entry.error,),
            entry.answer,
        )

    async def renew_deliveries(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        self._check_available()
        losses = []
        for delivery in deliveries:
            if (entry := self._held_delivery(delivery)) is None:
                losses.append(delivery)
            else:
                entry.held_until_ms = self.now_ms() + LEASE_MS
        return losses

    async def chunk(self, delivery: Delivery, number: int) -> bytes | None:
        self._check_available()
        entry = self._entry(delivery.deployment.workspace_id, delivery.request_id)
        return None if entry is None else entry.chunks.get(number)

    async def answer_lost(self, delivery: Delivery) -> bool:
        self._check_available()
        if (entry := self._held_delivery(delivery)) is None:
            return False
        entry.outcome = Status.FAILED
        entry.error = ANSWER_LOST
        entry.answer = None
        self._forget_chunks(entry)
        return True

    async def delivered(self, delivery: Delivery) -> bool:
        self._check_available()
        if (entry := self._held_delivery(delivery)) is None:
            return False
        self._end_delivery(entry, RequestEvent.DELIVER)
        return True

    async def undelivered(self, delivery: Delivery, again_in_ms: int | None) -> bool:
        self._check_available()
        if (entry := self._held_delivery(delivery)) is None:
            return False
        if again_in_ms is None:
            self._end_delivery(entry, RequestEvent.GIVE_UP)
        else:
            entry.holder = ""
            entry.due_ms = self.now_ms() + again_in_ms
        return True

    async def overview(self) -> Sequence[DeploymentFigures]:
        overviews = []
        now_ms = self.now_ms()
        for deployment in sorted({one.deployment for one in self._open()}):
            figures = await self.figures(deployment)
            ages = [
                (now_ms - one.created_ms) / 1000
                for one in self._open()
                if one.deployment == deployment and one.phase is Phase.QUEUED
            ]
            overviews.append(
                DeploymentFigures(deployment, figures.queued, figures.in_progress, max(ages, default=None))
            )
        return overviews

    # --- parts ---

    def lose_chunk(self, request_id: str, number: int) -> None:
        """Lose a chunk, as a crash of Redis may."""
        del self.entries[request_id].chunks[number]

    def _check_available(self) -> None:
        if self.unavailable:
            raise QueueUnavailableError

    def _entry(self, workspace_id: str, request_id: str) -> Entry | None:
        entry = self.entries.get(request_id)
        if entry is None or entry.deployment.workspace_id != workspace_id:
            return None
        if entry.phase is Phase.ENDED and self.now_ms() >= entry.status_ms + KEPT_MS:
            return None
        return entry

    def _open(self) -> Iterator[Entry]:
        return (one for one in self.entries.values() if one.phase is not Phase.ENDED)

    def _of(self, workspace_id: str) -> Iterator[Entry]:
        return (one for one in self._open() if one.deployment.workspace_id == workspace_id)

    def _next_place(self) -> int:
        self._places += 1
        return self._places

    def _hint(self, workspace_id: str) -> None:
        for listener in self._listeners:
            listener.put_nowait(workspace_id)

    def _is_parked(self, deployment: DeploymentRef, parks: bool) -> bool:
        def holds(marks: dict[DeploymentRef, int]) -> bool:
            return deployment in marks and self.now_ms() < marks[deployment] + STANDING_MS

        return not holds(self._ready_ms) and (parks or holds(self._parked_ms))

    def _deliverable(self, entry: Entry) -> bool:
        return entry.phase is Phase.DELIVERING and not entry.holder and entry.due_ms is None

    def _due_ms(self, entry: Entry) -> int | None:
        """Return when a sweep must look at the entry next, leases aside; None if never."""
        match entry.phase:
            case Phase.QUEUED:
                return entry.expires_ms
            case Phase.PAUSED:
                return entry.deadline_ms if entry.due_ms is None else entry.due_ms
            case _:
                return entry.due_ms

    def _known(self, ref: AttemptRef) -> Entry:
        entry = self._entry(ref.deployment.workspace_id, ref.request_id)
        if entry is None:
            raise RequestUnknownError
        return entry

    def _held(self, ref: AttemptRef) -> Entry | None:
        entry = self._entry(ref.deployment.workspace_id, ref.request_id)
        if entry is None or entry.phase is not Phase.RUNNING:
            return None
        return entry if (entry.attempt, entry.holder) == (ref.attempt, ref.holder) else None

    def _held_delivery(self, delivery: Delivery) -> Entry | None:
        entry = self._entry(delivery.deployment.workspace_id, delivery.request_id)
        if entry is None or entry.phase is not Phase.DELIVERING:
            return None
        return entry if (entry.tries, entry.holder) == (delivery.attempt, delivery.holder) else None

    def _sweep_one(self, entry: Entry, now_ms: int, place: int) -> bool:
        """Do what is due for the entry. Return whether that decided the request's outcome."""
        if self._decide_late(entry, now_ms, place):
            return True
        if entry.due_ms is not None and now_ms >= entry.due_ms:  # a pause ends, or a delivery is tried again
            entry.due_ms = None
            entry.place = place
            self._hint(entry.deployment.workspace_id)
        elif entry.holder and now_ms >= entry.held_until_ms:
            return self._take_back(entry, now_ms, place)
        return False

    def _decide_late(self, entry: Entry, now_ms: int, place: int) -> bool:
        if entry.phase is Phase.QUEUED and now_ms >= entry.expires_ms:
            ready_ms = self._ready_ms.get(entry.deployment)
            never_ready = ready_ms is None or ready_ms < entry.created_ms
            self._decide(entry, RequestEvent.EXPIRE, NEVER_READY if never_ready else NEVER_FREE, place)
            self._count_end(entry)
            return True
        if entry.phase is Phase.PAUSED and now_ms >= entry.deadline_ms:
            self._decide(entry, RequestEvent.FAIL, OUT_OF_TIME, place)
            self._count_end(entry)
            return True
        return False

    def _take_back(self, entry: Entry, now_ms: int, place: int) -> bool:
        """Take the entry from a holder whose lease ended. Return whether that decided the request's outcome."""
        if entry.phase is Phase.DELIVERING:
            if entry.tries >= DELIVERY_TRIES:
                self._end_delivery(entry, RequestEvent.GIVE_UP)
                self._count_end(entry)
            entry.holder = ""
            entry.place = place
            return False
        if entry.attempt >= entry.request.submission.retries.max_attempts:
            self._decide(entry, RequestEvent.FAIL, WORKER_LOST, place)
        elif now_ms >= entry.deadline_ms:
            self._decide(entry, RequestEvent.FAIL, OUT_OF_TIME, place)
        else:
            self._pause(entry, 0, place)
            return False
        self._count_end(entry)
        return True

    def _count_end(self, entry: Entry) -> None:
        if entry.phase is Phase.ENDED and entry.outcome is not None:
            self._uncounted[entry.deployment, entry.outcome] += 1

    def _take_uncounted(self, workspace_id: str) -> dict[tuple[DeploymentRef, Status], int]:
        ours = [end for end in self._uncounted if end[0].workspace_id == workspace_id]
        return {end: self._uncounted.pop(end) for end in ours}

    def _begin(self, entry: Entry, holder: str, now_ms: int) -> RequestAttempt:
        entry.move(RequestEvent.START, now_ms)
        entry.attempt += 1
        entry.holder = holder
        entry.held_until_ms = now_ms + LEASE_MS
        if entry.begun_ms is None:
            entry.begun_ms = now_ms
            entry.deadline_ms = now_ms + self._timeout_ms
        submission = entry.request.submission
        return RequestAttempt(
            AttemptRef(entry.deployment, entry.request.id, entry.attempt, holder),
            submission.model_input,
            submission.retries,
            entry.request.path,
            entry.has_webhook,
            entry.deadline_ms,
            now_ms,
            entry.queued_ms(now_ms),
        )

    def _pause(self, entry: Entry, delay_ms: int, place: int) -> None:
        now_ms = self.now_ms()
        entry.move(RequestEvent.PAUSE, now_ms)
        self._forget_chunks(entry)
        entry.due_ms = now_ms + delay_ms if delay_ms else None
        entry.place = place
        self._hint(entry.deployment.workspace_id)

    def _decide(self, entry: Entry, event: RequestEvent, error: RequestError | None, place: int) -> None:
        """`entry.answer` is set before a SUCCEED."""
        entry.move(event, self.now_ms())
        entry.error = error
        entry.decided_ms = self.now_ms()
        entry.place = place
        if event is not RequestEvent.SUCCEED or entry.phase is Phase.ENDED:
            self._forget_chunks(entry)
        self._hint(entry.deployment.workspace_id)

    def _end_delivery(self, entry: Entry, event: RequestEvent) -> None:
        entry.move(event, self.now_ms())
        self._forget_chunks(entry)

    def _turn(self, entry: Entry) -> tuple[int, int, bool]:
        """Paused requests first, then by priority; then by age."""
        kind = entry.request.submission.priority if entry.phase is Phase.QUEUED else -1
        return (kind, entry.place, entry.request.id != self.preferred)
