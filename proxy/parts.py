"""The parts that stages and background processes work with: one protocol for each, its methods by who calls them.

The worker's composition root (`proxy/worker/app.py`) builds them, `proxy/pipeline.py` hands them to the stages. Each
docstring names the class that does the work; tests use the fakes in `tests/fakes/`.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import Target
from policy.identity.providers import IdentityProviderRow
from policy.identity.tokens import UnverifiedToken
from policy.limits.alerts import ReachedLimit
from policy.limits.effective import Plan
from policy.limits.settlement import Estimate, Reservation
from policy.limits.tiers import DEFAULT_TIERS, Tier
from policy.snapshot import EndpointRow, KeyRow, ModelRow, Wire, WorkspaceRow
from policy.spend.effective import SpendPlan
from proxy.accounting.call_bound import ASSUMED_OUTPUT_TOKENS
from proxy.accounting.journaled_call import JournaledCall, UnwrittenRecord
from proxy.accounting.metering import Bill, DeliveredCounter, UnreadAnswer
from proxy.accounting.request_report import RequestReport
from proxy.accounting.reservations import LimitDecision, LimitHit, Taken
from proxy.accounting.spend_taken import SpendHit, SpendTaken, SpendUnavailable
from proxy.answers import Headers
from proxy.async_requests.queues import RequestQueue
from proxy.async_requests.requests import DeploymentRef
from proxy.async_requests.states import Status
from proxy.callers.address_ranges import AddressRanges
from proxy.capacity.call_load import Load
from proxy.capacity.worker_capacity import Capacity, CapacityLimits
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.directory_values import CallingGroup, Forwarding, Identified, KeyHolder, Shape, SlugRoute
from proxy.http_rules.cors import CorsRules
from proxy.json_text.segmented_body import RequestBody
from proxy.records.head_facts import HeadFacts
from proxy.records.messages import Received, UpstreamAnswer, UpstreamCall
from proxy.replicas.replica_calls import BackgroundCall, ReplicaCall, Wanted


class Directory(Protocol):
    """The policy that is in force: `SnapshotDirectory` reads the machine's policy replica.

    Every method raises `PolicyUnavailableError` if there is no policy, but for those that find what was kept.
    """

    # authenticate

    def key_holder(self, digest: str) -> KeyHolder | None:
        """The holder of the key with this digest; None if there is no such key."""

    def caller(self, facts: HeadFacts) -> Identified | None:
        """Find who sends requests with this head, as `keep_caller` said; None once policy has changed. Never raises."""

    def keep_caller(self, facts: HeadFacts, identified: Identified) -> None:
        """Cache the sender of requests with this head, until policy changes."""

    async def confirm_unknown(self, *, may_be_ours: bool = True) -> None:
        """Wait until control has confirmed the policy replica. Rate-limited. `may_be_ours`: as for `Confirmer`."""

    def identity_provider(self, id: str) -> IdentityProviderRow | None: ...

    async def is_signed_by(self, token: UnverifiedToken, key: Wire) -> bool:
        """Call the function of that name, beside the loop."""

    async def confirm_keys(self, provider_id: str) -> bool:
        """Have the keys of an identity provider fetched, unless that was just done, and wait for policy with them.

        Return whether it was done. Rate-limited.
        """

    def token_holder(self, provider: IdentityProviderRow, entity: str, key: KeyRow) -> KeyHolder | None:
        """Find the group of that external id, and keep the holder of a verified token by `key.digest`.

        `key`: the row of its key, without the group. None without such a group, or if the provider has changed.
        """

    # route

    def endpoint(self, slug: str) -> EndpointRow | None: ...

    def slug_route(self, group: CallingGroup, key: KeyRow, slug: str) -> SlugRoute | None:
        """None if there is no such slug, or the group may not call it. `key`: of the group, its limits included."""

    def shape(self, facts: HeadFacts, slug: str) -> Shape | None:
        """Find what was kept of a call with this head and slug; None once policy has changed. Never raises."""

    def forwarding(self, values: tuple[object, ...], slug: str) -> Forwarding | None:
        """Find what was kept of a call of this slug with these `forwarded_values`, as for `shape`."""

    def group(self, id: str) -> CallingGroup | None: ...

    def slugs(self, group_id: str) -> tuple[str, ...]:
        """The slugs that the group may call."""

    # dispatch

    def secret(self, id: str) -> str | None:
        """The value of a target's secret; None if it is gone."""

    def keep_shape(self, facts: HeadFacts, shape: Shape) -> None:
        """Cache the shape of calls with this head and slug, until policy changes. Does nothing if its route changed."""

    def keep_forwarding(self, values: tuple[object, ...], endpoint: EndpointRow, forwarding: Forwarding) -> None:
        """Cache the form of calls of this endpoint with these `forwarded_values`, as `keep_shape` does."""

    # invoke, and the async worker

    def model(self, id: str) -> ModelRow | None: ...

    # the async worker, and `snapshot show`

    def workspace(self, id: str) -> WorkspaceRow | None: ...

    # `snapshot show`

    def plan(self, group_id: str, slug: str) -> Plan | None:
        """The plan that binds a call of the group to the slug; None if the group may not call it."""


class Counters(Protocol):
    """The counters of limits: `RedisCounters`."""

    # admit and async requests

    def ask(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Awaitable[Taken | LimitHit]:
        """Take everything or nothing, `further` plans included. Await what this returns at once.

        Awaiting it raises `CountersUnavailableError`.
        """

    def abandon(self, question: Awaitable[Taken | LimitHit]) -> None:
        """Return what a cancelled `ask` took, or still takes."""

    # settle

    @property
    def numbers(self) -> Iterator[int]:
        """The numbers of settlements. Each settlement takes the next one."""

    def settle(self, reservation: Reservation, *, number: int, actual_tokens: int) -> None:
        """Enqueue; never raises."""

    def give_back(self, take: Taken) -> None:
        """Return everything that was taken for a call that was never dispatched. Enqueue; never raises."""


class SpendCounters(Protocol):
    """The counters of what trees spend: `RedisSpend`. Without Redis, SOFT limits admit all calls, and count nothing."""

    # admit

    def ask(
        self, plan: SpendPlan, event_key: str, picos: int, least: int = 0
    ) -> Awaitable[SpendTaken | SpendHit | SpendUnavailable]:
        """Reserve `picos` (10^-12 of the plan's currency) for the call with this event, or refuse it.

        A plan with HARD limits or a balance reserves what is left of them if that is less, and refuses what does not
        hold `least`.
        Begins at once, whenever what this returns is awaited.
        """

    def abandon(self, question: Awaitable[SpendTaken | SpendHit | SpendUnavailable]) -> None:
        """Return what an `ask` took, or still takes. It may be cancelled, answered, or not awaited yet."""

    # settle: one of these for each `SpendTaken`

    def end(self, take: SpendTaken, picos: int) -> None:
        """Set what a dispatched call reserves to its cost, until its event is counted. Enqueue; never raises."""

    def give_back(self, take: SpendTaken) -> None:
        """Return what was reserved for a call that leaves no event. Enqueue; never raises."""


class Journal(Protocol):
    """The journal of calls on local disk: `JournalWriter`."""

    # dispatch

    def open(self, record: bytes) -> JournaledCall:
        """Journal the start of a call. Nothing of it may be sent before the returned record is written.

        Raises `JournalUnavailableError`, and refuses a record with it. Only a call that raises here must not be closed.
        """

    # relay: what was delivered is billed if this worker dies

    def answered(self, record: bytes) -> None:
        """The first bytes of a streamed answer are about to leave."""

    def progress(self, records: Sequence[bytes]) -> None:
        """Record the delivery progress of open streams. Never raises."""

    # settle

    def close(self, call: JournaledCall, record: bytes) -> UnwrittenRecord | None:
        """Returns None if the end is recorded; else the last bytes may leave once what this returns is written."""


class UpstreamClient(Protocol):
    """Sends requests to upstreams: `HttpUpstream`."""

    # dispatch, invoke, the async worker, the prober of replicas, access tokens

    async def send(self, call: UpstreamCall) -> UpstreamAnswer:
        """Return the answer when its head has arrived.

        Raises `UpstreamUnreachableError`, `UpstreamResetError` or `UpstreamTimeoutError`, or why `call.record` was
        refused.
        """


class AccessTokens(Protocol):
    """Short-lived credentials, for providers that want one in place of the stored secret: `VendorCTokens`."""

    # dispatch

    async def token(self, secret_value: str) -> str:
        """Raises `TargetCredentialError` or an `UpstreamError`."""


class Replicas(Protocol):
    """The replicas of platform models: `ReplicaRequests` asks the supervisor."""

    # dispatch and invoke

    def begin(self, request: Wanted, load: Load) -> ReplicaCall:
        """Begin a call. The caller must call `end` on it, cancelled or not."""

    # invoke

    async def wake(self, request: Wanted) -> None:
        """Ask for the deployment to be woken if it is scaled to zero, without a call.

        Raises `NoSuchModelError`, or `PolicyUnavailableError` if control could not be told.
        """

    # the async worker

    def begin_background(self, request: Wanted, listener: Callable[[bool], None]) -> BackgroundCall:
        """Begin a call that nobody waits for. `listener`: see `ReplicaRequests`."""


class Dialects(Protocol):
    """Forms of requests to each provider, and readers of the answers: `Dialects` of `proxy/dialects/registry.py`."""

    # route

    def has_sealed(self, request: Received) -> bool:
        """Return whether the body holds reasoning that another target's translation sealed."""

    # count tokens

    def own_answer(self, request: Received, target: Target) -> bytes | None:
        """The JSON that answers the request without its target; None if the target is asked."""

    # dispatch

    def first_attempt(self, request: Received, target: Target) -> DialectAttempt:
        """Return the form in which to send the call to its target. Raises `UntranslatableError`."""

    def translated_containers(self, request: Received, target: Target) -> int:
        """Return the most objects that the first attempt translates; 0 if the call passes unchanged."""

    def build_request(
        self, request: Received, target: Target, credential: str | None, attempt: DialectAttempt
    ) -> UpstreamRequest:
        """Path and fields of the request, for this and each later call that is put the same way."""

    def build_body(self, request: Received, target: Target, attempt: DialectAttempt) -> RequestBody:
        """The body of the request. Raises `UntranslatableError`."""

    def may_ask_again(self, request: Received, attempt: DialectAttempt, status: int) -> bool:
        """Return whether an answer with this status may call for another attempt: `following` decides."""

    def following(
        self, request: Received, target: Target, attempt: DialectAttempt, status: int, refusal: bytes
    ) -> Callable[[], DialectAttempt] | None:
        """Return what makes the next attempt after this answer; None if the answer stands.

        `refusal`: the answer's body, if it may be an error. What is returned raises `UntranslatableError`.
        """

    # relay

    def whole_answer(
        self, request: Received, attempt: DialectAttempt, content_type: str, body: bytes, most: int
    ) -> tuple[bytes, Bill] | None:
        """Return what the caller gets of a whole success, and what was reported. None: it needs a reader."""

    def unread_answer(
        self, request: Received, attempt: DialectAttempt, content_type: str, headers: Headers, most: int
    ) -> UnreadAnswer:
        """A success, whose first bytes choose its reader. `most`: the largest plausible figure of a usage report."""

    def delivered_counter(self, request: Received, content_type: str) -> DeliveredCounter:
        """The counter of what the caller gets, for answers without a usage report."""

    def stand_in_answer(self, request: Received, target: Target, status: int, error: bytes) -> bytes | None:
        """The JSON that answers the request in place of the upstream's error; None if the error stands."""


class OutputEstimates(Protocol):
    """The likely output of a call of (group, slug): `OutputEstimates` of `proxy/accounting/`."""

    # admit

    def expected_output(self, group_id: str, slug: str, cap: int | None) -> int: ...

    # settle

    def record(self, group_id: str, slug: str, output_tokens: int) -> None: ...


class Meters(Protocol):
    """The worker's metrics and access log: `WorkerMetrics`."""

    # the pipeline

    def watch(self, capacity: Capacity) -> None:
        """Report this worker's load from now on. Called once."""

    # admit and async requests

    def limit_decision(self, decision: LimitDecision) -> None:
        """Count a decision: `admitted`, `refused` (by which type and unit; a balance has no unit), `unavailable`."""

    def limit_reached(self, limit: ReachedLimit) -> None:
        """Have control told that a usage limit or a balance, whose use leaves no room, has refused a call."""

    # settle

    def usage_not_reported(self, reason: str) -> None:
        """An answer is billed by what was delivered. `reason`: `missing`, or `rejected` as implausible."""

    def reservation_overrun(self, tokens: int) -> None:
        """A call cost so much more than it was taken to cost at most."""

    def spend_overrun(self) -> None:
        """A call cost more than a HARD spend limit or balance reserved, as its provider reported."""

    def finished(self, call: RequestReport) -> None:
        """Count a call, and log it. Enqueue; never raises, never waits."""


class AsyncMeters(Protocol):
    """Counts what becomes of asynchronous requests: `AsyncCounts`."""

    # async requests, and the async worker

    def left_queue(self, queued_ms: int) -> None:
        """A request is QUEUED no longer, and no attempt of it has begun."""

    def request_ended(self, deployment: DeploymentRef, status: Status, count: int = 1) -> None: ...

    # the async worker

    def attempt_started(self, deployment: DeploymentRef, queued_ms: int | None) -> None:
        """`queued_ms`: how long the request was QUEUED; None unless this is its first attempt."""

    def attempt_ended(self, deployment: DeploymentRef, outcome: str, duration_s: float) -> None: ...

    def delivery(self, outcome: str) -> None:
        """Count a try to tell a webhook: `delivered`, `failed` or `given_up`."""


class WebhookUrls(Protocol):
    """URLs to which a result may be sent: `ReceiverUrls`."""

    # async requests

    async def check(self, url: str, field: str) -> None:
        """Judge the text, and the addresses that the host resolves to now. Raises `HostRuleError`."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """`base_urls`: by provider, where the operator sets them. The request timeout runs from the dispatch."""

    base_urls: Mapping[str, str]
    request_timeout_s: float = 1200.0
    stream_idle_timeout_s: float = 300.0


def _machine_time_ms() -> int:
    return time.time_ns() // 1_000_000


async def _no_wait() -> None:
    """Return at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncQueueing:
    """The parts that only asynchronous requests need. `max_body_bytes`: where a workspace has no bound of its own.

    `load`: makes the queue ready for its next question. Deadlines of questions begin after it.
    """

    queue: RequestQueue
    webhook_urls: WebhookUrls
    counts: AsyncMeters
    max_body_bytes: int = 262_144
    load: Callable[[], Awaitable[None]] = _no_wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that the pipeline works with, and its settings."""

    directory: Directory
    counters: Counters
    spend: SpendCounters
    journal: Journal
    upstream: UpstreamClient
    replicas: Replicas
    dialects: Dialects
    output_estimates: OutputEstimates
    meters: Meters
    access_tokens: AccessTokens | None = None
    async_queueing: AsyncQueueing | None = None
    """None: asynchronous requests are not set up."""
    dispatch: DispatchSettings
    max_body_bytes: int = 100_000_000
    max_reported_tokens: int = MAX_REPORTED_TOKENS
    assumed_output_tokens: int = ASSUMED_OUTPUT_TOKENS
    call_timeout_s: float = 2400.0
    """The longest time from a call's admission to its end."""
    capacity: CapacityLimits = field(default_factory=CapacityLimits)
    tiers: Mapping[str, Tier] = field(default_factory=lambda: DEFAULT_TIERS)
    cors: CorsRules = field(default_factory=CorsRules)
    model_host_suffix: str = ""
    now_ms: Callable[[], int] = _machine_time_ms
    """The time by which terms of callers end, in ms since 1970. It never goes back: `LatestTime`."""
    trusted_proxies: AddressRanges = field(default_factory=AddressRanges)
    """The peers that are believed when they name the caller's address."""
    look_mark: str = field(default="", repr=False)
    """The mark of looks of the console; see `runtime.http.console_looks`. "": nothing is one."""
    on_exhausted: Callable[[Exception], None] = lambda error: None
    """Callback for a call that is refused because the process, or the machine, has run out of something."""
