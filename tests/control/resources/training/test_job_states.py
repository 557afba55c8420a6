"""The life of a training job: what every sequence of reports and requests keeps, and each rule by an example.

See docs/reference/training.md#statuses.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.records.training import JobRecord
from control.resources.training import job_states
from control.resources.training.errors import JobEndedError, JobNotClaimableError, JobNotEndedError
from control.resources.training.job_states import MAX_ERROR_CHARS, TRANSITIONS, JobEvent
from policy.training import statuses
from policy.training.reports import JobReport, NodeState
from policy.training.statuses import (
    COMPLETED,
    CREATED,
    DEPLOY_FAILED,
    DEPLOYING,
    ENDED,
    FAILED,
    PENDING,
    PLACED,
    QUEUED,
    RUNNING,
    STOPPED,
    Outcome,
    Phase,
    Wanted,
)
from tests.control.resources.training.job_examples import job

ENDS = {
    Outcome.COMPLETED: COMPLETED,
    Outcome.FAILED: FAILED,
    Outcome.DEPLOY_FAILED: DEPLOY_FAILED,
    Outcome.STOPPED: STOPPED,
    Outcome.REQUEUED: PENDING,
}


def report(phase: Phase, attempt: int = 1, outcome: Outcome | None = None, error: str | None = None) -> JobReport:
    nodes = (NodeState(0, "here"),) if phase is Phase.RUNNING else ()
    return JobReport("tj_1", attempt, phase, outcome, error, nodes)


REPORTS = st.builds(
    JobReport,
    job_id=st.just("tj_1"),
    attempt=st.integers(0, 3),
    phase=st.sampled_from(Phase),
    outcome=st.none() | st.sampled_from(Outcome),
    error_message=st.none() | st.text(max_size=5),
    is_syncing=st.booleans(),
)
STEPS = st.lists(REPORTS | st.sampled_from(("claim", "stale claim", "stop", "delete")), max_size=30)


def _after(record: JobRecord, step: JobReport | str, now_ms: int) -> JobRecord:
    try:
        match step:
            case JobReport():
                return job_states.reported(record, step, now_ms)
            case "claim":
                return job_states.claimed(record, record.attempt, "digest", now_ms)
            case "stale claim":
                return job_states.claimed(record, record.attempt + 1, "digest", now_ms)
            case "stop":
                return job_states.stopped(record, now_ms)
            case _:
                return job_states.deleted(record, now_ms)
    except (JobEndedError, JobNotEndedError, JobNotClaimableError):
        return record


@given(STEPS)
def test_every_life_follows_the_table(steps: list[JobReport | str]) -> None:
    record = job()
    for now_ms, step in enumerate(steps, 2000):
        before = record
        record = _after(record, step, now_ms)
        assert record.status == before.status or record.status in TRANSITIONS[before.status].values()
        assert before.status not in ENDED or record.status == before.status
        assert (record.ended_at_ms is not None) == (record.status in ENDED)
        assert record.attempt == before.attempt + (step == "claim" and record != before)
        assert (record.updated_at_ms > before.updated_at_ms) == (record != before)
        assert record.status in PLACED or record.environment_digest is None
        assert record.status in PLACED or not record.stop_requested or record.status in ENDED
        assert not record.is_deleted or record.status in ENDED


@given(STEPS, REPORTS)
def test_a_repeated_report_changes_nothing(steps: list[JobReport | str], again: JobReport) -> None:
    record = job()
    for now_ms, step in enumerate(steps, 2000):
        record = _after(record, step, now_ms)
    once = job_states.reported(record, again, 3000)
    assert job_states.reported(once, again, 4000) == once


def test_the_table_covers_every_status_and_ends_only_where_statuses_say() -> None:
    assert TRANSITIONS.keys() == QUEUED | PLACED | ENDED
    assert all(not TRANSITIONS[status] for status in ENDED)
    reachable = {CREATED}
    while more := {after for status in reachable for after in TRANSITIONS[status].values()} - reachable:
        reachable |= more
    assert reachable == TRANSITIONS.keys()
    assert all(JobEvent.WAS_STOPPED in TRANSITIONS[status] for status in QUEUED | PLACED)


def test_a_job_that_does_not_fit_is_pending() -> None:
    assert job_states.reported(job(), report(Phase.WAITING, 0), 2000).status == PENDING


@pytest.mark.parametrize("status", [CREATED, PENDING])
def test_a_claim_begins_the_next_attempt_with_nothing_of_the_last(status: str) -> None:
    pending = job(status=status, attempt=2, error_message="preempted", output_offsets={0: 7})
    record = job_states.claimed(pending, 2, "digest", 2000)
    assert (record.status, record.attempt, record.environment_digest) == (DEPLOYING, 3, "digest")
    assert (record.error_message, record.output_offsets, record.nodes) == (None, {}, ())


@pytest.mark.parametrize(
    "refused",
    [
        job(status=DEPLOYING, attempt=1),
        job(status=STOPPED, attempt=1),
        job(attempt=2),
        job(attempt=1, stop_requested=True),
    ],
    ids=["placed", "ended", "another attempt", "to be stopped"],
)
def test_a_job_that_does_not_wait_cannot_be_claimed(refused: JobRecord) -> None:
    with pytest.raises(JobNotClaimableError):
        job_states.claimed(refused, 1, "digest", 2000)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_attempt_that_deploys_ends_by_its_outcome(outcome: Outcome) -> None:
    placed = job(status=DEPLOYING, attempt=1, environment_digest="digest")
    record = job_states.reported(placed, report(Phase.ENDED, outcome=outcome, error="why"), 2000)
    assert (record.status, record.error_message, record.environment_digest) == (ENDS[outcome], "why", None)


def test_a_job_that_ran_has_failed_even_if_a_node_could_not_start() -> None:
    placed = job(status=RUNNING, attempt=1)
    assert job_states.reported(placed, report(Phase.ENDED, outcome=Outcome.DEPLOY_FAILED), 2000).status == FAILED


def test_a_running_job_shows_its_nodes_and_why_they_are_kept() -> None:
    record = job_states.reported(job(status=DEPLOYING, attempt=1), report(Phase.RUNNING, error="node 0 failed"), 2000)
    assert (record.status, record.error_message, record.nodes) == (RUNNING, "node 0 failed", (NodeState(0, "here"),))


def test_a_preempted_job_that_was_to_stop_is_stopped() -> None:
    running = job_states.stopped(job(status=RUNNING, attempt=1), 2000)
    assert running.stop_requested
    assert running.status == RUNNING
    assert job_states.reported(running, report(Phase.ENDED, outcome=Outcome.REQUEUED), 2001).status == STOPPED


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_report_of_another_attempt_is_ignored(attempt: int) -> None:
    placed = job(status=RUNNING, attempt=1)
    assert job_states.reported(placed, report(Phase.ENDED, attempt, Outcome.FAILED), 2000) is placed


def test_a_late_report_does_not_revive_a_preempted_job() -> None:
    preempted = job(status=PENDING, attempt=1)
    assert job_states.reported(preempted, report(Phase.RUNNING), 2000) is preempted


def test_an_ended_job_still_learns_that_its_checkpoints_are_synced() -> None:
    ended = job(status=COMPLETED, attempt=1, ended_at_ms=1500)
    syncing = job_states.reported(ended, replace(report(Phase.ENDED), is_syncing=True), 2000)
    assert syncing.checkpoint_sync_status == statuses.SYNCING
    synced = job_states.reported(syncing, report(Phase.ENDED), 2001)
    assert (synced.checkpoint_sync_status, synced.status) == (statuses.ALL_SYNCED, COMPLETED)


def test_ended_job_learns_of_a_checkpoint_that_was_refused_after_its_end() -> None:
    ended = job(status=FAILED, attempt=1, error_message="node 0 exited with status 3", ended_at_ms=1500)
    message = "node 0 exited with status 3; checkpoint 'x' is not stored"
    after = job_states.reported(ended, report(Phase.ENDED, outcome=Outcome.FAILED, error=message), 2000)
    assert (after.error_message, after.status) == (message, FAILED)
    assert job_states.reported(after, report(Phase.ENDED, outcome=Outcome.FAILED), 2001) == after
    requeued = report(Phase.ENDED, outcome=Outcome.REQUEUED, error="the trainer was killed")
    assert job_states.reported(ended, requeued, 2000) == ended


def test_a_waiting_job_stops_at_once_and_an_ended_one_not_again() -> None:
    record = job_states.stopped(job(), 2000)
    assert (record.status, record.ended_at_ms) == (STOPPED, 2000)
    with pytest.raises(JobEndedError):
        job_states.stopped(record, 2001)


def test_only_an_ended_job_can_be_deleted() -> None:
    with pytest.raises(JobNotEndedError):
        job_states.deleted(job(status=RUNNING), 2000)
    assert job_states.deleted(job(status=FAILED, ended_at_ms=1500), 2000).is_deleted


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (job(), Wanted.RUN),
        (job(status=RUNNING), Wanted.RUN),
        (job(status=RUNNING, stop_requested=True), Wanted.STOP),
        (job(status=STOPPED, stop_requested=True), None),
        (job(status=STOPPED, is_deleted=True), Wanted.FORGET),
    ],
    ids=["waits", "runs", "is to stop", "has ended", "was deleted"],
)
def test_what_a_trainer_is_to_do_follows_from_the_job(record: JobRecord, command: Wanted | None) -> None:
    assert job_states.wanted(record) is command


def test_an_error_message_is_bounded_text_that_every_database_holds() -> None:
    placed = job(status=RUNNING, attempt=1)
    record = job_states.reported(placed, report(Phase.ENDED, outcome=Outcome.FAILED, error="a\0\ud800" + "b" * 2000), 1)
    assert record.error_message is not None
    assert record.error_message.startswith("a?b")
    assert len(record.error_message) == MAX_ERROR_CHARS
