"""The counters in Redis: `take` before a call, `settle` after it; all limits of a call in one atomic round trip.

What is asked in one tick of the event loop leaves together, three or more checks of one plan as one. A refusal that
nothing can lift early is repeated from memory. With Redis away: 503 (`closed`), or this worker's share (`local`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from policy.limits.effective import Plan
from policy.limits.settlement import Reservation, Settlement
from policy.limits.windows import lease_ms
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis.address import RedisAddress
from proxy.edges.redis.admission_requests import AdmissionBatch, AdmissionRequest, CompiledPlan, Take, TakeTemplate
from proxy.edges.redis.local_limits import LocalLimits
from proxy.edges.redis.pending_takes import PendingTakes
from proxy.edges.redis.pipelined_client import RedisClient, RedisClientOptions
from proxy.edges.redis.scripts import Scripts
from proxy.edges.redis.settlement_sender import SettlementSender
from proxy.edges.redis.worker_roster import WorkerRoster
from proxy.exchange import CountersUnavailableError

_log = logging.getLogger(__name__)

MERGE_FROM = 3
PLANS_KEPT = 2_500
"""As many as the directory knows at most, some 6 MB of them with four limits each. Where more groups call than it can
know it drops plans all the time, and those that it has dropped are kept alive here until all are let go."""
CLOSE_TIMEOUT_S = 2.0
_UNJOURNALED = "~"
"""Give-backs are not in the journal and have a marker of their own: a replay must not find its numbers taken."""


@dataclass(frozen=True, slots=True)
class CountersOptions:
    """`on_loss`: `closed` or `local`. `request_timeout_s` bounds how long an unsettled DAY reservation is kept.

    `local_refusals`: repeat a refusal from memory while that is sound; off, each check asks Redis. `round_trip` and
    `decided_alone`: told of each answer of Redis, and of each check that was decided without it.
    """

    on_loss: str = "closed"
    request_timeout_s: float = 1200
    local_refusals: bool = True
    roster_interval_s: float = 2.0
    client: RedisClientOptions = field(default_factory=RedisClientOptions)
    scripts: Scripts = field(default_factory=Scripts.load)
    round_trip: Callable[[float], None] | None = None
    decided_alone: Callable[[], None] | None = None


class RedisCounters:
    """One worker's way to the counters. `incarnation`: this process' name, never used again by another."""

    def __init__(self, redis_url: str, incarnation: str, *, options: CountersOptions | None = None) -> None:
        self._options = options or CountersOptions()
        self._incarnation = incarnation
        self._round_trip = self._options.round_trip
        self._lease_ms = lease_ms(self._options.request_timeout_s)
        self._client = RedisClient(RedisAddress.parse(redis_url), self._options.client)
        self._client.hook(self._flush, self._redis_is_back)
        scripts = self._options.scripts
        self._settler = SettlementSender(self._client, scripts.settle, self._lease_ms)
        self._takes = PendingTakes(self._client, scripts.revoke, incarnation, self._return_unseen)
        self._form = TakeTemplate(scripts.take, self._lease_ms, incarnation, self._takes.lose)
        self._plans: dict[int, CompiledPlan] = {}
        self._collected: list[CompiledPlan] = []
        self._soft_refusals: dict[str, list[CompiledPlan]] = {}
        self._roster = WorkerRoster(self._client, incarnation, self._options.roster_interval_s)
        self._local = self._local_limits() if self._options.on_loss == "local" else None
        self._logged_error = ""
        self._number = 0
        self._unjournaled_number = 0
        self.local_decisions = 0
        """How many checks were decided without Redis, for want of it, since it was there last."""

    def _local_limits(self) -> LocalLimits:
        return LocalLimits(self._lease_ms, lambda: self._roster.share, lambda: time.time_ns() // 1_000_000)

    async def start(self) -> None:
        """Connect; returns within a second, connected or not."""
        self._loop = asyncio.get_running_loop()
        await self._client.start()
        if self._local is not None:
            await self._roster.start()

    async def close(self) -> None:
        """Flush the settlements, with a bound, and disconnect."""
        await self._settler.close(CLOSE_TIMEOUT_S if self._client.connected else 0.0)
        await self._roster.close()
        await self._client.close()

    @property
    def available(self) -> bool:
        """Whether Redis answers, as far as is known."""
        return self._client.available and self._client.connected

    @property
    def decides(self) -> bool:
        """Whether a call with limits can be admitted: by Redis, or else by this worker alone."""
        return self.available or (self._local is not None and self._roster.share is not None)

    @property
    def pending_settlements(self) -> int:
        return self._settler.pending

    @property
    def settled_through(self) -> int:
        """Up to which number all settlements of this worker are in Redis."""
        pending = self._settler.oldest_pending(self._incarnation)
        return self._number if pending is None else pending - 1

    async def take(self, plan: Plan, estimate_tokens: int, tier: Plan | None = None) -> Taken | LimitHit:
        """Admit one call against all bounds of `plan`, or say which refused; nothing is consumed then.

        `tier`: the workspace's own ceiling (policy/limits/tiers.py), in another hash: taken first, given back when the
        plan refuses. A plan without bounds needs no Redis.
        """
        if tier is not None:
            return await self._take_below(tier, plan, estimate_tokens)
        if not plan.bounds:
            return Taken()
        compiled = self._plans.get(id(plan))
        if compiled is None or compiled.plan is not plan:
            compiled = self._compile(plan)
        if compiled.refused_until and (repeated := compiled.repeated(self._loop.time())) is not None:
            return repeated
        check = AdmissionRequest(compiled, estimate_tokens, self._loop.create_future(), self._answered)
        if not compiled.waiting:
            self._collected.append(compiled)
            self._client.schedule_flush()
        compiled.waiting.append(check)
        try:
            return await check.answer
        except asyncio.CancelledError:
            self._undo_unseen(check)
            raise

    def next_number(self, key: str) -> int:
        """The number of the next settlement of `key`: rising per key, as the scripts need it (one sequence for all)."""
        self._number += 1
        return self._number

    def settle(self, settlement: Settlement) -> None:
        """Settle a reservation. Enqueues only; it is sent with this tick, and again until Redis has it."""
        self._settler.add(self._incarnation, settlement)
        if self._local is not None:
            self._local.settled(settlement)
        self._forget_soft_refusals(settlement.reservation.key)

    def give_back(self, taken: Taken) -> None:
        """Return all that was taken for a call of which no byte was written upstream. Enqueues only, as `settle`."""
        for reservation in taken.returnable:
            self._return(reservation)

    async def replay(self, incarnation: str, settlements: Sequence[Settlement]) -> None:
        """Settle what a dead incarnation left behind, under its name and numbers; returns once Redis has it all.

        Raises `CountersUnavailableError` when it cannot be reached. Leave out what is older than a key's expiry.
        """
        await self._settler.replay(incarnation, settlements)

    async def _take_below(self, tier: Plan, plan: Plan, estimate_tokens: int) -> Taken | LimitHit:
        compiled = self._plans.get(id(tier))
        if compiled is None or compiled.plan is not tier:
            self._compile(tier, is_tier=True)
        ceiling = await self.take(tier, estimate_tokens)
        if isinstance(ceiling, LimitHit):
            return ceiling
        admitted = False
        try:
            granted = await self.take(plan, estimate_tokens)
            admitted = isinstance(granted, Taken)
        finally:
            if not admitted:
                self.give_back(ceiling)
        return _both(ceiling, granted) if isinstance(granted, Taken) else granted

    def _undo_unseen(self, check: AdmissionRequest) -> None:
        """The caller was cancelled between the answer and hearing of it."""
        if check.answer.done() and not check.answer.cancelled() and check.answer.exception() is None:
            answer = check.answer.result()
            if isinstance(answer, Taken):
                self.give_back(answer)

    def _compile(self, plan: Plan, *, is_tier: bool = False) -> CompiledPlan:
        """Known by identity: the directory makes a new plan when policy has changed, and keeps it while it has not."""
        if len(self._plans) >= PLANS_KEPT:
            self._plans.clear()
        compiled = self._plans[id(plan)] = CompiledPlan(plan, self._form, is_tier)
        return compiled

    def _flush(self) -> None:
        """Turn what was collected in this tick into calls: settlements first, so that they make room for the checks."""
        if self._settler.ready:
            self._settler.send_ready()
        collected, self._collected = self._collected, []
        if not collected:
            return
        deadline_ms = self._takes.deadline_ms(time.monotonic() + self._options.client.deadline_s)
        for compiled in collected:
            checks, compiled.waiting = compiled.waiting, []
            if len(checks) >= MERGE_FROM:
                checks = [check for check in checks if not check.answer.done()]
            if len(checks) >= MERGE_FROM:
                merged = AdmissionBatch(checks, self._all_answered)
                merged.request = compiled.merged_request(checks, self._takes.stamp(merged, deadline_ms))
                self._client.call(merged)
                continue
            for check in checks:
                if not check.answer.done():
                    check.request = compiled.request(check.estimate, self._takes.stamp(check, deadline_ms))
                    self._client.call(check)

    def _answered(self, check: AdmissionRequest, reply: Any) -> None:
        """The reply to one check, None when there was none."""
        if not isinstance(reply, list):
            self._unanswered(check, [check], reply)
            return
        self._heard(check, reply[0])
        if reply[1]:
            self._deliver(check, check.compiled.taken(reply, check.estimate))
        elif reply[2]:
            self._deliver(check, self._refused(check.compiled, reply, check.sent_at))
        else:
            self._was_too_late(check, [check])

    def _all_answered(self, merged: AdmissionBatch, reply: Any) -> None:
        """The reply to many: they were admitted in order, as far as they were."""
        checks = merged.checks
        if not isinstance(reply, list):
            self._unanswered(merged, checks, reply)
            return
        self._heard(merged, reply[0])
        compiled, admitted = checks[0].compiled, reply[1]
        for check in checks[:admitted]:
            self._deliver(check, compiled.taken(reply, check.estimate))
        if reply[2]:
            hit = self._refused(compiled, reply, merged.sent_at)
            for check in checks[admitted:]:
                self._deliver(check, hit)
        elif not admitted:
            self._was_too_late(merged, checks)

    def _heard(self, take: Take, redis_ms: int) -> None:
        """An answer, in time or late. One that took long says too little of Redis' clock."""
        self._takes.heard(take.number)
        elapsed_s = self._loop.time() - take.sent_at
        if elapsed_s <= self._options.client.deadline_s:
            self._takes.learn_clock(redis_ms, take.sent_at)
        if self._round_trip is not None:
            self._round_trip(elapsed_s)

    def _was_too_late(self, take: Take, checks: list[AdmissionRequest]) -> None:
        """Redis did not run it. If its time is not up here, the clock was misjudged: ask again, without a deadline."""
        if not all(check.answer.done() for check in checks):
            self._send_again(take, checks, with_text=False)

    def _send_again(self, take: Take, checks: list[AdmissionRequest], *, with_text: bool) -> None:
        """What has not run, under a new number: it leaves after what was sent meanwhile."""
        take.request = checks[0].compiled.merged_request(checks, self._takes.stamp(take), with_text=with_text)
        self._client.call(take)

    def _refused(self, compiled: CompiledPlan, reply: list[int], asked_at: float) -> LimitHit:
        """The refusal, remembered where that is sound: see `CompiledPlan.remember`."""
        hit = compiled.refused(reply)
        if self._local is not None:
            self._local.told(compiled.plan, hit.requests)
        if self._options.local_refusals and compiled.remember(hit, asked_at):
            self._soft_refusals.setdefault(compiled.plan.key, []).append(compiled)
        return hit

    def _deliver(self, check: AdmissionRequest, answer: Taken | LimitHit) -> None:
        """Return what was taken for a caller that no longer waits."""
        if check.answer.done():
            if isinstance(answer, Taken):
                for reservation in answer.returnable:
                    self._return_unseen(reservation)
            return
        check.answer.set_result(answer)
        if self._local is not None and isinstance(answer, Taken):
            self._local.saw(check.compiled.plan, check.estimate, answer.requests)

    def _unanswered(self, take: Take, checks: list[AdmissionRequest], reply: Any) -> None:
        compiled = checks[0].compiled
        if isinstance(reply, hiredis.ReplyError):
            error = str(reply).split(" ", 1)[0]
            if error == "NOSCRIPT":
                self._send_again(take, checks, with_text=True)
                return
            if error != self._logged_error:  # once per cause, not once per call
                self._logged_error = error
                _log.error("Redis refuses the counters' script (%s). Check the Redis user's permissions", reply)
            if error == "READONLY":
                self._client.give_up_connection()
        for check in checks:
            if not check.answer.done():
                self._decide_without_redis(compiled.plan, check)

    def _decide_without_redis(self, plan: Plan, check: AdmissionRequest) -> None:
        if self._local is None:
            check.answer.set_exception(CountersUnavailableError())
            return
        try:
            check.answer.set_result(self._local.take(plan, check.estimate))
        except CountersUnavailableError as error:
            check.answer.set_exception(error)
            return
        if not self.local_decisions:
            _log.warning("limits are decided by this worker alone, by its share: %s", self._roster.share)
        self.local_decisions += 1
        if self._options.decided_alone is not None:
            self._options.decided_alone()

    def _return(self, reservation: Reservation) -> None:
        """Give back what was granted to a caller and will not be used."""
        if self._local is not None:
            self._local.settled(self._returning(reservation))
        if not reservation.local:  # else Redis never heard of it
            self._return_unseen(reservation)

    def _return_unseen(self, reservation: Reservation) -> None:
        """Give back what Redis admitted and no caller ever saw."""
        self._settler.add(self._incarnation + _UNJOURNALED, self._returning(reservation))
        self._forget_soft_refusals(reservation.key)

    def _returning(self, reservation: Reservation) -> Settlement:
        self._unjournaled_number += 1
        return Settlement(reservation=reservation, number=self._unjournaled_number, actual_tokens=0, given_back=True)

    def _forget_soft_refusals(self, key: str) -> None:
        """There is room again."""
        if self._soft_refusals:
            for compiled in self._soft_refusals.pop(key, ()):
                compiled.refused_until = 0.0

    def _redis_is_back(self) -> None:
        """After a loss: a fail-over may have lost counts, and takes may have been lost with the connection."""
        if self._local is not None:
            self._local.redis_is_back()
        if self.local_decisions:
            _log.warning("Redis decides again; %d checks were decided without it", self.local_decisions)
            self.local_decisions = 0
        self._soft_refusals.clear()
        for compiled in self._plans.values():
            compiled.refused_until = 0.0
        self._takes.redis_is_back()


def _both(ceiling: Taken, granted: Taken) -> Taken:
    return Taken(
        ceiling.reservations + granted.reservations,
        _tighter(ceiling.requests, granted.requests),
        _tighter(ceiling.tokens, granted.tokens),
        ceiling.returnable + granted.returnable,
    )


def _tighter(one: LimitStatus | None, other: LimitStatus | None) -> LimitStatus | None:
    if one is None or other is None:
        return one or other
    return one if one.remaining < other.remaining else other
