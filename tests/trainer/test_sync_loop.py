"""A trainer between a backend and a control in memory: the life of jobs, outages, deaths."""

import pytest

from policy.training.job_spec import SPOT
from policy.training.reports import CheckpointFile, CheckpointReport, WantedTerminal
from policy.training.resources import NodeResources
from policy.training.statuses import FULL, Outcome, Phase
from runtime.log_lines import START_S
from tests.fakes.training_backend import STOPPED_WITH_THE_PRODUCT
from tests.trainer.world import TURNS, World
from trainer.backend import OutputChunk
from trainer.control import ControlRefusedError
from trainer.sync_loop import CLOSE_S, SyncLoop

WHOLE = NodeResources(millicpu=4000, memory_mib=1024)


async def test_a_job_runs_to_its_end_and_its_log_is_whole_when_it_shows_as_ended(world: World) -> None:
    lines = [f"line {number}" for number in range(20)]
    world.control.create("j", *(f"echo {line}" for line in lines))
    await world.until_ended("j")
    assert world.statuses("j") == ["CREATED", "DEPLOYING", "RUNNING", "COMPLETED"]
    assert world.control.log_of("j") == lines
    assert world.control.lines_at_end["j"] == len(lines)


async def test_a_failed_node_is_named_and_its_last_words_are_kept(world: World) -> None:
    world.control.create("j", "echo 'out of memory' >&2", "exit 3")
    await world.until_ended("j")
    assert world.status("j") == "FAILED"
    assert world.control.jobs["j"].error_message == "node 0 exited with status 3"
    assert [(line.level, line.message) for line in world.control.lines["j"]] == [("WARNING", "out of memory")]


async def test_a_node_that_prints_without_end_delays_neither_the_others_nor_checkpoints(world: World) -> None:
    world.control.create("j", "echo begun", "sleep 9", node_count=2)
    await world.rounds(3)
    attempt = world.attempt("j")
    read = world.backend.output

    async def endless(job_id: str, attempt: int, rank: int, offset: int) -> OutputChunk:
        if rank == 0:
            world.attempt("j").print("more")
        return await read(job_id, attempt, rank, offset)

    world.backend.output = endless  # type: ignore[method-assign]
    attempt.print("the other node", rank=1)
    attempt.checkpoints = [CheckpointReport("step-1", "j/step-1/0", 1, FULL, None, None, 3)]
    await world.rounds(6)
    assert "the other node" in world.control.log_of("j")
    assert world.control.checkpoints_of["j"]


async def test_metrics_are_lines_of_json(world: World) -> None:
    world.control.create("j", 'echo {"metric": "loss", "value": 0.5, "step": 3}')
    await world.until_ended("j")
    (point,) = world.control.metrics["j"]
    assert (point.name, point.step, point.value) == ("loss", 3, 0.5)
    assert len(world.control.lines["j"]) == 1


async def test_what_an_ended_job_left_on_the_hosts_is_removed_and_nothing_more_reported(world: World) -> None:
    world.control.create("j", "echo done")
    await world.until_ended("j")
    await world.rounds(2)
    assert ("forget", "j", "hosts") in world.backend.calls
    assert not world.backend.attempts
    await world.rounds()
    assert world.control.reports[-1].jobs == ()


async def test_a_job_that_does_not_fit_waits_and_starts_when_there_is_room(world: World) -> None:
    world.control.create("first", "sleep 9", resources=WHOLE)
    world.control.create("second", "echo hello", resources=WHOLE)
    await world.rounds(4)
    assert (world.status("first"), world.status("second")) == ("RUNNING", "PENDING")
    world.attempt("first").end(Outcome.COMPLETED)
    await world.until_ended("first", "second")
    assert world.statuses("second") == ["CREATED", "PENDING", "DEPLOYING", "RUNNING", "COMPLETED"]


async def test_a_waiting_job_that_is_moved_in_the_queue_starts_by_its_new_place(world: World) -> None:
    world.control.create("running", "sleep 1", resources=WHOLE)
    await world.rounds(3)
    for name in ("first", "second"):
        world.control.create(name, "sleep 1", resources=WHOLE)
    await world.rounds(3)
    world.control.move("second", priority=1)
    world.attempt("running").end(Outcome.COMPLETED)
    await world.rounds(6)
    assert (world.status("second"), world.status("first")) == ("RUNNING", "PENDING")


async def test_a_start_that_takes_its_time_is_not_lost_and_keeps_its_room(world: World) -> None:
    world.backend.turns = 5 * TURNS
    world.control.create("slow", "sleep 9", resources=WHOLE)
    await world.rounds(2)
    world.control.create("next", "sleep 9", resources=WHOLE)
    await world.rounds(8)
    assert world.statuses("slow") == ["CREATED", "DEPLOYING", "RUNNING"]
    assert world.statuses("next") == ["CREATED", "PENDING"]


async def test_a_stopped_job_ends_as_stopped(world: World) -> None:
    world.control.create("j", "echo hello", "sleep 9")
    await world.rounds(3)
    world.control.stop("j")
    await world.until_ended("j")
    assert world.status("j") == "STOPPED"
    assert world.control.log_of("j") == ["hello"]


async def test_a_deaf_job_is_asked_to_end_once(world: World) -> None:
    world.backend.is_deaf = True
    world.control.create("j", "sleep 9")
    await world.rounds(3)
    world.control.stop("j")
    await world.rounds(10)
    assert world.backend.calls.count(("stop", "j", "STOPPED")) == 1
    world.backend.finish_stop("j")
    await world.until_ended("j")


async def test_a_dedicated_job_preempts_a_spot_job_which_runs_again_later(world: World) -> None:
    world.control.create("spot", "echo spot", "sleep 9", availability=SPOT, resources=WHOLE)
    await world.rounds(3)
    world.control.create("dedicated", "echo dedicated", resources=WHOLE)
    await world.until_ended("dedicated")
    await world.rounds(6)
    assert world.statuses("spot")[-3:] == ["PENDING", "DEPLOYING", "RUNNING"]
    assert world.control.jobs["spot"].attempt == 2
    assert world.control.log_of("spot") == ["spot", "spot"]


async def test_a_preempted_job_waits_until_its_checkpoints_are_in_the_store(world: World) -> None:
    world.control.create("spot", "sleep 9", availability=SPOT)
    await world.rounds(3)
    attempt = world.attempt("spot")
    attempt.is_syncing = True
    attempt.end(Outcome.REQUEUED)
    await world.rounds(8)
    assert world.status("spot") == "PENDING"
    assert world.control.jobs["spot"].checkpoint_sync_status == "SYNCING"
    attempt.is_syncing = False
    await world.rounds(8)
    assert world.status("spot") == "RUNNING"
    assert world.control.jobs["spot"].attempt == 2


async def test_checkpoints_are_told_before_their_sync_is_over(world: World) -> None:
    def checkpoint(*files: CheckpointFile) -> CheckpointReport:
        return CheckpointReport("step-1", "j/step-1/0", 1, FULL, None, None, 3, files or None)

    world.control.create("j", "sleep 9")
    await world.rounds(3)
    attempt = world.attempt("j")
    attempt.checkpoints = [checkpoint()]
    attempt.is_syncing = True
    await world.rounds(3)
    assert world.control.checkpoints_of["j"] == [checkpoint()]
    assert world.control.jobs["j"].checkpoint_sync_status == "SYNCING"
    stored = checkpoint(CheckpointFile("weights", 3, "00"))
    attempt.checkpoints = [stored]
    attempt.is_syncing = False
    attempt.end(Outcome.COMPLETED)
    while world.control.jobs["j"].checkpoint_sync_status == "SYNCING":
        assert world.control.jobs["j"].status != "TRAINING_JOB_COMPLETED" or world.control.checkpoints_of["j"] == [
            stored
        ]
        await world.rounds()
    assert world.control.checkpoints_of["j"] == [stored]


async def test_a_missing_secret_ends_the_job_with_its_name(world: World) -> None:
    world.backend._environment = world.control.environment
    world.control.secrets_missing = frozenset({"j"})
    world.control.create("j", "echo never")
    await world.until_ended("j")
    assert world.status("j") == "DEPLOY_FAILED"
    assert world.control.jobs["j"].error_message == "The secret hf is missing"


async def test_a_backend_that_fails_to_start_a_job_ends_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def start(*_: object) -> None:
        raise PermissionError("/secret/path")

    world.backend.start = start  # type: ignore[method-assign, assignment]
    world.control.create("j", "echo never")
    await world.until_ended("j")
    assert world.status("j") == "DEPLOY_FAILED"
    assert "/secret/path" not in (world.control.jobs["j"].error_message or "")
    assert "/secret/path" in caplog.text


# --- deletion -------------------------------------------------------------------------------------------------------


async def test_a_deleted_job_is_forgotten_in_the_store_too(world: World) -> None:
    world.control.create("j", "echo done")
    await world.until_ended("j")
    world.control.delete("j")
    await world.rounds(6)
    assert world.control.forgotten == ["j"]
    assert ("forget", "j", "store") in world.backend.calls
    assert world.control.reports[-1].jobs == ()


async def test_a_deleted_job_is_tried_again_with_growing_pauses_while_the_store_is_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.control.create("j", "echo done")
    await world.until_ended("j")
    world.backend.store_away = "no route to the store"
    world.control.delete("j")
    await world.rounds(60)
    assert not world.control.forgotten
    assert caplog.text.count("no route to the store") == 1
    assert "TOLLGATE_CHECKPOINT_STORE" in caplog.text
    world.backend.store_away = None
    await world.rounds(130)
    assert world.control.forgotten == ["j"]


# --- outages --------------------------------------------------------------------------------------------------------


async def test_jobs_go_on_while_control_is_away_and_nothing_starts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.control.create("j", "echo before", "sleep 9")
    await world.rounds(3)
    world.control.create("later", "echo later")
    world.control.away = "connection refused"
    world.attempt("j").print("during")
    await world.rounds(3)
    world.control.away = "another sign of the same"
    world.attempt("j").end(Outcome.COMPLETED)
    await world.rounds(3)
    assert "later" not in world.backend.attempts
    assert caplog.text.count("Control is away") == 1
    assert "connection refused" in caplog.text
    world.control.away = None
    await world.until_ended("j", "later")
    assert world.control.log_of("j") == ["before", "during"]
    assert world.control.lines_at_end["j"] == 2


async def test_control_that_starts_with_the_trainer_is_not_said_to_be_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.control.away = "connection refused"
    await world.rounds(2)
    assert not caplog.text
    world.now_s += START_S
    await world.rounds(2)
    assert caplog.text.count("Control is away") == 1


async def test_nothing_is_lost_or_started_while_the_backend_is_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.control.create("j", "sleep 9")
    await world.rounds(3)
    world.backend.away = "Ray does not answer"
    world.control.create("later", "echo later")
    await world.rounds(5)
    assert (world.status("j"), world.status("later")) == ("RUNNING", "CREATED")
    report = world.control.reports[-1]
    assert (report.reason, report.jobs, report.hosts) == ("Ray does not answer", (), ())
    assert caplog.text.count("Ray does not answer") == 1
    world.backend.away = None
    await world.until_ended("later")
    assert world.status("j") == "RUNNING"


async def test_a_backend_that_is_away_at_the_start_is_opened_later(world: World) -> None:
    world.backend.away = "not there yet"
    await world.rounds(2)
    world.control.create("j", "echo hello")
    world.backend.away = None
    await world.until_ended("j")


async def test_a_second_trainer_waits_and_does_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.control.other_trainer = True
    world.control.create("j", "echo hello")
    await world.rounds(5)
    assert world.trainer.has_synced.is_set()
    assert not world.backend.calls
    assert caplog.text.count("Another trainer") == 1
    world.control.other_trainer = False
    await world.until_ended("j")
    assert caplog.text.count("The other trainer has ended") == 1


async def test_a_lost_answer_to_a_claim_lets_the_job_wait_again(world: World) -> None:
    world.control.lose_next_claim = True
    world.control.create("j", "echo hello")
    await world.until_ended("j")
    assert world.statuses("j") == ["CREATED", "DEPLOYING", "PENDING", "DEPLOYING", "RUNNING", "COMPLETED"]
    assert world.control.log_of("j") == ["hello"]


async def test_an_end_is_told_without_its_output_if_control_takes_none(world: World) -> None:
    world.control.takes_output = False
    world.control.create("j", "echo hello")
    await world.rounds(100)
    assert world.status("j") == "RUNNING"
    await world.rounds(60)
    assert world.status("j") == "COMPLETED"
    assert "j" in world.backend.attempts, "what is not delivered is kept"
    world.control.takes_output = True
    await world.rounds(4)
    assert world.control.log_of("j") == ["hello"]
    assert not world.backend.attempts


async def test_a_job_that_control_may_not_start_now_leaves_its_room_to_others(world: World) -> None:
    await world.rounds()
    world.control.create("waits", "echo waits", resources=WHOLE)
    claim = world.control.claim

    async def refuses(job_id: str, attempt: int) -> object:
        return None if job_id == "waits" else await claim(job_id, attempt)

    world.control.claim = refuses  # type: ignore[method-assign, assignment]
    world.control.create("other", "echo other", resources=WHOLE)
    await world.until_ended("other")
    assert world.status("waits") == "PENDING"


# --- deaths ---------------------------------------------------------------------------------------------------------


async def test_a_new_trainer_adopts_what_runs_and_goes_on_with_its_output(world: World) -> None:
    world.control.create("j", "echo before", "sleep 9")
    await world.rounds(4)
    await world.kill()
    world.attempt("j").print("while nobody listened")
    await world.rounds(3)
    assert world.status("j") == "RUNNING"
    world.attempt("j").end(Outcome.COMPLETED)
    await world.until_ended("j")
    assert world.control.log_of("j") == ["before", "while nobody listened"]
    assert world.control.jobs["j"].attempt == 1


async def test_a_job_that_ended_while_no_trainer_ran_is_not_shown_as_ended_before_its_log_is_there(
    world: World,
) -> None:
    world.control.create("j", "sleep 9")
    await world.rounds(4)
    await world.kill()
    for number in range(10):
        world.attempt("j").print(f"{number}")
    world.attempt("j").end(Outcome.COMPLETED)
    await world.until_ended("j")
    assert world.control.lines_at_end["j"] == 10


async def test_a_running_job_that_the_backend_lost_has_failed(world: World) -> None:
    world.control.create("j", "sleep 9")
    await world.rounds(4)
    await world.kill()
    del world.backend.attempts["j"]
    await world.until_ended("j")
    assert world.status("j") == "FAILED"
    assert "lost" in (world.control.jobs["j"].error_message or "")


async def test_a_job_that_control_does_not_know_is_stopped_and_forgotten(world: World) -> None:
    world.control.create("j", "sleep 9")
    await world.rounds(4)
    await world.kill()
    del world.control.jobs["j"]
    world.control.create("next", "echo next", resources=WHOLE)
    await world.until_ended("next")
    assert ("stop", "j", "STOPPED") in world.backend.calls
    assert ("forget", "j", "hosts") in world.backend.calls


async def test_a_bug_ends_no_trainer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise FileNotFoundError("state.json")

    monkeypatch.setattr("trainer.sync_loop.FAILURE_PAUSE_S", 0)
    monkeypatch.setattr(world.backend, "observe", broken)
    assert await world.trainer._try_sync() is False


# --- the end of the trainer -----------------------------------------------------------------------------------------


async def ended(world: World) -> None:
    """Run a trainer whose stop was asked for."""
    world.trainer.stop()
    await world.trainer.run()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.sync_loop.SYNC_S", 0.001)


@pytest.mark.usefixtures("brief")
async def test_the_end_of_the_trainer_stops_its_jobs_and_control_learns_all_of_it(world: World) -> None:
    world.control.create("j", "echo before", "sleep 9")
    await world.rounds(4)
    world.attempt("j").print("last words")
    await ended(world)
    assert world.status("j") == "STOPPED"
    assert world.control.jobs["j"].error_message == STOPPED_WITH_THE_PRODUCT
    assert world.control.log_of("j") == ["before", "last words"]


@pytest.mark.usefixtures("brief")
async def test_the_end_of_the_trainer_does_not_wait_for_a_control_that_is_away(world: World) -> None:
    world.control.create("j", "sleep 9")
    await world.rounds(4)
    world.control.away = "connection refused"
    await ended(world)
    world.control.away = None
    await world.kill()
    await world.until_ended("j")
    assert world.status("j") == "STOPPED"


@pytest.mark.usefixtures("brief")
async def test_the_end_of_the_trainer_is_bounded_if_control_takes_no_output(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.control.create("j", "echo hello", "sleep 9")
    world.control.takes_output = False
    await world.rounds(4)
    sync = SyncLoop.sync

    async def quickly(loop: SyncLoop) -> bool:
        world.now_s += CLOSE_S / 4
        return await sync(loop)

    monkeypatch.setattr(SyncLoop, "sync", quickly)
    await ended(world)
    assert world.attempt("j").phase is Phase.ENDED


async def test_browsers_that_wait_for_a_shell_are_passed_on(world: World) -> None:
    terminal = WantedTerminal("t", "j", 1, 0)
    terminals: list[WantedTerminal] = []
    world.loop = SyncLoop(
        world.backend, world.control, "t", lambda: 0.0, lambda state: terminals.extend(state.terminals)
    )
    world.control.terminals = (terminal,)
    await world.rounds()
    assert terminals == [terminal]


async def test_checkpoints_that_control_refuses_do_not_keep_back_output(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        raise ControlRefusedError("created_at_ms must be a time")

    world.control.checkpoints = refuse  # type: ignore[assignment,method-assign]
    world.control.create("j", "echo one", "echo two")
    await world.until_ended("j")
    assert [line.message for line in world.control.lines["j"]] == ["one", "two"]
    assert "refused the checkpoints of job j" in caplog.text
