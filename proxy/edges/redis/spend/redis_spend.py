"""Spend limits in Redis: `ask` admits a call and reserves its cost, `end` and `give_back` correct that later.

Beside the counters: the same servers and connections, and the takes of a tick leave in the same write. Spend limits are
SOFT: without Redis, or while nobody counts what the tree spends, calls are admitted and nothing is reserved.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import hiredis

from policy.spend.effective import SpendPlan
from proxy.accounting.spend_taken import SpendHit, SpendTaken
from proxy.edges.recently_used import RecentlyUsed
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes
from proxy.edges.redis.spend.end_sender import EndSender
from proxy.edges.redis.spend.questions import CALLS_MOST, CompiledSpendPlan, SpendAnswer, SpendTake
from proxy.edges.redis.spend.scripts import (
    SpendScripts,
    call_arguments,
    given_back_arguments,
    given_up_arguments,
)

_log = logging.getLogger(__name__)
PLANS_KEPT = 5_000
"""The number that the counters keep, too."""


class RedisSpend:
    """Spend limits as one worker uses them. `incarnation`: the name of this process, of 16 characters.

    Whoever hooks the flush of `nodes` calls `flush` in it, and `redis_is_back` when a server replies again.
    """

    def __init__(self, nodes: RedisNodes, incarnation: str, scripts: SpendScripts) -> None:
        self._nodes = nodes
        self._incarnation = incarnation
        self._script = scripts.take
        self._ends = EndSender(nodes, scripts.end)
        self._plans = RecentlyUsed[int, CompiledSpendPlan](PLANS_KEPT)
        self.takes_to_send: list[SpendTake] = []
        self.ready_ends = self._ends.ready
        """The trees that have ends to send. If this and `takes_to_send` are empty, `flush` does nothing."""
        self._logged_error = ""

    @property
    def pending_ends(self) -> int:
        """The number of ends that Redis has not confirmed."""
        return self._ends.pending

    def start(self) -> None:
        """Use the running event loop. Its futures are what `ask` returns."""
        self._loop = asyncio.get_running_loop()

    async def close(self, timeout_s: float) -> None:
        """Send the ends that Redis has not confirmed, for at most `timeout_s`."""
        await self._ends.close(timeout_s)

    def ask(self, plan: SpendPlan, event_key: str, picos: int) -> Awaitable[SpendTaken | SpendHit]:
        """Begin to reserve `picos` (10^-12) for the call of this event. Await what this returns at once; if that is
        cancelled, `abandon` it."""
        answer: SpendAnswer = self._loop.create_future()
        compiled = self._plans.young.get(id(plan)) or self._plans.get(id(plan))
        if compiled is None or compiled.plan is not plan:
            compiled = self._compile(plan)
        take = compiled.take
        if take is None or len(take.calls) >= CALLS_MOST:
            take = compiled.take = SpendTake(compiled, self._on_reply)
            self.takes_to_send.append(take)
            self._nodes.schedule_flush()
        take.calls.append((answer, event_key, picos))
        return answer

    def abandon(self, question: Awaitable[SpendTaken | SpendHit]) -> None:
        """Give back what the call reserved, or will: its answer has come, is on its way, or is not asked for yet."""
        if isinstance(question, asyncio.Future) and not question.cancel() and not question.cancelled():
            answer = question.result()
            if isinstance(answer, SpendTaken):
                self.give_back(answer)

    def end(self, take: SpendTaken, picos: int) -> None:
        """Set the reservation of a dispatched call to its cost, until its event is counted. Only queues it: it leaves
        in this tick, and again until Redis confirms it."""
        if take.is_counted and picos != take.picos:
            self._ends.add(take.key, call_arguments(take.event_key, picos))

    def give_back(self, take: SpendTaken) -> None:
        """Return the reservation of a call of which no byte was written upstream. Only queues it, like `end`."""
        if take.is_counted:
            self._ends.add(take.key, given_back_arguments(take.event_key))

    def flush(self) -> None:
        """Encode the ends and the calls of this tick. Ends go first: they may make room for the calls."""
        if self._ends.ready:
            self._ends.send_ready()
        if not self.takes_to_send:
            return
        takes = self.takes_to_send
        self.takes_to_send = []
        for take in takes:
            take.plan.take = None
            take.forget_cancelled()
            if take.calls:
                self._send(take, self._nodes.of(take.plan.slot))

    def redis_is_back(self) -> None:
        """Send again the ends that were not confirmed."""
        self._ends.retry()

    def _compile(self, plan: SpendPlan) -> CompiledSpendPlan:
        """Compile a plan and cache it by identity: the directory makes a new plan when policy has changed."""
        compiled = CompiledSpendPlan(plan, self._script, self._incarnation)
        self._plans.put(id(plan), compiled)
        return compiled

    def _send(self, take: SpendTake, node: RedisNode, *, with_text: bool = False) -> None:
        take.node = node
        take.encoded = take.encode(with_text=with_text)
        node.client.enqueue(take)

    def _on_reply(self, take: SpendTake, reply: Any) -> None:
        """Admit the take's calls in order until a limit refuses. `reply`: None if none came in time."""
        if isinstance(reply, list):
            self._answer(take, reply)
        elif reply is None:
            if take.sent_at:  # it may have run, or may still run
                for _, event_key, _ in take.calls:
                    self._ends.add(take.plan.plan.key, given_up_arguments(event_key))
            self._admit_uncounted(take)
        elif not isinstance(reply, hiredis.ReplyError) or not self._sent_elsewhere(take, str(reply)):
            self._admit_uncounted(take)

    def _answer(self, take: SpendTake, reply: list[int]) -> None:
        plan = take.plan
        admitted = reply[0]
        key = plan.plan.key
        groups = plan.plan.groups
        for answer, event_key, picos in take.calls[:admitted] if reply[1] else take.calls:
            outcome = SpendTaken(key=key, event_key=event_key, groups=groups, picos=picos, is_counted=True)
            if answer.done():
                self.give_back(outcome)
            else:
                answer.set_result(outcome)
        if reply[1]:
            hit = plan.hit(reply)
            for answer, _, _ in take.calls[admitted:]:
                if not answer.done():
                    answer.set_result(hit)

    def _admit_uncounted(self, take: SpendTake) -> None:
        key = take.plan.plan.key
        groups = take.plan.plan.groups
        for answer, event_key, picos in take.calls:
            if not answer.done():
                outcome = SpendTaken(key=key, event_key=event_key, groups=groups, picos=picos, is_counted=False)
                answer.set_result(outcome)

    def _sent_elsewhere(self, take: SpendTake, error: str) -> bool:
        """Send a take that has not run to the right server, with its script. False: the error is another one."""
        if error.startswith("NOSCRIPT"):
            self._send(take, take.node, with_text=True)
            return True
        node = self._nodes.redirected(take.plan.slot, error)
        if node is not None:  # with its script: ASKING holds for one command, so a NOSCRIPT could not be answered
            self._send(take, node, with_text=True)
            return True
        code = error.split(" ", 1)[0]
        if code != self._logged_error:  # once per cause, not once per call
            self._logged_error = code
            _log.error(
                "Redis refuses the script of spend limits (%s); calls are admitted without them. Check the permissions "
                "of the Redis user, and that the server is no replica and has memory left.", code,
            )  # fmt: skip
        return False
