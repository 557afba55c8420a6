"""Prepaid balances under any interleaving: calls, credits, withdrawals, commits, counts, crashes and losses of Redis.

The scripts, the ledger, ingest and the counting are the real ones. No balance is ever drawn below 0, each event draws
what it cost when it was committed, and in the end Redis holds what the ledger does.
"""

import asyncio
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from control.edges.redis.client import connect
from control.edges.redis.spend.spend_hashes import SpendHashes
from control.resources.spend import counting, rebuilds
from control.resources.spend.balances import Ledger
from tests.control.billing import ShiftedClock
from tests.control.plane import running_plane
from tests.control.resources.spend.balance_machine import ACTIONS, BALANCES, HOLDBACK_S, Machine, Shared
from tests.redis_server import private_redis


@pytest.fixture
def shared(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    for module, name, value in (
        (rebuilds, "MACHINES_TOLD_S", 0.0),
        (counting, "IDLE_TURNS", 1),
        (counting, "PRICES_READ_S", 0.0),
    ):
        monkeypatch.setattr(module, name, value)
    with private_redis() as server, server.client() as client, asyncio.Runner() as runner:
        planes = running_plane(sqlite_url)
        plane = runner.run(planes.__aenter__())
        routed = connect(server.url)
        try:
            hashes = SpendHashes(routed)
            clock = ShiftedClock()
            ledger = Ledger(plane.store, hashes, clock, HOLDBACK_S)
            world = Shared(runner.get_loop(), plane, hashes, client, clock, ledger)
            world.pass_midnight()
            yield world
        finally:
            runner.run(routed.aclose())
            runner.run(planes.__aexit__(None, None, None))


def explore(shared: Shared, examples: int, steps: int) -> None:
    thorough = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(type("BoundMachine", (Machine,), {"shared": shared}), settings=thorough)


def test_no_interleaving_draws_a_balance_below_zero(shared: Shared) -> None:
    explore(shared, examples=8, steps=40)


WEIGHTS = {"take": 8, "end": 3, "commit": 3, "withdraw": 4, "credit": 2, "count": 3, "act": 4, "pass_time": 2}
RARE = {"lose_redis": 1, "kill_worker": 1, "withdraw_and_crash": 1, "raise_tomorrows_price": 1}


@pytest.mark.parametrize("seed", range(6))
def test_busy_walk_draws_no_balance_below_zero(shared: Shared, seed: int) -> None:
    """Most calls are open for long, beside withdrawals: a search that begins with little seldom gets there."""
    chance = random.Random(seed)
    one: Any = type("BoundMachine", (Machine,), {"shared": shared})()
    one.plant(seed % 2 == 0, Decimal("0.0002"), Decimal("0.0001"))
    weights = WEIGHTS | RARE
    for _ in range(60):
        name = chance.choices([*weights], [*weights.values()])[0]
        if (name == "end" and not one.open) or (name == "commit" and not one.journal):
            continue
        getattr(one, name)(**_choices(name, chance))
        one.nothing_is_drawn_above_the_credit()
    one.teardown()


def _choices(name: str, chance: random.Random) -> dict[str, Any]:
    """Arguments of a rule."""
    place = chance.choice(BALANCES)
    amount = chance.randint(1, 60) * Decimal("0.000001")
    number = chance.randrange(100)
    share = chance.choice((1.0, chance.random()))
    choices: dict[str, dict[str, Any]] = {
        "take": {"place": chance.randrange(4), "tokens": chance.randint(5, 60), "least": 1, "worker": number % 2},
        "end": {"number": number, "share": share, "is_sent": chance.random() < 0.7},
        "commit": {"count": chance.randint(1, 5), "is_repeated": chance.random() < 0.3},
        "withdraw": {"place": place, "amount": amount},
        "withdraw_and_crash": {"place": place, "amount": amount},
        "credit": {"place": place, "amount": amount, "is_pulled": chance.random() < 0.7},
        "count": {"job": number % 2},
        "act": {"action": chance.choice(ACTIONS)},
        "pass_time": {"by_ms": chance.choice((1_000, 40_000, 100_000))},
        "lose_redis": {"is_emptied": chance.random() < 0.5, "heals": chance.random() < 0.8},
        "kill_worker": {"share": share, "dispatched": number % 4},
        "raise_tomorrows_price": {"rise": chance.choice((Decimal("1.000000000001"), Decimal(2)))},
    }
    return choices[name]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_interleaving_draws_a_balance_below_zero_in_long_runs(shared: Shared) -> None:
    explore(shared, examples=1_000, steps=80)
