"""Spend limits and balances for tests: plans, and scripts as a proxy calls them. The test sets the clock of Redis."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import hiredis
import redis

from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.spend.balances import Balance
from policy.spend.effective import KeySpend, SpendPlan, spend_plan
from policy.spend.key_names import key_name
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_book import Call, IncompleteReservationsError, SpendAdmission
from policy.spend.spend_hash import unpack_amount
from proxy.edges.redis.spend.scripts import (
    Arguments,
    SpendScripts,
    call_arguments,
    encoded,
    hard_call_arguments,
    take_template,
)
from tests.contracts.redis.counters_world import REDIS_CLOCK

INCARNATION = "0123456789abcdef"
EPOCH = "f" * 40
SCRIPTS = SpendScripts.load(REDIS_CLOCK)


def limits(*, day: str = "", month: str = "", mode: SpendEnforcement = SpendEnforcement.SOFT) -> tuple[SpendLimit, ...]:
    """A group's spend limits, in EUR."""
    amounts = {Unit.DAY: day, Unit.MONTH: month}
    return tuple(SpendLimit(unit, Decimal(amount), "EUR", mode) for unit, amount in amounts.items() if amount)


def hard(*, day: str = "", month: str = "") -> tuple[SpendLimit, ...]:
    return limits(day=day, month=month, mode=SpendEnforcement.HARD)


def plan_of(
    *levels: tuple[str, tuple[SpendLimit, ...]],
    mode: Enforcement = Enforcement.CASCADING,
    deposits: Mapping[str, str] | None = None,
    key: tuple[SpendLimit, ...] = (),
) -> SpendPlan:
    """The plan of the first group, whose ancestors follow, each with its limits. `deposits`: in EUR, by group.

    `key`: limits of the key that calls.
    """
    path = [id for id, _ in levels]
    paid_in = deposits or {}
    balances = [Balance("EUR", Decimal(paid_in[id])) if id in paid_in else None for id in path]
    own_limits = KeySpend(key_name("tg_abcdefghijkl"), key) if key else None
    plan = spend_plan(path, mode, [own for _, own in levels], balances, own_limits)
    assert plan is not None
    return plan


def run_take(client: redis.Redis, plan: SpendPlan, calls: Sequence[Call]) -> SpendAdmission | None:
    """Run take.lua for calls of one tick. Raises `IncompleteReservationsError`, as the reference does."""
    questions = [
        hard_call_arguments(event_key, picos, least) if plan.is_hard else call_arguments(event_key, picos)
        for event_key, picos, least in calls
    ]
    arguments = [argument for one in questions for argument in decoded(one)]
    reply = client.eval(SCRIPTS.take.text.decode(), 1, plan.key, *take_template(plan, INCARNATION), *arguments)
    if reply == -1:
        raise IncompleteReservationsError
    if not reply:
        return None
    epoch = reply[3:4]
    assert epoch == ([EPOCH.encode()] if plan.is_hard else [])
    grants = [unpack_amount(grant) if grant else call.picos for call, grant in zip(calls, reply[4:], strict=False)]
    return SpendAdmission(reply[0], reply[1], reply[2], tuple(grants))


def run_end(client: redis.Redis, key: str, *ends: Arguments) -> None:
    """Run end.lua."""
    arguments = [argument for end in ends for argument in decoded(end)]
    assert client.eval(SCRIPTS.end.text.decode(), 1, key, *arguments) == len(ends)


def decoded(call: Arguments) -> list[bytes]:
    """The arguments as Redis gets them."""
    reader = hiredis.Reader()
    reader.feed(b"*2\r\n" + encoded([call]))
    arguments: list[bytes] = reader.gets()
    return arguments
