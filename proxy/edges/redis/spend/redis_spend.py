"""Spend limits and balances in Redis: `ask` admits a call and reserves its cost, `end` and `give_back` correct that.

Beside the counters: the same servers and connections, and the takes of a tick leave in the same write. Without Redis,
or while nobody counts what the tree spends, SOFT limits admit and reserve nothing, and all else is unavailable.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import hiredis

from policy.spend.effective import SpendPlan
from policy.spend.spend_hash import unpack_amount
from proxy.accounting.spend_taken import SpendHit, SpendTaken, SpendUnavailable
from proxy.edges.recently_used import RecentlyUsed
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes
from proxy.edges.redis.spend.end_sender import EndSender
from proxy.edges.redis.spend.questions import CALLS_MOST, CompiledSpendPlan, SpendAnswer, SpendTake
from proxy.edges.redis.spend.rebuilds import Rebuilds
from proxy.edges.redis.spend.scripts import (
    SpendScripts,
    call_arguments,
    given_back_arguments,
    given_up_arguments,
)

_log = logging.getLogger(__name__)
PLANS_KEPT = 5_000
"""The number that the counters keep, too."""
_LOG_AGAIN_S = 60.0
_AWAY = "Redis does not answer in time"
_REFUSED = "Redis refuses the script"
_UNCOUNTED = "control has not counted what the tree spends"
_INCOMPLETE = "reservations may be missing since Redis was lost, until all machines have put theirs again"
_ANOTHER_SERVER = (
    "Redis has started again, or another server has taken over, since control counted (if that lasts though control "
    "counts, this machine was released: restart its proxy)"
)
_UNREGISTERED = "control does not know yet that this proxy runs"


class RedisSpend:
    """Spend limits as one worker uses them. `incarnation`: the name of this process, of 16 characters.

    Whoever hooks the flush of `nodes` calls `flush` in it if `is_due`, and `redis_is_back` when a server replies again.
    """

    def __init__(self, nodes: RedisNodes, incarnation: str, scripts: SpendScripts) -> None:
        self._nodes = nodes
        self._incarnation = incarnation
        self._script = scripts.take
        self._ends = EndSender(nodes, scripts.end, self._schedule_flush)
        self._plans = RecentlyUsed[int, CompiledSpendPlan](PLANS_KEPT)
        self._takes_to_send: list[SpendTake] = []
        self.open: dict[str, SpendTaken] = {}
        """The reservations of calls in flight, by event key."""
        self._rebuilds = Rebuilds(nodes, self._ends, incarnation, self.open)
        self.may_reserve = False
        """True once control waits for this worker if Redis loses reservations.
        HARD limits and balances are unavailable until then."""
        self._log_again_at = 0.0
        self._logged_error = ""
        self.is_due = False
        """True if this tick's flush has something to send."""

    @property
    def pending_ends(self) -> int:
        """The number of ends that Redis has not confirmed."""
        return self._ends.pending

    @property
    def rebuilt(self) -> Mapping[str, str]:
        """The text that `rebuild` was given, by tree, once Redis has all reservations of this worker there."""
        return self._rebuilds.rebuilt

    def rebuild(self, epochs: Mapping[str, str]) -> None:
        """Put what calls in flight have reserved again in these trees. Replies of other epochs are not believed then.

        `epochs`: by the key of a tree's hash, the epoch in which it must be there, and maybe more words; another text
        asks again.
        """
        self._rebuilds.start(epochs)

    def start(self) -> None:
        """Use the running event loop. Its futures are what `ask` returns."""
        self._loop = asyncio.get_running_loop()

    async def close(self, timeout_s: float) -> None:
        """Send the ends that Redis has not confirmed, for at most `timeout_s`."""
        await self._rebuilds.close()
        await self._ends.close(timeout_s)

    def ask(
        self, plan: SpendPlan, event_key: str, picos: int, least: int = 0
    ) -> Awaitable[SpendTaken | SpendHit | SpendUnavailable]:
        """Begin to reserve `picos` (10^-12) for the call of this event. Await what this returns at once; if that is
        cancelled, `abandon` it.

        With a HARD limit or a balance: all of it, or what room there is, but not less than `least`. Only then it may be
        unavailable.
        """
        answer: SpendAnswer = self._loop.create_future()
        if plan.is_hard:
            if picos < least:
                picos = least
            if not self.may_reserve:
                self._log_unavailable(_UNREGISTERED)
                answer.set_result(SpendUnavailable(_UNREGISTERED))
                return answer
        compiled = self._plans.young.get(id(plan)) or self._plans.get(id(plan))
        if compiled is None:  # what is kept keeps its plan, so no other one has its id
            compiled = self._compile(plan)
        take = compiled.take
        if take is None:
            take = compiled.take = SpendTake(compiled, self._on_reply)
            self._takes_to_send.append(take)
            self._schedule_flush()
        take.calls.append((answer, event_key, picos, least))
        return answer

    def abandon(self, question: Awaitable[SpendTaken | SpendHit | SpendUnavailable]) -> None:
        """Give back what the call reserved, once its answer has come; a call that was not sent yet never is."""
        if isinstance(question, asyncio.Future) and not question.cancel() and not question.cancelled():
            answer = question.result()
            if isinstance(answer, SpendTaken):
                self.give_back(answer)

    def end(self, take: SpendTaken, picos: int) -> None:
        """Set the reservation of a dispatched call to its cost, until its event is counted. Only queues it: it leaves
        in this tick, and again until Redis confirms it."""
        event_key = take.event_key
        self.open.pop(event_key, None)
        if take.is_counted and picos != take.picos:
            self._ends.add(take.plan.key, call_arguments(event_key, picos))

    def give_back(self, take: SpendTaken) -> None:
        """Return the reservation of a call of which no byte was written upstream. Only queues it, like `end`."""
        self.open.pop(take.event_key, None)
        if take.is_counted:
            self._ends.add(take.plan.key, given_back_arguments(take.event_key))

    def flush(self) -> None:
        """Encode the ends and the calls of this tick. Ends go first: they may make room for the calls."""
        self.is_due = False
        if self._ends.ready:
            self._ends.send_ready()
        if not self._takes_to_send:
            return
        takes = self._takes_to_send
        self._takes_to_send = []
        for take in takes:
            take.plan.take = None
            take.order_calls()
            if take.calls:
                node = self._nodes.of(take.plan.slot)
                if take.plan.plan.is_hard:
                    self._read_epoch(node)
                while len(take.calls) > CALLS_MOST:
                    self._send(take.split(), node)
                self._send(take, node)

    def redis_is_back(self) -> None:
        """Send again the ends that were not confirmed."""
        self._ends.retry()

    def _schedule_flush(self) -> None:
        self.is_due = True
        self._nodes.schedule_flush()

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
            if not take.plan.plan.is_hard:
                self._answer(take, reply)
            elif take.node.epoch.text:
                self._verify(take, reply, self._rebuilds.puts)
            else:  # it was sent elsewhere, or the server did not tell
                take.node.epoch.read(partial(self._verify, take, reply, self._rebuilds.puts))
        elif reply is None:
            if take.sent_at:  # it may have run, or may still run
                for _, event_key, _, _ in take.calls:
                    self._ends.add(take.plan.plan.key, given_up_arguments(event_key))
            self._do_without(take, _AWAY)
        elif isinstance(reply, hiredis.ReplyError):
            take.node.epoch.forget()
            if not self._sent_elsewhere(take, str(reply)):
                self._do_without(take, _REFUSED)
        else:
            self._do_without(take, _INCOMPLETE if reply == -1 else _UNCOUNTED)

    def _verify(self, take: SpendTake, reply: list[Any], puts: int) -> None:
        """Answer calls that HARD limits or a balance bind, if the server is still the one under which all was counted.

        `puts`: the number of puts when the reply came. One since then has not put what these calls have reserved.
        """
        key = take.plan.plan.key
        epoch = reply[3].decode()
        is_put = puts == self._rebuilds.puts
        if is_put and take.node.epoch.text == epoch == self._rebuilds.present_epochs.get(key, epoch):
            self._answer(take, reply)
            return
        for _, event_key, _, _ in take.calls[: reply[0]]:
            self._ends.add(key, given_back_arguments(event_key))
        self._unavailable(take, _ANOTHER_SERVER if take.node.epoch.text else _AWAY)

    def _answer(self, take: SpendTake, reply: list[Any]) -> None:
        plan = take.plan.plan
        open_calls = self.open
        admitted = reply[0]
        calls = take.calls[:admitted]
        if any(grants := reply[4:]):  # there was not room for all that was asked for
            calls = [
                (answer, event_key, unpack_amount(grant) if grant else picos, least)
                for (answer, event_key, picos, least), grant in zip(calls, grants, strict=True)
            ]
        for answer, event_key, picos, _ in calls:
            outcome = SpendTaken(plan=plan, event_key=event_key, picos=picos, is_counted=True)
            if answer.done():
                self.give_back(outcome)
            else:
                open_calls[event_key] = outcome
                answer.set_result(outcome)
        if reply[1]:
            hit = take.plan.hit(reply)
            for answer, _, _, _ in take.calls[admitted:]:
                if not answer.done():
                    answer.set_result(hit)

    def _do_without(self, take: SpendTake, cause: str) -> None:
        """Answer calls of which nothing is reserved."""
        if take.plan.plan.is_hard:
            self._unavailable(take, cause)
        else:
            self._admit_uncounted(take)

    def _unavailable(self, take: SpendTake, cause: str) -> None:
        self._log_unavailable(cause)
        outcome = SpendUnavailable(cause)
        for answer, _, _, _ in take.calls:
            if not answer.done():
                answer.set_result(outcome)

    def _log_unavailable(self, cause: str) -> None:
        """Log it once a minute, not once per call."""
        now_s = self._loop.time()
        if now_s >= self._log_again_at:
            self._log_again_at = now_s + _LOG_AGAIN_S
            _log.error(
                "Calls that HARD spend limits bind, or that draw from a balance, are answered with 503: %s. Check "
                "Redis, that control runs, and that all machines of proxies do; limits may be set to SOFT.", cause,
            )  # fmt: skip

    def _read_epoch(self, node: RedisNode) -> None:
        """Ask for the server's epoch before a take, so that it is answered before it."""
        if not node.epoch.is_fresh:
            node.epoch.read()

    def _admit_uncounted(self, take: SpendTake) -> None:
        plan = take.plan.plan
        for answer, event_key, picos, _ in take.calls:
            if not answer.done():
                outcome = SpendTaken(plan=plan, event_key=event_key, picos=picos, is_counted=False)
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
                "Redis refuses the script of spend limits (%s); calls are admitted without SOFT ones, and those that "
                "HARD ones bind, or that draw from a balance, are answered with 503. Check the permissions of the "
                "Redis user, and that the server is no replica and has memory left.", code,
            )  # fmt: skip
        return False
