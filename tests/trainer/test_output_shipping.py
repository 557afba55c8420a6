"""Checks how long the end of an attempt is withheld for its output."""

from policy.training.reports import JobReport
from policy.training.statuses import Outcome, Phase
from tests.trainer.world import World
from trainer.output_shipping import OVERDUE_S, Shipping

RUNS = JobReport("j", 1, Phase.RUNNING)
ENDED = JobReport("j", 1, Phase.ENDED, Outcome.COMPLETED)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_end_is_told_after_a_minute_though_output_still_arrives() -> None:
    world = World()
    clock = Clock()
    shipping = Shipping(world.backend, world.control, RUNS, clock)
    clock.now_s = 1000.0
    assert not shipping.is_overdue
    shipping.saw(ENDED)
    clock.now_s += OVERDUE_S
    assert not shipping.is_overdue
    clock.now_s += 1
    assert shipping.is_overdue


async def test_minute_begins_again_when_control_was_away() -> None:
    world = World()
    clock = Clock()
    shipping = Shipping(world.backend, world.control, ENDED, clock)
    clock.now_s = OVERDUE_S + 1
    shipping.control_is_away()
    assert not shipping.is_overdue
