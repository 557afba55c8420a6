"""The counters in Redis: `take` admits a call against all its limits in one round trip, `settle` corrects it later.

Requests of one tick of the event loop leave in one write, those of one plan as one command. A refusal that nothing can
lift early is repeated from memory. Without Redis: 503 (`closed`), or this worker's share (`local`).

See docs/reference/limits.md#admission.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from operator import itemgetter
from typing import Any

import hiredis

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate, Reservation, Settlement
from policy.limits.take_numbers import NO_DEADLINE_MS
from policy.limits.windows import lease_ms
from proxy.accounting.reservations import LimitHit, LimitStatus, Places, Taken
from proxy.edges.recently_used import RecentlyUsed
from proxy.edges.redis.admission_requests import Answer, CompiledPlan, Take, TakeTemplate
from proxy.edges.redis.held_places import HeldPlaces
from proxy.edges.redis.local_limits import LocalLimits
from proxy.edges.redis.nodes.clock import ClockSteps
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.nodes.redis_node import RedisNode
from proxy.edges.redis.nodes.topology import nodes_of
from proxy.edges.redis.pending_takes import PendingTakes
from proxy.edges.redis.scripts import Scripts
from proxy.edges.redis.settlement_sender import SettlementSender
from proxy.edges.redis.spend.redis_spend import RedisSpend
from proxy.edges.redis.spend.scripts import SpendScripts
from proxy.edges.redis.worker_roster import WorkerRoster
from proxy.errors import CountersUnavailableError
from proxy.http_rules.headers import rate_limit_lines
from runtime.redis.slots import slot_of
from runtime.redis.url import RedisUrl

_log = logging.getLogger(__name__)
_estimate_of = itemgetter(1)

PLANS_KEPT = 5_000
"""7 MB with limits on each of five levels. When more pairs of group and slug are called than the directory can keep, it
drops plans all the time; this cache keeps them alive for a while."""
CLOSE_TIMEOUT_S = 2.0
_UNJOURNALED = "~"
"""Suffix of the incarnation for returned reservations. They are not in the journal and need their own numbers: with
shared ones, a replay from the journal would be skipped."""


@dataclass(frozen=True, slots=True)
class CountersOptions:
    """Options of the counters.

    `on_loss`: `closed` or `local`. `call_timeout_s`: bounds how long a usage limit keeps an unsettled reservation.
    `local_refusals`: repeat refusals from memory; if off, every request asks Redis. `on_round_trip`: called with the
    seconds that each reply took. `on_local_decision`: called for each request that was decided without Redis.
    `on_clock_step`: called with a server's name and by how many ms its clock stepped. `before_settling`: called before
    settlements are sent; it writes to the journal what they settle.
    """

    on_loss: str = "closed"
    call_timeout_s: float = 1200
    local_refusals: bool = True
    roster_interval_s: float = 2.0
    client: RedisClientOptions = field(default_factory=RedisClientOptions)
    scripts: Scripts = field(default_factory=Scripts.load)
    spend_scripts: SpendScripts = field(default_factory=SpendScripts.load)
    on_round_trip: Callable[[float], None] | None = None
    on_local_decision: Callable[[], None] | None = None
    on_clock_step: Callable[[str, int], None] = lambda _server, _by_ms: None
    before_settling: Callable[[], None] = lambda: None


class RedisCounters:
    """The counters as one worker uses them. `incarnation`: the name of this process, never used by another one."""

    def __init__(self, redis_url: str, incarnation: str, *, options: CountersOptions | None = None) -> None:
        self._options = options or CountersOptions()
        self._incarnation = incarnation
        self._on_round_trip = self._options.on_round_trip
        self._lease_ms = lease_ms(self._options.call_timeout_s)
        self._nodes = nodes_of(RedisUrl.parse(redis_url), self._options.client)
        self._nodes.hook(self._flush, self._redis_is_back)
        scripts = self._options.scripts
        self._soft_refusals: dict[str, list[CompiledPlan]] = {}
        self._settlements = SettlementSender(
            self._nodes, scripts.settle, self._lease_ms, self._options.before_settling, self._soft_refusals
        )
        self.spend = RedisSpend(self._nodes, incarnation, self._options.spend_scripts)
        """The spend limits, on the same connections."""
        self._takes = PendingTakes(self._nodes, scripts.revoke, incarnation, self._give_back_in_redis)
        self.places = HeldPlaces(self._nodes, scripts.places, incarnation, self._soft_refusals)
        """The calls in flight."""
        self.places.oldest_lost = self._takes.oldest_lost
        self._takes.on_resolved = self.places.resolved
        self._template = TakeTemplate(
            scripts.take, self._lease_ms, incarnation, self._takes.connection_lost, self.places.place
        )
        self._plans = RecentlyUsed[int, CompiledPlan](PLANS_KEPT)
        self._takes_to_send: list[Take] = []
        self._clock_steps = ClockSteps(self._options.client.deadline_s, self._options.on_clock_step)
        self._roster = WorkerRoster(self._nodes, incarnation, self._options.roster_interval_s)
        self._local = self._local_limits() if self._options.on_loss == "local" else None
        self.settle = self._settle_here_too if self._local is not None else partial(self._settlements.add, incarnation)
        """Settles a reservation. Only queues it: it leaves in this tick, and again until Redis confirms it. Its number
        is the next of `numbers`."""
        self._logged_error = ""
        self.numbers: Iterator[int] = count(1)
        """The numbers of settlements, to take from. The scripts need numbers that rise per key; one sequence does."""
        self._unjournaled_numbers = count(1)
        self.local_decisions = 0
        """The number of requests that were decided without Redis since it was lost."""

    def _local_limits(self) -> LocalLimits:
        """Limits with a clock that starts at the machine's time and does not step with it."""
        started_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        return LocalLimits(
            self._lease_ms,
            lambda: self._roster.share,
            lambda: started_ms + time.monotonic_ns() // 1_000_000,
            self.places.held,
        )

    async def start(self) -> None:
        """Connect. Returns within a second, connected or not."""
        self._loop = asyncio.get_running_loop()
        self.spend.start()
        await self._nodes.start()
        if self._local is not None:
            await self._roster.start()

    async def close(self) -> None:
        """Send the settlements, for at most `CLOSE_TIMEOUT_S`, and disconnect."""
        timeout_s = CLOSE_TIMEOUT_S if self.available else 0.0
        await asyncio.gather(self._settlements.close(timeout_s), self.spend.close(timeout_s), self.places.close())
        await self._roster.close()
        await self._nodes.close()

    @property
    def available(self) -> bool:
        """True if Redis replied lately; of a cluster, at least one node."""
        return self._nodes.any_serves

    @property
    def decides(self) -> bool:
        """True if a call with limits can be decided: by Redis, or else by this worker alone."""
        return self.available or (self._local is not None and self._roster.share is not None)

    @property
    def settled_through(self) -> int:
        """The number up to which Redis has confirmed all settlements of this worker."""
        pending = self._settlements.oldest_pending(self._incarnation)
        return self._settlements.last_number if pending is None else pending - 1

    async def take(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken | LimitHit:
        """Admit one call against all bounds of `plan`. If one refuses, nothing is counted.

        `further`: plans of other hashes that bind the call, too: the workspace's tier for the model API
        (policy/limits/tiers.py), the limits of its key. A plan without bounds needs no Redis.
        """
        question = self.ask(plan, estimate, further)
        try:
            return await question
        except asyncio.CancelledError:
            self.abandon(question)
            raise

    def ask(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Awaitable[Taken | LimitHit]:
        """Begin a take. Await what this returns at once; if that is cancelled, `abandon` it."""
        if further:
            return self._take_all((*further, plan), estimate)
        answer: Answer = self._loop.create_future()
        if not plan.groups:
            answer.set_result(Taken())
            return answer
        compiled = self._plans.young.get(id(plan)) or self._plans.get(id(plan))
        if compiled is None:  # what is kept keeps its plan, so no other one has its id
            compiled = self._compile(plan)
        if compiled.refused_until and (refusal := compiled.cached_refusal(self._loop.time())) is not None:
            answer.set_result(refusal)
            return answer
        take = compiled.take
        if take is None:
            if compiled.place is not None:
                self.places.expect(compiled.place)
            take = compiled.take = Take(compiled, self._on_reply)
            self._takes_to_send.append(take)
            self._nodes.schedule_flush()
        take.calls.append((answer, estimate))
        return answer

    def abandon(self, question: Awaitable[Taken | LimitHit]) -> None:
        """Give back what a cancelled caller's take counted, also if the answer has come in the same tick."""
        if (
            isinstance(question, asyncio.Future)
            and question.done()
            and not question.cancelled()
            and question.exception() is None
        ):
            take = question.result()
            if isinstance(take, Taken):
                self.give_back(take)

    def _settle_here_too(self, reservation: Reservation, *, number: int, actual_tokens: int) -> None:
        self._settlements.add(self._incarnation, reservation, number=number, actual_tokens=actual_tokens)
        if self._local is not None:
            self._local.record_settlement(reservation, actual_tokens)

    def give_back(self, take: Taken) -> None:
        """Return everything taken for a call of which no byte was written upstream. Only queues it, like `settle`."""
        for reservation in take.returnable:
            if self._local is not None:
                self._local.record_settlement(reservation, 0, given_back=True)
            if not reservation.local:  # Redis has not counted a local one
                self._give_back_in_redis(reservation)
        if take.place is not None:
            take.place.release()

    async def replay(self, incarnation: str, settlements: Sequence[Settlement]) -> None:
        """Settle what a dead incarnation left behind, under its name and numbers. Returns when Redis has confirmed it.

        Raises `CountersUnavailableError` if Redis is unreachable. The caller leaves out what is older than two days.
        """
        await self._settlements.replay(incarnation, settlements)

    async def _take_all(self, plans: Sequence[Plan], estimate: Estimate) -> Taken | LimitHit:
        """Take from all plans in one tick, each at its own server. Unless all admit, return what any of them took.

        Of several refusals the first plan's counts, but one from memory before all: then nothing is sent.
        """
        questions: list[Awaitable[Taken | LimitHit]] = []
        takes: list[Taken] = []
        try:
            for plan in plans:
                question = self.ask(plan, estimate)
                questions.append(question)
                refusal = question.result() if isinstance(question, asyncio.Future) and question.done() else None
                if isinstance(refusal, LimitHit):
                    return refusal
            for question in questions:
                answer = await question
                if isinstance(answer, LimitHit):
                    return answer
                takes.append(answer)
            return _combined(takes)
        finally:
            if len(takes) < len(plans):
                for question in questions:
                    if isinstance(question, asyncio.Future):
                        question.cancel()  # the take of one that is not answered is returned when it is
                    self.abandon(question)

    def _compile(self, plan: Plan) -> CompiledPlan:
        """Compile a plan and cache it by identity: the directory makes a new plan when policy has changed."""
        compiled = CompiledPlan(plan, self._template)
        self._plans.put(id(plan), compiled)
        return compiled

    def _flush(self) -> None:
        """Encode the takes of this tick. Settlements go first, so that they make room for the requests."""
        if self._settlements.ready:
            self._settlements.send_ready()
        if self.spend.is_due:
            self.spend.flush()
        takes = self._takes_to_send
        self._takes_to_send = []
        if not takes:
            return
        deadline_s = time.monotonic() + self._options.client.deadline_s
        for take in takes:
            take.compiled.take = None
            take.forget_cancelled()
            if take.calls:
                node = self._nodes.of(take.compiled.slot)
                self._send(take, node, node.clock.at_most(deadline_s))

    def _send(self, take: Take, node: RedisNode, deadline_ms: int = NO_DEADLINE_MS, *, with_text: bool = False) -> None:
        """Send a take. One that is sent again has not run. It gets a new number: later ones may have left meanwhile."""
        stamp = self._takes.stamp(take, node, deadline_ms)
        take.encoded = take.compiled.encode(take.estimates, stamp, with_text=with_text)
        node.client.enqueue(take)

    def _on_reply(self, take: Take, reply: Any) -> None:
        """Admit the take's requests in order until a limit refuses. `reply`: None if none came in time.

        Return the reservations of callers that stopped waiting.
        """
        if not isinstance(reply, list):
            self._on_failure(take, reply)
            return
        self._on_answer(take, reply[0])
        admitted = reply[1]
        if admitted:
            self._admit(take, reply, admitted)
        if reply[2]:
            hit = self._refused(take.compiled, reply, take.sent_at)
            for answer, _ in take.calls[admitted:]:
                if not answer.done():
                    answer.set_result(hit)
        elif not admitted and take.is_awaited:  # refused as late, and it was not: Redis' clock was estimated wrongly
            self._send(take, take.node)

    def _admit(self, take: Take, reply: list[int], admitted: int) -> None:
        """Tell the first of a take's callers that they are admitted."""
        compiled = take.compiled
        local = self._local
        calls = take.calls[:admitted]
        by_estimate = compiled.taken(reply, map(_estimate_of, calls))
        if compiled.place is not None:
            self.places.taken(compiled.place, take.number, admitted)
        for answer, estimate in calls:
            admission = by_estimate[estimate]
            if answer.done():
                for reservation in admission.returnable:
                    self._give_back_in_redis(reservation)
                if admission.place is not None:
                    admission.place.release()
                continue
            answer.set_result(admission)
            if local is not None:
                local.record_admission(compiled.plan, estimate, admission.requests)

    def _on_answer(self, take: Take, redis_ms: int) -> None:
        """Note the script's answer, in time or late. A slow one is too imprecise to learn Redis' clock from."""
        self._takes.answered(take)
        elapsed_s = self._loop.time() - take.sent_at
        if elapsed_s <= self._options.client.deadline_s:
            change = take.node.clock.learn(redis_ms, take.sent_at)
            if change is not None:
                self._clock_steps.check(take.node.client.name, take.node.clock, change)
        if self._on_round_trip is not None:
            self._on_round_trip(elapsed_s)

    def _refused(self, compiled: CompiledPlan, reply: list[int], sent_at: float) -> LimitHit:
        """Read a refusal, and cache it (see `CompiledPlan.cache_refusal`)."""
        hit = compiled.limit_hit(reply)
        if self._local is not None:
            self._local.record_refusal(compiled.plan, hit.requests)
        if self._options.local_refusals and compiled.cache_refusal(hit, sent_at):
            self._soft_refusals.setdefault(compiled.plan.key, []).append(compiled)
        return hit

    def _on_failure(self, take: Take, reply: Any) -> None:
        """Send the take again, or decide without Redis: its reply is an error, or missing in time."""
        if isinstance(reply, hiredis.ReplyError):
            take.node.epoch.forget()
            if self._sent_elsewhere(take, str(reply)):
                return
        for answer, estimate in take.calls:
            if not answer.done():
                self._decide_without_redis(take.compiled, answer, estimate)

    def _sent_elsewhere(self, take: Take, error: str) -> bool:
        """Send a take that has not run to the right server, with its script. False: the error is another one."""
        if error.startswith("NOSCRIPT"):
            self._send(take, take.node, with_text=True)
            return True
        node = self._nodes.redirected(take.compiled.slot, error)
        if node is not None:  # with its script: ASKING holds for one command, so a NOSCRIPT could not be answered
            self._send(take, node, with_text=True)
            return True
        code = error.split(" ", 1)[0]
        if code != self._logged_error:  # once per cause, not once per call
            self._logged_error = code
            _log.error(
                "Redis refuses the counters' script (%s); applying TOLLGATE_LIMITS_ON_REDIS_LOSS=%s. Check the "
                "permissions of the Redis user, and that the server is no replica and has memory left.",
                error, self._options.on_loss,
            )  # fmt: skip
        return False

    def _decide_without_redis(self, compiled: CompiledPlan, answer: Answer, estimate: Estimate) -> None:
        if self._local is None:
            answer.set_exception(CountersUnavailableError())
            return
        try:
            decision = self._local.take(compiled.plan, estimate, compiled.place)
        except CountersUnavailableError as error:
            answer.set_exception(error)
            return
        answer.set_result(decision)
        if compiled.place is not None and isinstance(decision, Taken):
            self.places.taken(compiled.place, 0, 1)
        if not self.local_decisions:
            _log.warning("Redis is lost; this worker enforces its share of each limit from memory (%s).",
                         self._roster.share)  # fmt: skip
        self.local_decisions += 1
        if self._options.on_local_decision is not None:
            self._options.on_local_decision()

    def _give_back_in_redis(self, reservation: Reservation) -> None:
        """Return a reservation that Redis has counted."""
        number = next(self._unjournaled_numbers)
        incarnation = self._incarnation + _UNJOURNALED
        self._settlements.add(incarnation, reservation, number=number, actual_tokens=0, given_back=True)

    def _redis_is_back(self) -> None:
        """Recover from a loss: a fail-over may have lost counts, and the connection may have had takes in flight."""
        if self._local is not None:
            self._local.redis_is_back(lambda key: self._nodes.of(slot_of(key.encode())).serves)
        if self.local_decisions:
            _log.warning("Redis is back and decides again; %d requests were decided without it.", self.local_decisions)
            self.local_decisions = 0
        self._soft_refusals.clear()
        for compiled in self._plans.values():
            compiled.forget_refusal()
        self._takes.redis_is_back()
        self.places.redis_is_back()
        self.spend.redis_is_back()


def _combined(takes: Sequence[Taken]) -> Taken:
    """The takes of one call as one. The header fields tell of the tightest limits of all."""
    requests = tokens = None
    for take in takes:
        own_requests, own_tokens = take.tightest()
        requests = _tighter(requests, own_requests)
        tokens = _tighter(tokens, own_tokens)
    places = [take.place for take in takes if take.place is not None]
    return Taken(
        tuple(chain.from_iterable(take.reservations for take in takes)),
        tuple(chain.from_iterable(take.returnable for take in takes)),
        rate_limit_lines(requests, tokens),
        lambda: (requests, tokens),
        Places(places) if len(places) > 1 else next(iter(places), None),
    )


def _tighter(one: LimitStatus | None, other: LimitStatus | None) -> LimitStatus | None:
    if one is None or other is None:
        return one or other
    return one if one.remaining < other.remaining else other
