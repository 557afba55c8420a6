import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runtime.redis import votes
from runtime.redis.slots import Place
from runtime.redis.votes import most_named

WITHIN_S = 600.0  # beyond the time that a test has
HERE = Place("10.0.0.1", 6379)
THERE = Place("10.0.0.2", 6379)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes, "OTHER_ANSWERS_S", 0.02)


async def says(place: Place | None, after_s: float = 0.0) -> Place | None:
    await asyncio.sleep(after_s)
    return place


async def never_answers() -> Place | None:
    await asyncio.Event().wait()
    return None


async def test_the_majority_decides_at_once() -> None:
    assert await most_named([says(HERE), says(THERE), says(THERE), never_answers(), says(THERE)], WITHIN_S) == THERE


async def test_a_first_answer_is_waited_for_longer_than_further_ones() -> None:
    """TLS on a busy machine takes longer than sentinels may take to agree."""
    assert await most_named([never_answers(), says(HERE, after_s=0.1), never_answers()], WITHIN_S) == HERE


async def test_the_first_ones_decide_if_the_others_are_late() -> None:
    assert await most_named([says(HERE), says(THERE), says(HERE), *(never_answers() for _ in "ab")], WITHIN_S) == HERE


@pytest.mark.parametrize("silent", [never_answers, lambda: says(None)])
async def test_nobody_names_one(silent: Callable[[], Coroutine[Any, Any, Place | None]]) -> None:
    assert await most_named([silent() for _ in range(3)], 0.02) is None
