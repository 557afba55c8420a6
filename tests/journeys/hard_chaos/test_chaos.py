"""A HARD limit holds whatever dies: what is billed is never above the amount, and nothing of it stays out of use."""

import os
import random
from pathlib import Path

import pytest

from tests.journeys.chaos_program import Plan
from tests.journeys.hard_chaos.run import run


def seed() -> int:
    """A new seed each time; TOLLGATE_CHAOS_SEED repeats one."""
    return int(os.environ.get("TOLLGATE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))


async def chaos(directory: Path, plan: Plan) -> None:
    output: list[str] = []
    faults = await run(directory, plan, output.append)
    assert not faults, "\n".join([f"seed {plan.seed}", *faults[:20], *output])


@pytest.mark.timeout(600)
async def test_no_hard_limit_is_exceeded_when_processes_are_killed(tmp_path: Path) -> None:
    await chaos(tmp_path, Plan(0, seed()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_no_hard_limit_is_exceeded_in_a_long_run(tmp_path: Path) -> None:
    await chaos(tmp_path, Plan(float(os.environ.get("TOLLGATE_HARD_CHAOS_SECONDS", "900")), seed()))
