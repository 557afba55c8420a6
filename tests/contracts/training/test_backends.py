"""Behaviour of every training backend. The fake and the real ones pass the same tests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from policy.training.job_spec import CacheSpec, LoadRef, LoadSpec
from policy.training.reports import CheckpointFile, Load, Restore
from policy.training.statuses import Outcome, Phase
from tests.contracts.training.backends import (
    Control,
    all_output,
    claimed,
    ended,
    in_phase,
    printed,
    report_of,
    settings,
    started,
)
from tests.fakes.training_backend import FakeBackend
from trainer.backend import Backend, BackendAwayError, EnvironmentRefusedError, NoTerminalError
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.local import LocalBackend


@dataclass
class Stage:
    """A backend, and the control that it asks for environments."""

    backend: Backend
    control: Control


@pytest.fixture(params=["fake", "local"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    control = Control()
    backend: Backend = (
        FakeBackend(environment=control.spend)
        if request.param == "fake"
        else LocalBackend(settings(tmp_path), control.spend, checkpoints_in((tmp_path / "store").as_uri()))
    )
    async with AsyncExitStack() as stack:
        await backend.open()
        stack.push_async_callback(backend.close)
        yield Stage(backend, control)


async def test_job_whose_commands_all_succeed_is_completed(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo one", "echo two"))

    report = await ended(stage.backend, job)

    assert (report.outcome, report.error_message) == (Outcome.COMPLETED, None)
    assert [node.exit_status for node in report.nodes] == [0]
    assert await all_output(stage.backend, job) == [(False, "one"), (False, "two")]


async def test_nodes_that_run_say_what_they_use_and_others_do_not(stage: Stage) -> None:
    over = await started(stage.backend, claimed("true"))
    await ended(stage.backend, over)
    job = await started(stage.backend, claimed("sleep 60", node_count=2))
    await in_phase(stage.backend, job, Phase.RUNNING)

    uses = await stage.backend.usage()

    assert [(use.job_id, use.attempt, use.rank) for use in uses] == [(job.job_id, 1, 0), (job.job_id, 1, 1)]
    assert all(use.memory_bytes > 0 and use.storage_total_bytes for use in uses)


async def test_standard_error_is_told_from_standard_output(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo oh >&2"))

    await ended(stage.backend, job)

    assert await all_output(stage.backend, job) == [(True, "oh")]


async def test_first_command_that_fails_ends_the_job_with_its_status(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo one", "exit 3", "echo never"))

    report = await ended(stage.backend, job)

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 0 exited with status 3")
    assert await all_output(stage.backend, job) == [(False, "one")]


async def test_each_node_has_its_own_output(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo hello", node_count=2))

    report = await ended(stage.backend, job)

    assert [node.rank for node in report.nodes] == [0, 1]
    assert [await all_output(stage.backend, job, rank) for rank in (0, 1)] == [[(False, "hello")]] * 2


async def test_output_is_read_again_from_any_offset_that_was_told(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo 1; echo 2; echo 3; echo 4; echo 5"))
    await ended(stage.backend, job)

    first = await stage.backend.output(job.job_id, job.attempt, 0, 0)
    again = await stage.backend.output(job.job_id, job.attempt, 0, 0)

    assert first == again
    assert [time for time, _, _ in first.lines] == sorted({time for time, _, _ in first.lines})


async def test_running_job_has_output_but_no_end_of_it(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo hello; sleep 1000"))

    await printed(stage.backend, job, "hello")
    report = await in_phase(stage.backend, job, Phase.RUNNING)
    chunk = await stage.backend.output(job.job_id, job.attempt, 0, 0)

    assert [node.exit_status for node in report.nodes] == [None]
    assert not chunk.is_end


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.REQUEUED])
async def test_stopped_job_ends_with_the_outcome_that_was_asked_for(stage: Stage, outcome: Outcome) -> None:
    job = await started(stage.backend, claimed("sleep 1000", node_count=2))
    await in_phase(stage.backend, job, Phase.RUNNING)

    await stage.backend.stop(job.job_id, outcome)
    report = await ended(stage.backend, job)

    assert (report.outcome, report.error_message) == (outcome, None)


async def test_stop_wins_over_preemption(stage: Stage) -> None:
    if isinstance(stage.backend, FakeBackend):
        stage.backend.is_deaf = True
    job = await started(stage.backend, claimed("sleep 1000"))
    await in_phase(stage.backend, job, Phase.RUNNING)

    await stage.backend.stop(job.job_id, Outcome.REQUEUED)
    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    await stage.backend.stop(job.job_id, Outcome.REQUEUED)
    if isinstance(stage.backend, FakeBackend):
        stage.backend.finish_stop(job.job_id)

    assert (await ended(stage.backend, job)).outcome is Outcome.STOPPED


async def test_ended_job_stays_as_it_is_when_asked_to_stop(stage: Stage) -> None:
    job = await started(stage.backend, claimed("exit 3"))
    before = await ended(stage.backend, job)

    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    await stage.backend.stop("unknown", Outcome.STOPPED)

    assert await report_of(stage.backend, job) == before


async def test_refused_environment_ends_the_attempt_before_anything_runs(stage: Stage) -> None:
    stage.control.refusal = EnvironmentRefusedError("There is no secret named HF_TOKEN", Outcome.DEPLOY_FAILED)

    job = await started(stage.backend, claimed("echo hello"))
    report = await ended(stage.backend, job)

    assert (report.outcome, report.error_message) == (Outcome.DEPLOY_FAILED, "There is no secret named HF_TOKEN")
    assert await all_output(stage.backend, job) == []


async def test_checkpoint_to_load_that_is_lost_ends_the_attempt_before_anything_runs(stage: Stage) -> None:
    checkpoint = Restore("step-1", "other/step-1/v", (CheckpointFile("w", 1, "0" * 64),))
    if isinstance(stage.backend, FakeBackend):
        stage.backend.lost_locations.add(checkpoint.location)
    job = claimed("echo hello", load=LoadSpec((LoadRef("other"),)))
    job = await started(stage.backend, replace(job, loads=(Load("rank-0", checkpoint),)))

    report = await ended(stage.backend, job)

    assert report.outcome is Outcome.DEPLOY_FAILED
    assert report.error_message == "checkpoint step-1 is not in the checkpoint store any more"
    assert await all_output(stage.backend, job) == []


async def test_cache_is_told_of_once_after_each_end_and_removed_when_no_job_uses_it(stage: Stage) -> None:
    backend = stage.backend
    first = replace(claimed("exit 0", cache=CacheSpec()), project_id="tp_1")
    second = replace(claimed("sleep 1000", cache=CacheSpec()), project_id="tp_1")
    other = await started(backend, replace(claimed("exit 0"), project_id="tp_2"))
    await started(backend, first)
    await ended(backend, first)
    await ended(backend, other)
    assert [summary.project_id for summary in await backend.cache_summaries()] == ["tp_1"]
    assert await backend.cache_summaries() == []

    await started(backend, second)
    await in_phase(backend, second, Phase.RUNNING)
    with pytest.raises(BackendAwayError):
        await backend.forget_cache("tp_1")
    await backend.stop(second.job_id, Outcome.STOPPED)
    await ended(backend, second)
    assert [summary.project_id for summary in await backend.cache_summaries()] == ["tp_1"]
    await backend.forget_cache("tp_1")
    await backend.forget_cache("tp_1")


async def test_token_is_spent_once(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo hello", node_count=2))

    await ended(stage.backend, job)

    assert stage.control.spent == [job.environment_token]


async def test_forgotten_job_is_observed_no_more(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo hello"))
    await ended(stage.backend, job)

    await stage.backend.forget(job.job_id, with_store=True)
    await stage.backend.forget(job.job_id, with_store=True)

    assert await report_of(stage.backend, job) is None


async def test_ended_node_has_no_terminal(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo hello"))
    await ended(stage.backend, job)

    with pytest.raises(NoTerminalError):
        await stage.backend.terminal(job.job_id, job.attempt, 0)


async def test_close_stops_what_runs_and_answers_for_it_afterwards(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo hello; sleep 1000"))
    await printed(stage.backend, job, "hello")

    await stage.backend.close()
    report = await report_of(stage.backend, job)

    assert report is not None
    assert (report.phase, report.outcome) == (Phase.ENDED, Outcome.STOPPED)
    assert report.error_message == "Tollgate was stopped"
    assert await all_output(stage.backend, job) == [(False, "hello")]
