"""Calls as take.lua gets them: a plan encoded once, one command for the calls of a tick, the reply read.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller
from typing import Any

from policy.spend.effective import SpendPlan
from proxy.accounting.spend_taken import GUESS_MS, SpendHit, SpendTaken, SpendUnavailable
from proxy.edges.redis.nodes.connection import NEVER, RedisCommand, encode, encode_argument
from proxy.edges.redis.nodes.redis_node import RedisNode
from proxy.edges.redis.scripts import Script
from proxy.edges.redis.spend.scripts import call_arguments, encoded, hard_call_arguments, take_template
from runtime.redis.slots import slot_of

CALLS_MOST = 500
"""The most calls of one command: Lua puts a field per call and their groups' on its stack."""
_answer_of = itemgetter(0)
_event_key_of = itemgetter(1)
_picos_of = itemgetter(2)
_least_of = itemgetter(3)
_is_done = methodcaller("done")
SpendAnswer = asyncio.Future[SpendTaken | SpendHit | SpendUnavailable]
"""The future that the caller of one call awaits."""


class SpendTake(RedisCommand):
    """One call of take.lua, for the calls of one plan in one tick. `calls`: the answer, event's key, picos and
    least of each.

    `node`: the server that it was sent to. Whoever gets no answer in time gives the take up, so a late one is ignored.
    """

    __slots__ = ("calls", "node", "plan")

    node: RedisNode

    def __init__(self, plan: "CompiledSpendPlan", on_reply: "Callable[[SpendTake, Any], None]") -> None:
        self.plan = plan
        self.calls: list[tuple[SpendAnswer, str, int, int]] = []
        self.on_reply = on_reply
        self.sent_at = 0.0
        self.expires_at = NEVER  # `encoded` is set when it is sent

    def order_calls(self) -> None:
        """Leave out the callers that stopped waiting. Call it only before the command is sent.

        HARD limits and balances refuse all calls after the first that they refuse: those that need less come before it.
        """
        if any(map(_is_done, map(_answer_of, self.calls))):
            self.calls = [call for call in self.calls if not call[0].done()]
        if self.plan.plan.is_hard:
            self.calls.sort(key=_least_of)

    def split(self) -> "SpendTake":
        """Part the first `CALLS_MOST` calls from a take that has more."""
        first = SpendTake(self.plan, self.on_reply)
        first.calls = self.calls[:CALLS_MOST]
        del self.calls[:CALLS_MOST]
        return first

    def encode(self, *, with_text: bool = False) -> bytes:
        """The command. `with_text`: for a Redis that has not loaded the script yet."""
        plan = self.plan
        event_keys = map(_event_key_of, self.calls)
        amounts = map(_picos_of, self.calls)
        if plan.plan.is_hard:
            calls = map(hard_call_arguments, event_keys, amounts, map(_least_of, self.calls))
        else:
            calls = map(call_arguments, event_keys, amounts)
        script = plan.by_sha if not with_text else encode_argument(b"EVAL") + encode_argument(plan.script.text)
        return b"*%d\r\n%b%b%b" % (
            plan.argument_count + 2 * len(self.calls),
            script,
            plan.arguments,
            encoded(calls),
        )


class CompiledSpendPlan:
    """A plan encoded for Redis, and the take that this tick's calls join."""

    __slots__ = ("argument_count", "arguments", "by_sha", "plan", "script", "slot", "take")

    def __init__(self, plan: SpendPlan, script: Script, incarnation: str) -> None:
        self.plan = plan
        self.slot = slot_of(plan.key.encode())
        self.script = script
        self.by_sha = encode_argument(b"EVALSHA") + encode_argument(script.sha)
        template = take_template(plan, incarnation)
        command = encode(b"1", plan.key, *template)
        self.arguments = command[command.index(b"$") :]
        self.argument_count = 4 + len(template)  # command, script, number of keys, key
        self.take: SpendTake | None = None

    def hit(self, reply: Sequence[Any]) -> SpendHit:
        """Read a refusal. Where the plan is hard, more follows its three numbers.

        The balance comes behind the last limit.
        """
        place = reply[1]
        wait_ms = max(0, reply[2])
        bounds = self.plan.bounds
        bound = bounds[place - 1] if place <= len(bounds) else self.plan.balance
        assert bound is not None
        return SpendHit(bound, wait_ms or GUESS_MS, wait_ms > 0)
