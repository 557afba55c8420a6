"""Samples of what nodes use: how they are measured, kept while control is away, and delivered once."""

import pytest

from policy.training.node_use import NodeSample
from policy.training.statuses import Outcome
from tests.fakes.training_backend import FakeBackend
from tests.trainer.world import World
from trainer.backend import BackendAwayError
from trainer.looks.node_sampling import NodeSampler

SECOND_NS = 1_000_000_000


async def look(world: World, seconds: float = 15.0) -> bool:
    world.now_s += seconds
    return await world.trainer.sampler.sample()


async def running(world: World, node_count: int = 1) -> None:
    world.control.create("j", "sleep 9", node_count=node_count)
    await world.rounds(3)


async def test_a_share_of_processors_is_that_since_the_look_before(world: World) -> None:
    await running(world)
    assert await look(world) is True
    assert world.trainer.sampler.pending() == ()
    world.attempt("j").nodes[0].use = (31 * SECOND_NS, 2048, None, 8192)
    assert await look(world) is False
    (sample,) = world.trainer.sampler.pending()
    assert (sample.job_id, sample.attempt, sample.rank, sample.cpu_millicores) == ("j", 1, 0, 2000)
    assert (sample.memory_bytes, sample.storage_bytes, sample.storage_total_bytes) == (2048, None, 8192)


async def test_a_sample_goes_with_the_next_report_once(world: World) -> None:
    await running(world, node_count=2)
    await look(world)
    await look(world)
    samples = world.trainer.sampler.pending()
    await world.rounds(2)
    before, last = world.control.reports[-2:]
    assert [sample.rank for sample in before.samples] == [0, 1]
    assert before.samples == samples
    assert last.samples == ()


async def test_while_control_is_away_the_latest_sample_waits(world: World) -> None:
    await running(world)
    world.control.away = "no answer"
    for _ in range(4):
        await look(world)
        await world.rounds()
    assert len(world.trainer.sampler.pending()) == 1
    world.control.away = None
    await world.rounds()
    assert len(world.control.reports[-1].samples) == 1
    assert world.trainer.sampler.pending() == ()


async def test_a_newer_sample_is_not_taken_for_the_delivered_one() -> None:
    backend = FakeBackend()
    sampler = NodeSampler(backend, lambda: 1.0, lambda: 7)
    sample = NodeSample("j", 1, 0, 7, 1, 1, None, None)
    sampler.delivered([sample])
    assert sampler.pending() == ()


async def test_a_node_that_has_ended_is_not_sampled(world: World) -> None:
    await running(world)
    await look(world)
    world.attempt("j").end(Outcome.COMPLETED)
    assert await look(world) is False
    assert world.trainer.sampler.pending() == ()


async def test_cpu_time_that_goes_back_counts_as_none(world: World) -> None:
    await running(world)
    await look(world)
    world.attempt("j").nodes[0].use = (0, 1, 1, 1)
    await look(world)
    assert [sample.cpu_millicores for sample in world.trainer.sampler.pending()] == [0]


async def test_a_backend_that_is_away_is_left_to_the_loop(world: World) -> None:
    await running(world)
    world.backend.away = "the disk is full"
    with pytest.raises(BackendAwayError):
        await look(world)
