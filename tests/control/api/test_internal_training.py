"""Checks what a trainer reports to `/internal/v1/training/…` and reads there, on both databases.

See docs/reference/training.md#internal-api.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, insert

from control.edges.sql import tables
from control.edges.sql.training import backend_rows, job_rows
from control.edges.sql.training.tables import training_checkpoints
from control.records.ids import new_nonce
from control.resources.training import backend_reports
from policy.sealing import seal
from policy.training.caches import CacheEntry, CacheSummary
from policy.training.job_spec import ON_STARTUP, CacheSpec, JobSpec, LoadRef, LoadSpec, SecretRef, SessionSpec
from policy.training.reports import CheckpointFile, Load, NodeState, Restore
from policy.training.statuses import (
    ALL_SYNCED,
    COMPLETED,
    CREATED,
    DEPLOYING,
    FAILED,
    PENDING,
    RUNNING,
    STOPPED,
    SYNCED,
    SYNCING,
    Outcome,
    Phase,
    Wanted,
)
from policy.training.weights import FilePatterns, Weights, WeightsSpec
from tests.control.plane import SECRET_KEYS, TOKEN, ControlPlane, Json
from tests.control.resources.training.job_examples import SMALL
from tests.control.trainer import HOST, PROJECT, SPEC, Trainer, add_job, change, report, stored

RUNS = report(Phase.RUNNING)


@pytest.fixture
def trainer(plane: ControlPlane) -> Trainer:
    return Trainer(plane)


# --- sync ------------------------------------------------------------------------------------------------------------


async def test_job_goes_from_created_to_its_end_by_what_is_reported(plane: ControlPlane, trainer: Trainer) -> None:
    await add_job(plane)
    assert [(job.job_id, job.status, job.wish) for job in (await trainer.sync()).jobs] == [
        ("tj_1", CREATED, Wanted.RUN)
    ]
    (job_state,) = (await trainer.sync(report(Phase.WAITING, attempt=0))).jobs
    assert job_state.status == PENDING
    claimed = await trainer.claim()
    assert (claimed.job_id, claimed.attempt, claimed.spec.start_commands) == ("tj_1", 1, ("echo hello",))
    assert (await trainer.sync(report(Phase.STARTING))).jobs[0].status == DEPLOYING
    nodes = (NodeState(0, "machine-1"),)
    assert (await trainer.sync(report(Phase.RUNNING, nodes=nodes))).jobs[0].status == RUNNING
    assert (await stored(plane.store)).nodes == nodes
    message = "node 0 exited with status 3"
    assert (await trainer.sync(report(Phase.ENDED, Outcome.FAILED, error_message=message))).jobs == ()
    ended = await stored(plane.store)
    assert (ended.status, ended.error_message) == (FAILED, message)
    assert (await trainer.sync(RUNS, report(Phase.ENDED, Outcome.COMPLETED))).jobs == ()
    assert (await stored(plane.store)) == ended


async def test_wanted_jobs_say_all_that_placement_needs_in_order(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane, id="tj_old", created_at_ms=1)
    await add_job(plane, id="tj_new", created_at_ms=2)
    await add_job(plane, id="tj_high", created_at_ms=3, priority=5, node_count=2, availability_model="spot")
    await add_job(plane, id="tj_ended", status=COMPLETED)
    jobs = (await trainer.sync()).jobs
    assert [job.job_id for job in jobs] == ["tj_high", "tj_old", "tj_new"]
    high = jobs[0]
    assert (high.priority, high.node_count, high.availability_model, high.resources) == (5, 2, "spot", SMALL)


async def test_reports_of_another_attempt_and_late_ones_change_nothing(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane, status=RUNNING, attempt=2)
    await trainer.sync(report(Phase.ENDED, Outcome.FAILED, attempt=1))
    await trainer.sync(report(Phase.ENDED, Outcome.FAILED, attempt=3))
    assert (await stored(plane.store)).status == RUNNING


async def test_preempted_job_waits_again_and_one_that_is_to_stop_is_wanted_stopped(
    sqlite_plane: ControlPlane,
) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane, status=RUNNING, attempt=1)
    (waits,) = (await trainer.sync(report(Phase.ENDED, Outcome.REQUEUED))).jobs
    assert (waits.status, waits.wish, waits.attempt) == (PENDING, Wanted.RUN, 1)
    assert (await trainer.claim(attempt=1)).attempt == 2
    await change(plane.store, stop_requested=True)
    assert (await trainer.sync(report(Phase.RUNNING, attempt=2))).jobs[0].wish is Wanted.STOP
    await trainer.sync(report(Phase.ENDED, Outcome.STOPPED, attempt=2))
    assert (await stored(plane.store)).status == STOPPED


async def test_deleted_job_is_wanted_forgotten_until_nothing_is_left_of_it(
    plane: ControlPlane, trainer: Trainer
) -> None:
    await add_job(plane, status=COMPLETED, attempt=1, is_deleted=True)
    await add_job(plane, id="tj_2", status=COMPLETED, attempt=1)
    ended = report(Phase.ENDED, Outcome.COMPLETED)
    assert [(job.job_id, job.wish) for job in (await trainer.sync(ended)).jobs] == [("tj_1", Wanted.FORGET)]
    forgotten = [report(Phase.ENDED, Outcome.COMPLETED, id=id, is_forgotten=True) for id in ("tj_1", "tj_2")]
    assert (await trainer.sync(*forgotten)).jobs == ()
    async with plane.store.read() as conn:
        assert await job_rows.find_job_anywhere(conn, "tj_1") is None
        assert await job_rows.find_job_anywhere(conn, "tj_2") is not None, "it was not deleted"
    assert (await trainer.sync(*forgotten)).jobs == ()


async def test_running_job_that_has_ended_or_is_unknown_here_is_wanted_stopped(
    sqlite_plane: ControlPlane,
) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane, status=FAILED, attempt=1)
    unknown = [report(Phase.RUNNING, id="tj_9", attempt=7), report(Phase.ENDED, Outcome.FAILED, id="tj_8")]
    jobs = (await trainer.sync(RUNS, *unknown, report(Phase.WAITING, id="tj_7"))).jobs
    assert [(job.job_id, job.attempt, job.wish) for job in jobs] == [
        ("tj_1", 1, Wanted.STOP),
        ("tj_9", 7, Wanted.STOP),
    ]


async def test_checkpoints_of_an_ended_job_are_synced_once_the_trainer_says_so_or_has_nothing_of_it(
    plane: ControlPlane, trainer: Trainer
) -> None:
    for id in ("tj_1", "tj_2"):
        await add_job(plane, id=id, status=COMPLETED, attempt=1, checkpoint_sync_status=SYNCING)
    syncing = report(Phase.ENDED, Outcome.COMPLETED, is_syncing=True)
    await trainer.sync(reason="starting")
    await trainer.sync(syncing, report(Phase.ENDED, Outcome.COMPLETED, id="tj_2", is_syncing=True))
    assert [(await stored(plane.store, id)).checkpoint_sync_status for id in ("tj_1", "tj_2")] == [SYNCING] * 2
    await trainer.sync(syncing)
    assert (await stored(plane.store, "tj_2")).checkpoint_sync_status == ALL_SYNCED
    await trainer.sync(report(Phase.ENDED, Outcome.COMPLETED))
    assert (await stored(plane.store, "tj_1")).checkpoint_sync_status == ALL_SYNCED


async def test_report_that_a_job_runs_begins_its_sessions_on_startup(sqlite_plane: ControlPlane) -> None:
    trainer = Trainer(sqlite_plane)
    await add_job(sqlite_plane, replace(SPEC, session=SessionSpec(ON_STARTUP, 5)), status=DEPLOYING, attempt=1)
    await trainer.sync(report(Phase.STARTING))
    codes = f"/v1/training_projects/{PROJECT}/jobs/tj_1/auth_codes"
    assert (await sqlite_plane.get(codes)).ok() == {"auth_codes": []}
    await trainer.sync(RUNS)
    assert [one["replica_id"] for one in (await sqlite_plane.get(codes)).ok()["auth_codes"]] == ["g00r0"]


async def test_report_that_changes_nothing_is_one_reading_transaction(
    plane: ControlPlane, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_reports, "_WRITE_EVERY_MS", 60_000)
    await add_job(plane, status=RUNNING, attempt=1)
    before = await stored(plane.store)
    await trainer.sync(RUNS)
    transactions = dict[Any, list[str]]()
    engine = plane.store.engine.sync_engine
    event.listen(engine, "begin", lambda connection: transactions.setdefault(connection, []))
    event.listen(
        engine,
        "before_cursor_execute",
        lambda connection, _cursor, statement, *_more: transactions.setdefault(connection, []).append(statement),
    )
    assert (await trainer.sync(RUNS)).jobs[0].status == RUNNING
    [statements] = [texts for texts in transactions.values() if any("training_" in text for text in texts)]
    assert not [statement for statement in statements if statement.startswith(("INSERT", "UPDATE", "DELETE"))]
    assert await stored(plane.store) == before


async def test_backend_is_stored_when_it_changed_and_once_a_second(
    plane: ControlPlane, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_reports, "_WRITE_EVERY_MS", 60_000)
    await trainer.sync()
    first = await backend(plane)
    assert (first.trainer, first.backend, first.reason, first.hosts) == ("trainer-1", "local", None, (HOST,))
    await trainer.sync()
    assert await backend(plane) == first
    await trainer.sync(reason="Ray does not answer")
    assert (await backend(plane)).reason == "Ray does not answer"
    trainer.hosts = (HOST, HOST)
    await trainer.sync()
    assert (await backend(plane)).hosts == (HOST, HOST)
    monkeypatch.setattr(backend_reports, "_WRITE_EVERY_MS", 0)
    before = await backend(plane)
    await asyncio.sleep(0.002)
    await trainer.sync()
    assert (await backend(plane)).reported_at_ms > before.reported_at_ms


async def backend(plane: ControlPlane) -> Any:
    async with plane.store.read() as conn:
        return await backend_rows.find_backend(conn)


async def test_second_trainer_is_refused_until_the_first_one_is_silent(
    plane: ControlPlane, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_reports, "REPORT_VALID_MS", 60_000)
    await add_job(plane, status=RUNNING, attempt=1)
    await trainer.sync(RUNS)
    second = Trainer(plane, "trainer-2")
    (await second.try_sync(report(Phase.ENDED, Outcome.FAILED))).refused(409, "CONFLICT")
    assert (await stored(plane.store)).status == RUNNING
    monkeypatch.setattr(backend_reports, "REPORT_VALID_MS", 0)
    await second.sync(RUNS)
    assert (await backend(plane)).trainer == "trainer-2"


async def test_one_of_two_trainers_that_report_at_once_is_refused(plane: ControlPlane) -> None:
    trainers = [Trainer(plane, f"trainer-{n}") for n in range(4)]
    answers = await asyncio.gather(*(one.try_sync() for one in trainers))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]


MALFORMED: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    (("trainer",), 1, "trainer must be text"),
    (("trainer",), "", "trainer must be text of 1"),
    (("backend",), "x\0", "backend must be text of 1"),
    (("reason",), 1, "reason must be text"),
    (("has_sessions",), "yes", "has_sessions"),
    (("hosts",), {}, "hosts must be an array"),
    (("hosts", 0), 1, "hosts.0"),
    (("hosts", 0, "millicpu"), -1, "hosts.0"),
    (("hosts", 0, "memory_mib"), 2**60, "memory_mib must be at most"),
    (("hosts", 0, "gpus"), ["H100"], "gpus must be an object"),
    (("hosts", 0, "gpus"), {"H100": 1.5}, "H100 must be a whole number"),
    (("jobs",), None, "jobs must be an array"),
    (("jobs", 0, "job_id"), "x" * 129, "job_id must be text of 1"),
    (("jobs", 0, "attempt"), 2**31, "attempt must be at most"),
    (("jobs", 0, "attempt"), True, "attempt must be a whole number"),
    (("jobs", 0, "phase"), "SLEEPING", "SLEEPING"),
    (("jobs", 0, "phase"), [], "jobs.0"),
    (("jobs", 0, "outcome"), "WON", "WON"),
    (("jobs", 0, "error_message"), 5, "error_message must be text"),
    (("jobs", 0, "nodes"), [{"rank": 0, "host": "h"}], "exit_status' is missing"),
    (("jobs", 0, "nodes"), [{"rank": 0, "host": "h", "exit_status": 2**40}], "exit_status"),
    (("jobs", 0, "nodes"), [{"rank": 0, "host": "", "exit_status": 0}], "nodes.host"),
)


async def test_malformed_report_is_refused_by_name(sqlite_plane: ControlPlane) -> None:
    for place, value, member in MALFORMED:
        body: Json = {"trainer": "t", "backend": "local", "reason": None, "has_sessions": True}
        body |= {"hosts": [HOST.to_wire()], "jobs": [RUNS.to_wire()]}
        inside: Any = body
        for step in place[:-1]:
            inside = inside[step]
        inside[place[-1]] = value
        assert member in (await Trainer(sqlite_plane).post("sync", body)).refused(400)["error"]
    assert await backend(sqlite_plane) is None


async def test_rubbish_is_refused(sqlite_plane: ControlPlane) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("sync", "environment", "jobs/tj_1/claim", "jobs/tj_1/output"):
        for body in ("[]", "{", "", "1", '"x"', "null", '{"attempt": 99999999999999999999}', b"\xff", "[" * 100_000):
            url = f"/internal/v1/training/{path}"
            async with sqlite_plane.client.post(url, data=body, headers=headers) as answer:
                assert answer.status == 400, (path, body[:20])


async def test_every_route_but_the_environment_needs_the_internal_token(sqlite_plane: ControlPlane) -> None:
    for path in ("sync", "jobs/tj_1/claim", "jobs/tj_1/output"):
        for key in (sqlite_plane.key, "wrong"):
            (await Trainer(sqlite_plane).post(path, {}, key=key)).refused(401)


async def test_messages_are_cut_to_what_a_column_holds(sqlite_plane: ControlPlane) -> None:
    trainer = Trainer(sqlite_plane)
    await add_job(sqlite_plane, status=RUNNING, attempt=1)
    await trainer.sync(report(Phase.ENDED, Outcome.FAILED, error_message="\0é" * 5_000), reason="\0x" * 5_000)
    assert (await stored(sqlite_plane.store)).error_message == "é" * 1_000
    assert len((await backend(sqlite_plane)).reason) == 1_000


# --- claim -----------------------------------------------------------------------------------------------------------


async def test_job_is_claimed_once(plane: ControlPlane, trainer: Trainer) -> None:
    await add_job(plane)
    answers = await asyncio.gather(*(trainer.try_claim() for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
    assert (await stored(plane.store)).attempt == 1


async def test_job_that_does_not_wait_for_this_attempt_is_not_claimed(sqlite_plane: ControlPlane) -> None:
    cases: list[Json] = [{"status": COMPLETED}, {"status": RUNNING}, {"stop_requested": True}]
    cases += [{"attempt": 1}, {"is_deleted": True}]
    for place, changes in enumerate(cases):
        before = await add_job(sqlite_plane, id=f"tj_{place}", **changes)
        (await Trainer(sqlite_plane).try_claim(before.id)).refused(409)
        assert await stored(sqlite_plane.store, before.id) == before


async def test_unknown_job_and_malformed_attempt_are_refused(sqlite_plane: ControlPlane) -> None:
    await add_job(sqlite_plane)
    trainer = Trainer(sqlite_plane)
    (await trainer.try_claim("tj_9")).refused(404)
    for body in ({}, {"attempt": -1}, {"attempt": "0"}, {"attempt": 2**31}):
        assert "attempt" in (await trainer.post("jobs/tj_1/claim", body)).refused(400)["error"]


async def add_checkpoint(plane: ControlPlane, job_id: str, name: str, at_ms: int, *, is_synced: bool = True) -> Restore:
    files = (CheckpointFile("model.bin", 3, "ab" * 32),)
    row: Json = {"id": f"cp_{job_id}_{name}", "job_id": job_id, "name": name, "location": f"{job_id}/{name}/1"}
    row |= {"checkpoint_type": "FULL", "base_model": None, "lora_adapter_config": None, "size_bytes": 3}
    row |= {"sync_status": SYNCED if is_synced else SYNCING, "created_at_ms": at_ms, "updated_at_ms": at_ms}
    text = '[{"path": "model.bin", "size_bytes": 3, "sha256": "' + "ab" * 32 + '"}]' if is_synced else None
    async with plane.store.write() as tx:
        await tx.conn.execute(insert(training_checkpoints).values(**row, files=text))
    return Restore(name, f"{job_id}/{name}/1", files)


async def test_attempt_starts_with_the_last_checkpoint_of_the_job_or_of_the_one_that_it_repeats(
    plane: ControlPlane, trainer: Trainer
) -> None:
    await add_job(plane, id="tj_0", status=COMPLETED, attempt=1)
    await add_job(plane, id="tj_b", status=FAILED, attempt=1, recreated_from="tj_0")
    await add_job(plane, recreated_from="tj_b")
    await add_checkpoint(plane, "tj_0", "step-1", 1)
    last = await add_checkpoint(plane, "tj_0", "step-2", 2)
    await add_checkpoint(plane, "tj_0", "step-3", 3, is_synced=False)
    assert (await trainer.claim()).restore == last
    await trainer.sync(report(Phase.ENDED, Outcome.REQUEUED))
    own = await add_checkpoint(plane, "tj_1", "mine", 1)
    assert (await trainer.claim(attempt=1)).restore == own


async def test_job_without_an_earlier_checkpoint_starts_from_nothing(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane, id="tj_0", status=COMPLETED, attempt=1, is_deleted=True)
    await add_checkpoint(plane, "tj_0", "step-1", 1)
    await add_job(plane, recreated_from="tj_0")
    await add_job(plane, id="tj_2", recreated_from="tj_gone")
    assert (await trainer.claim()).restore is None
    assert (await trainer.claim("tj_2")).restore is None


async def test_claim_waits_while_the_checkpoint_to_start_with_is_on_its_way(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane, id="tj_0", status=COMPLETED, attempt=1, checkpoint_sync_status=SYNCING)
    await add_job(plane, recreated_from="tj_0")
    (await trainer.try_claim()).refused(409)
    await change(plane.store, "tj_0", checkpoint_sync_status=ALL_SYNCED)
    last = await add_checkpoint(plane, "tj_0", "step-1", 1)
    assert (await trainer.claim()).restore == last


def loading(*refs: LoadRef) -> JobSpec:
    return JobSpec(("true",), SMALL, load=LoadSpec(refs))


async def test_attempt_loads_the_checkpoints_that_its_references_mean(plane: ControlPlane, trainer: Trainer) -> None:
    for id in ("tj_a", "tj_b", "tj_gone"):
        await add_job(plane, id=id, status=COMPLETED, attempt=1, is_deleted=id == "tj_gone")
    first = await add_checkpoint(plane, "tj_a", "step-1", 1)
    second = await add_checkpoint(plane, "tj_a", "step-2", 2)
    other = await add_checkpoint(plane, "tj_b", "step-1", 3)
    await add_checkpoint(plane, "tj_gone", "step-9", 9)
    refs = [
        LoadRef("tj_a", None, "step-1"),
        LoadRef("tj_a"),
        LoadRef(None, "llama"),
        LoadRef(),
        LoadRef("tj_a", "llama", "step-2"),
    ]
    await add_job(plane, loading(*refs))
    await add_checkpoint(plane, "tj_1", "own", 10)
    claimed = await trainer.claim()
    assert claimed.loads == (Load("rank-0", first), Load("rank-0", second), Load("rank-0/tj_b", other))
    assert (claimed.project_id, claimed.project_name) == (PROJECT, "llama")
    (await trainer.environment(claimed.environment_token)).ok()


async def test_claim_waits_for_a_checkpoint_to_load_that_is_on_its_way(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(plane)
    await add_job(plane, id="tj_a", status=RUNNING, attempt=1, checkpoint_sync_status=SYNCING)
    await add_checkpoint(plane, "tj_a", "step-2", 2, is_synced=False)
    await add_job(plane, loading(LoadRef("tj_a")))
    (await trainer.try_claim()).refused(409)
    first = await add_checkpoint(plane, "tj_a", "step-1", 1)
    await change(plane.store, "tj_a", status=COMPLETED)
    (await trainer.try_claim()).refused(409)  # the last one of an ended job will be there soon
    await change(plane.store, "tj_a", status=RUNNING)
    assert (await trainer.claim()).loads == (Load("rank-0", first),)


async def test_job_whose_checkpoint_to_load_was_deleted_says_so(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(plane)
    await add_job(plane, id="tj_a", status=COMPLETED, attempt=1)
    await add_checkpoint(plane, "tj_a", "step-1", 1)
    await add_job(plane, loading(LoadRef("tj_a", None, "step-1")))
    await change(plane.store, "tj_a", is_deleted=True)
    claimed = await trainer.claim()
    assert claimed.loads == ()
    refused = (await trainer.environment(claimed.environment_token)).refused(409)
    assert "checkpoint 'step-1' of job tj_a" in refused["error"]
    assert "runtime.load_checkpoint_config" in refused["error"]


async def test_trainer_of_an_older_version_gets_no_job_that_needs_a_newer_one(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    await add_job(plane, loading())
    await add_job(plane, id="tj_2")
    await add_job(plane, JobSpec(("true",), SMALL, cache=CacheSpec()), id="tj_3")
    await add_job(plane, JobSpec(("true",), SMALL, artifacts=("upl_1",)), id="tj_4")
    old = Trainer(plane, abilities=())
    for id in ("tj_1", "tj_3", "tj_4"):
        assert "older version" in (await old.try_claim(id)).refused(409)["error"]
    for id in ("tj_1", "tj_3"):
        (await Trainer(plane).try_claim(id)).ok()
    (await old.try_claim("tj_2")).ok()


# --- caches ----------------------------------------------------------------------------------------------------------


CACHE = f"/v1/training_projects/{PROJECT}/cache/summary"
ENTRIES = (CacheEntry("a", 0, 1_000, "directory", "drwx------"), CacheEntry("a/b\x00", 3, 2**53, "file", "-rw-r--r--"))


async def test_cache_of_a_project_is_shown_until_the_project_is_deleted(plane: ControlPlane, trainer: Trainer) -> None:
    await add_job(plane, JobSpec(("true",), SMALL, cache=CacheSpec()))
    assert "no summary of a cache" in (await plane.get(CACHE)).refused(404)["error"]
    await trainer.claim()
    assert "no summary of a cache" in (await plane.get(CACHE)).refused(404)["error"]
    for at_ms, entries in ((1_000, ()), (2_000, ENTRIES)):
        (await trainer.post("caches", CacheSummary(PROJECT, at_ms, entries).to_wire())).ok()
    summary = (await plane.get(CACHE)).ok()
    assert (summary["timestamp"], summary["project_id"]) == ("1970-01-01T00:00:02.000Z", PROJECT)
    first, second = summary["file_summaries"]
    assert first == {
        "path": "a",
        "size_bytes": 0,
        "modified": "1970-01-01T00:00:01.000Z",
        "file_type": "directory",
        "permissions": "drwx------",
    }
    assert (second["path"], second["modified"]) == ("a/b\\x00", "9999-12-31T23:59:59.999Z")
    key = (await plane.another_workspace())["api_key"]
    (await plane.get(CACHE, key=key)).refused(404, "NOT_FOUND")

    assert (await trainer.sync(report(Phase.ENDED, Outcome.COMPLETED))).forgotten_caches == ()
    (await plane.delete(f"/v1/training_projects/{PROJECT}")).ok()
    (await plane.get(CACHE)).refused(404, "NOT_FOUND")
    assert (await trainer.sync()).forgotten_caches == (PROJECT,)
    for _ in range(2):
        (await trainer.post(f"caches/{PROJECT}/removed", {})).ok()
    assert (await trainer.sync()).forgotten_caches == ()


async def test_summary_of_a_cache_that_no_job_has_is_dropped(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(plane)
    await add_job(plane)
    await trainer.claim()
    (await trainer.post("caches", CacheSummary(PROJECT, 1, ENTRIES).to_wire())).ok()
    (await plane.get(CACHE)).refused(404)
    whole = CacheSummary(PROJECT, 1, ENTRIES).to_wire()
    for broken in ({"at_ms": -1}, {"entries": [{"path": "a"}]}, {"project_id": ""}):
        (await trainer.post("caches", whole | broken)).refused(400)
    (await trainer.post("caches", whole, key="wrong")).refused(401)


# --- environment -----------------------------------------------------------------------------------------------------


WITH_SECRETS = JobSpec(
    ("true",),
    SMALL,
    environment={"PLAIN": "é", "TOKEN": SecretRef("hf"), "AGAIN": SecretRef("hf"), "B": SecretRef("b")},
)


async def add_secret(plane: ControlPlane, name: str, value: str) -> None:
    (await plane.post("/v1/secrets", {"name": name, "value": value})).ok()


async def test_environment_is_opened_once_for_whoever_has_the_token(
    plane: ControlPlane, trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    await add_secret(plane, "hf", "hf-secret-value")
    await add_secret(plane, "b", "another-value")
    await add_job(plane, WITH_SECRETS)
    claimed = await trainer.claim()
    assert "secret-value" not in repr(claimed)
    answers = await asyncio.gather(*(trainer.environment(claimed.environment_token) for _ in range(3)))
    assert sorted(answer.status for answer in answers) == [200, 403, 403]
    (opened,) = (answer.body for answer in answers if answer.status == 200)
    values = {"PLAIN": "é", "TOKEN": "hf-secret-value", "AGAIN": "hf-secret-value", "B": "another-value"}
    assert opened == {"environment": values, "secrets": ["another-value", "hf-secret-value"], "weights": []}
    (await trainer.environment(claimed.environment_token)).refused(403, "ENVIRONMENT_TOKEN_SPENT")
    for text in ("hf-secret-value", claimed.environment_token):
        assert text not in caplog.text
    assert (await stored(plane.store)).environment_digest is None


async def test_weights_and_their_secret_come_with_the_token_alone(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(plane)
    patterns = FilePatterns(("*.json",))
    weights = WeightsSpec("https://files.example.com/m?sig=of-it", "m", "hub", patterns)
    plain = WeightsSpec("hf://acme/tiny", "models/tiny")
    await add_job(plane, replace(WITH_SECRETS, environment={}, weights=(weights, plain)))
    claimed = await trainer.claim()
    assert "sig" not in json.dumps(claimed.to_wire())
    assert "'hub'" in (await trainer.environment(claimed.environment_token)).refused(409)["error"]
    await add_secret(plane, "hub", "hub-token")
    assert (await trainer.environment(claimed.environment_token)).ok()["weights"] == [
        Weights(weights.source, "m", "hub-token", patterns).to_wire(),
        Weights(plain.source, "models/tiny").to_wire(),
    ]
    assert "of-it" not in repr(weights)
    assert "hub-token" not in repr(Weights(weights.source, "m", "hub-token"))


async def test_token_of_an_attempt_that_is_over_opens_nothing(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    await add_job(plane)
    first = await trainer.claim()
    await trainer.sync(report(Phase.ENDED, Outcome.REQUEUED))
    (await trainer.environment(first.environment_token)).refused(403)
    second = await trainer.claim(attempt=1)
    (await trainer.environment(first.environment_token)).refused(403)
    empty: Json = {"environment": {}, "secrets": [], "weights": []}
    assert (await trainer.environment(second.environment_token)).ok() == empty


async def test_guessed_tokens_open_nothing_and_write_nothing(sqlite_plane: ControlPlane) -> None:
    trainer = Trainer(sqlite_plane)
    await add_job(sqlite_plane)
    claimed = await trainer.claim()
    job_id, _, random = claimed.environment_token.partition(".")
    assert len(random) >= 43
    for guess in ("tj_1", "tj_1.", ".", f"tj_9.{random}", f"{job_id}.{random[:-1]}", random, f"{random}.{job_id}", "é"):
        (await trainer.environment(guess)).refused(403)
    for malformed in ({}, {"token": None}, {"token": ""}, {"token": "x" * 513}, {"token": "a\0"}):
        assert "token" in (await trainer.post("environment", malformed)).refused(400)["error"]
    assert (await stored(sqlite_plane.store)).environment_digest is not None


async def test_missing_secret_is_named_and_another_workspaces_is_not_found(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    trainer = Trainer(sqlite_plane)
    other = await plane.another_workspace()
    (await plane.post("/v1/secrets", {"name": "hf", "value": "theirs"}, key=other["api_key"])).ok()
    await add_secret(plane, "b", "ours")
    await add_job(plane, WITH_SECRETS)
    token = (await trainer.claim()).environment_token
    assert "'hf'" in (await trainer.environment(token)).refused(409)["error"]
    await add_secret(plane, "hf", "ours too")
    assert (await trainer.environment(token)).ok()["environment"]["TOKEN"] == "ours too"


async def test_secret_that_no_key_opens_is_an_outage_that_is_logged_without_it(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = seal([b"x" * 32], "sec_1", "hidden-value", new_nonce())
    row = {"id": "sec_1", "workspace_id": sqlite_plane.workspace_id, "name": "hf", "ciphertext": sealed}
    async with sqlite_plane.store.write() as tx:
        await tx.conn.execute(insert(tables.secrets).values(**row, created_at_ms=1, updated_at_ms=1))
    await add_secret(sqlite_plane, "b", "ours")
    await add_job(sqlite_plane, WITH_SECRETS)
    trainer = Trainer(sqlite_plane)
    token = (await trainer.claim()).environment_token
    (await trainer.environment(token)).refused(503, "SECRET_UNREADABLE")
    assert "TOLLGATE_SECRET_KEY" in caplog.text
    assert "hf" in caplog.text
    async with sqlite_plane.store.write() as tx:
        fits = seal(SECRET_KEYS, "sec_1", "hidden-value", new_nonce())
        await tx.conn.execute(tables.secrets.update().where(tables.secrets.c.id == "sec_1").values(ciphertext=fits))
    assert (await trainer.environment(token)).ok()["environment"]["TOKEN"] == "hidden-value"
