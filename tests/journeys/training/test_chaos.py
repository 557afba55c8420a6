"""Parts of the product are killed and restarted at random moments while jobs run: each ends once, as its program does.

The program is `tests/journeys/training/chaos.py`.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.chaos_program import Plan
from tests.journeys.training.chaos import Asked, faults_of, run


async def chaos(directory: Path, seconds: float) -> None:
    seed = int(os.environ.get("TOLLGATE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    output: list[str] = []
    faults = await run(directory, Plan(seconds, seed), output.append)
    assert not faults, "\n".join([f"seed {seed}", *faults[:20], *output])


@pytest.mark.timeout(480)
async def test_every_job_ends_once_when_the_product_is_killed_and_restarted(tmp_path: Path) -> None:
    await chaos(tmp_path, 8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_every_job_ends_once_in_a_long_run(tmp_path: Path) -> None:
    await chaos(tmp_path, float(os.environ.get("TOLLGATE_CHAOS_SECONDS", "300")))


# The program itself: each kind of fault is found.


def asked(**changes: Any) -> Asked:
    defaults: dict[str, Any] = {"ended": ["COMPLETED"], "log": ["tick 1", "tick 2"], "status": 0} | changes
    return Asked("job-1", 2, defaults["status"], "tj_1", defaults["ended"], defaults["log"])


@pytest.mark.parametrize(
    ("job", "was_restarted"),
    [
        (asked(), False),
        (asked(status=3, ended=["FAILED"]), False),
        (asked(ended=["STOPPED"], log=["tick 1"]), True),
    ],
)
def test_correct_job_has_no_fault(job: Asked, was_restarted: bool) -> None:
    assert faults_of(job, was_restarted) == []


@pytest.mark.parametrize(
    ("job", "was_restarted"),
    [
        (asked(ended=[]), False),
        (asked(ended=["COMPLETED", "FAILED"]), False),
        (asked(ended=["FAILED"]), False),
        (asked(status=3), False),
        (asked(ended=["STOPPED"], log=["tick 1"]), False),
        (asked(ended=["STOPPED"], log=["tick 2"]), True),
        (asked(log=["tick 1"]), True),
        (asked(log=["tick 1", "tick 1", "tick 2"]), True),
    ],
)
def test_each_kind_of_fault_is_found(job: Asked, was_restarted: bool) -> None:
    assert faults_of(job, was_restarted)
