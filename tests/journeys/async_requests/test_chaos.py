"""Processes are killed at random moments while asynchronous requests run: none is lost, and each ends once.

See docs/reference/inference.md#asynchronous-requests.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.async_requests.chaos import run
from tests.journeys.async_requests.chaos_faults import AttemptSeen, Evidence, Request, Seen, Told, faults_of
from tests.journeys.chaos_program import Plan


def seed() -> int:
    """A new seed each time; TOLLGATE_CHAOS_SEED repeats one."""
    return int(os.environ.get("TOLLGATE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))


async def chaos(directory: Path, plan: Plan) -> None:
    output: list[str] = []
    faults = await run(directory, plan, output.append)
    assert not faults, "\n".join([f"seed {plan.seed}", *faults[:20], *output])


@pytest.mark.timeout(600)
async def test_every_request_ends_once_when_processes_are_killed(tmp_path: Path) -> None:
    await chaos(tmp_path, Plan(15, seed()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_every_request_ends_once_in_a_long_run(tmp_path: Path) -> None:
    await chaos(tmp_path, Plan(float(os.environ.get("TOLLGATE_CHAOS_SECONDS", "900")), seed()))


# chaos_faults.py itself: each kind of fault is found.

ASKED = {"n": 1, "do": ["ok"], "s": 0, "bytes": 0}
DATA = {"n": 1, "attempt": 1, "filling": ""}


def request(*statuses: str, errors: tuple[str, ...] = (), **changes: Any) -> Request:
    looks = [Seen(100.0 + at, status, errors) for at, status in enumerate(statuses or ("QUEUED", "SUCCEEDED"))]
    defaults: dict[str, Any] = {"answered": 201, "id": "a", "states": looks, "max_attempts": 2, "webhook": False}
    return Request(ASKED, **(defaults | changes))


def attempt(number: int = 1, began: float = 100.0, how: str = "ok", ended: float | None = None) -> AttemptSeen:
    return AttemptSeen("a", number, began, began + 0.1 if ended is None else ended, how, 1)


def told(data: Any = DATA, errors: tuple[str, ...] = (), accepted: bool = True, signed: bool = True) -> Told:
    body = {"request_id": "a", "data": data, "errors": [{"code": code} for code in errors]}
    return Told("a", body, accepted, signed)


def faults(
    request_case: Request, attempts: tuple[AttemptSeen, ...], messages: tuple[Told, ...] = (), **more: Any
) -> list[str]:
    return faults_of(Evidence([request_case], attempts, messages, **more))


AGAIN = (attempt(1, how="500"), attempt(2, 101.0))
PREDICT_ERROR = ("MODEL_PREDICT_ERROR",)
REDIS_DIED = {"lossy": [(99.0, 103.0)]}


@pytest.mark.parametrize(
    ("request_case", "attempts", "messages", "more"),
    [
        (request(), (attempt(),), (), {}),
        (request("QUEUED", "IN_PROGRESS", "IN_PROGRESS", "SUCCEEDED"), AGAIN, (), {}),
        (request(webhook=True), (attempt(),), (told(accepted=False), told()), {}),
        (request("FAILED", errors=PREDICT_ERROR), (attempt(how="500"), attempt(2, 101.0, "died")), (), {}),
        (request("FAILED", errors=("INTERNAL_SERVER_ERROR",)), (attempt(how="left"),), (), {"killed": [100.0]}),
        (request("FAILED", errors=PREDICT_ERROR, asked_at=98.0), (attempt(),), (), {"replicas_killed": [99.0]}),
        (request("EXPIRED", errors=("MODEL_NOT_READY",), webhook=True), (), (told(None, ("MODEL_NOT_READY",)),), {}),
        (request("CANCELED", canceled=True, webhook=True), (), (), {}),
        (request("404", "SUCCEEDED"), (attempt(),), (), REDIS_DIED),
        (request("IN_PROGRESS", "QUEUED", "SUCCEEDED"), (attempt(ended=101.0), attempt(began=100.2)), (), REDIS_DIED),
        (request(), (attempt(ended=108.0, how="left"), attempt(2, 107.0)), (), {"stopped": [(100.0, 109.0)]}),
        (request("QUEUED", answered=0), (), (), {}),
        (request("QUEUED", answered=429), (), (), {}),
    ],
)
def test_correct_run_has_no_fault(request_case: Request, attempts: Any, messages: Any, more: dict[str, Any]) -> None:
    assert faults(request_case, attempts, messages, **more) == []


@pytest.mark.parametrize(
    ("request_case", "attempts", "messages", "fault"),
    [
        (request("QUEUED", "IN_PROGRESS"), (attempt(),), (), "never ended"),
        (request("QUEUED", "404", "SUCCEEDED"), (attempt(),), (), "not known later"),
        (request("IN_PROGRESS", "QUEUED", "SUCCEEDED"), (attempt(),), (), "went from IN_PROGRESS to QUEUED"),
        (request("FAILED", "SUCCEEDED"), (attempt(),), (), "ended twice"),
        (request(canceled=True), (attempt(),), (), "canceled, and ended SUCCEEDED"),
        (request("CANCELED", canceled=False), (), (), "a refused cancel had an effect"),
        (request("CANCELED", canceled=True), (attempt(),), (), "ran, and was canceled"),
        (request("EXPIRED", errors=("MODEL_NOT_READY",)), (attempt(),), (), "ran, and expired"),
        (request("EXPIRED"), (), (), "expired with ()"),
        (request(), (), (), "succeeded without a good answer"),
        (request(errors=("MODEL_NOT_READY",)), (attempt(),), (), "succeeded with"),
        (request("FAILED"), (attempt(),), (), "failed with ()"),
        (request("FAILED", errors=("MODEL_INVALID_INPUT",)), (attempt(how="500"),), (), "failed with MODEL_INVALID_"),
        (request("FAILED", errors=("INTERNAL_SERVER_ERROR",)), (attempt(),), (), "no process was killed"),
        (request(), (attempt(), attempt(3, 101.0)), (), "attempt 3 of 2"),
        (request(), (attempt(), attempt(1, 101.0)), (), "attempt 1 after 1"),
        (request(), (attempt(2), attempt(1, 101.0)), (), "attempt 1 after 2"),
        (request(), (attempt(ended=108.0), attempt(2, 101.0)), (), "ran at once"),
        (request(webhook=True), (attempt(),), (), "its webhook was not told"),
        (request(webhook=True), (attempt(),), (told(accepted=False),), "its webhook was not told"),
        (request("WEBHOOK_FAILED", webhook=True), (attempt(),), (told(accepted=False),), "its webhook was given up"),
        (request(webhook=True), (attempt(),), (told(signed=False),), "an unsigned message"),
        (request(webhook=True), AGAIN, (told(), told({})), "its messages differ"),
        (request(webhook=True), (attempt(),), (told({}),), "another answer"),
        (request(webhook=True), (attempt(),), (told(errors=("MODEL_NOT_READY",)),), "its message says"),
        (request(), (attempt(),), (told(),), "1 messages of a request that has none"),
        (request(answered=429), (attempt(),), (), "ran, though 1 was refused"),
    ],
)
def test_each_kind_of_fault_is_found(request_case: Request, attempts: Any, messages: Any, fault: str) -> None:
    assert any(fault in one for one in faults(request_case, attempts, messages))


@pytest.mark.parametrize(
    ("attempts", "killed_at"),
    [((attempt(),), 97.0), ((attempt(),), 101.0), ((attempt(), attempt(2)), 99.0)],
    ids=["before it was asked", "after it ended", "after it noted the last attempt"],
)
def test_killed_replica_explains_only_a_last_attempt_that_it_may_have_had(attempts: Any, killed_at: float) -> None:
    failed = request("FAILED", errors=PREDICT_ERROR, asked_at=98.0)
    (fault,) = faults(failed, attempts, replicas_killed=[killed_at])
    assert "failed with MODEL_PREDICT_ERROR after" in fault
