"""Processes are killed at random moments under load, and every call is billed once, as its caller saw it."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from policy.billing import Tokens
from tests.journeys.billing_faults import Death, Requests, faults_of_events, tokens_redis_may_lose, usage_by_entity
from tests.journeys.callers import CallRecord
from tests.journeys.chaos import run
from tests.journeys.chaos_program import Plan
from tests.journeys.networks import NGINX, NO_NGINX
from tests.postgres_server import MISSING, find_binaries, running_postgres

COST = Tokens(input=100, output=20, cached_input=3)


def seed() -> int:
    """A new seed each time; TOLLGATE_CHAOS_SEED repeats one."""
    return int(os.environ.get("TOLLGATE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))


async def chaos(directory: Path, plan: Plan) -> None:
    output: list[str] = []
    faults = await run(directory, plan, output.append)
    assert not faults, "\n".join([f"seed {plan.seed}", *faults[:20], *output])


@pytest.mark.timeout(480)
async def test_every_call_is_billed_correctly_when_processes_are_killed(tmp_path: Path) -> None:
    await chaos(tmp_path, Plan(12, seed()))


@pytest.mark.timeout(480)
async def test_every_call_is_billed_correctly_through_a_lossy_network(tmp_path: Path) -> None:
    await chaos(tmp_path, Plan(6, seed(), network="lossy"))


BEHIND_NGINX = pytest.param("nginx", marks=pytest.mark.skipif(NGINX is None, reason=NO_NGINX))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("network", ["direct", "lossy", BEHIND_NGINX])
async def test_every_call_is_billed_correctly_in_a_long_run(tmp_path: Path, network: str) -> None:
    await chaos(tmp_path, Plan(float(os.environ.get("TOLLGATE_CHAOS_SECONDS", "300")), seed(), network=network))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(find_binaries() is None, reason=MISSING)
async def test_every_call_is_billed_correctly_in_a_long_run_on_postgresql(tmp_path: Path) -> None:
    with running_postgres() as server:
        settings = {"TOLLGATE_DATABASE_URL": await server.create_database("chaos")}
        await chaos(tmp_path, Plan(float(os.environ.get("TOLLGATE_CHAOS_SECONDS", "300")), seed(), settings=settings))


# billing_faults.py itself: each kind of fault is found.


def call_record(**changes: Any) -> CallRecord:
    defaults: dict[str, Any] = {"status": 200, "tokens": COST, "partial": True, "streamed": True} | changes
    return CallRecord("r-1", "even", COST, ended_at_s=100.0, **defaults)


def event(**changes: Any) -> dict[str, Any]:
    tokens = {"inputTokens": COST.input, "outputTokens": COST.output, "cachedInputTokens": COST.cached_input}
    defaults = {"idempotencyKey": "01J", "requestId": "r-1", "externalEntityId": "even", "timestamp": "2026-01-01"}
    return defaults | {"tokens": tokens} | changes


def empty_event() -> dict[str, Any]:
    return event(tokens={"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0})


CUT = call_record(tokens=None)
UNANSWERED = call_record(tokens=None, partial=False)
REFUSED = call_record(status=429, code="RATE_LIMITED", tokens=None, partial=False)


@pytest.mark.parametrize(
    ("call", "events"),
    [
        (call_record(), [event()]),
        (CUT, [event()]),
        (UNANSWERED, []),
        (UNANSWERED, [empty_event()]),
        (REFUSED, []),
        (call_record(status=503, code="NO_REPLICA", tokens=None, partial=False), [empty_event()]),
    ],
)
def test_correct_billing_has_no_fault(call: CallRecord, events: list[dict[str, Any]]) -> None:
    assert faults_of_events([call], events) == []


@pytest.mark.parametrize(
    ("call", "events"),
    [
        (call_record(), []),
        (call_record(), [empty_event()]),
        (call_record(), [event(), event(idempotencyKey="01K")]),
        (call_record(), [event(), event()]),
        (call_record(), [event(externalEntityId="odd")]),
        (call_record(tokens=Tokens(input=100, output=21, cached_input=3)), [event()]),
        (call_record(), [event(), event(idempotencyKey="01K", requestId="r-2")]),
        (CUT, []),
        (CUT, [empty_event()]),
        (
            call_record(tokens=None, partial=False, streamed=False),
            [event(tokens=event()["tokens"] | {"outputTokens": 21})],
        ),
        (CUT, [event(), event(idempotencyKey="01K")]),
        (REFUSED, [empty_event()]),
        (call_record(status=503, code="METERING_UNAVAILABLE", tokens=None, partial=False), [empty_event()]),
        (call_record(status=503, code="NO_REPLICA", tokens=None, partial=False), [event()]),
        (call_record(status=502, code="INTERNAL_GATEWAY_ERROR", tokens=None, partial=False), []),
    ],
)
def test_each_kind_of_wrong_billing_is_found(call: CallRecord, events: list[dict[str, Any]]) -> None:
    assert faults_of_events([call], events)


def test_only_settlements_shortly_before_redis_died_may_be_lost() -> None:
    assert usage_by_entity([event(), event()]) == {"even": 240}
    assert tokens_redis_may_lose([event()], [call_record()], [Death(101, 101)]) == 120
    assert tokens_redis_may_lose([event()], [call_record()], [Death(110, 109)]) == 0


def test_only_dispatched_calls_and_those_of_dead_workers_count_as_requests() -> None:
    late = call_record(status=503, code="LIMITS_UNAVAILABLE", tokens=None, partial=False)
    assert Requests.of("even", [call_record()], [event()]) == Requests(1, 1)
    assert Requests.of("even", [late], [], [89, 111]) == Requests(0, 0)
    assert Requests.of("even", [late], [], [109]) == Requests(0, 1)
    assert Requests.of("even", [call_record(status=0, tokens=None, partial=False)], []) == Requests(0, 1)
    assert Requests.of("even", [UNANSWERED], [empty_event()]) == Requests(0, 1)
    assert Requests.of("odd", [call_record()], [event()]) == Requests(0, 0)
