"""Interactive sessions at the management API: when they begin and end, and their codes, on both databases."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from control.edges.sql.store import now_ms
from control.edges.sql.training.tables import training_sessions
from control.records.training import JobRef
from control.resources.training import sessions
from control.resources.training.sessions import Refusal
from policy.training.job_spec import ON_DEMAND, ON_FAILURE, ON_STARTUP, SessionSpec
from policy.training.statuses import COMPLETED, DEPLOYING, PENDING, RUNNING
from tests.control.plane import SECRET_KEYS, ControlPlane
from tests.control.training_jobs import WORKING_DIRECTORY, report_backend, running_job

OTHER_KEYS = (b"k" * 32,)


async def spend(plane: ControlPlane, session_id: str, typed: str) -> str | Refusal:
    return await sessions.spend_code(plane.store, SECRET_KEYS, session_id, typed)


async def change_sessions(plane: ControlPlane, **values: Any) -> None:
    async with plane.store.write() as tx:
        await tx.conn.execute(update(training_sessions).values(values))


async def test_auth_codes_have_exactly_the_documented_fields(plane: ControlPlane) -> None:
    job = await running_job(plane, node_count=2)
    first, second = await job.codes()
    assert re.fullmatch(r"session_[0-9a-f]{32}", first["session_id"])
    assert re.fullmatch(r"[0-9A-F]{4}-[0-9A-F]{4}", first["auth_code"])
    assert first == {
        "session_id": first["session_id"],
        "replica_id": "g00r0",
        "auth_code": first["auth_code"],
        "auth_url": f"http://{plane.client.host}:{plane.client.port}/sessions/{first['session_id']}",
        "generated_at": first["generated_at"],
        "expires_at": first["expires_at"],
        "tunnel_name": None,
        "working_directory": WORKING_DIRECTORY,
    }
    assert second["replica_id"] == "g00r1"
    assert len({first["session_id"], second["session_id"], first["auth_code"], second["auth_code"]}) == 4


async def test_a_code_stays_until_it_is_spent(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    (code,) = await job.codes()
    assert await job.codes() == [code]
    cookie = await spend(sqlite_plane, code["session_id"], f" {code['auth_code'].lower().replace('-', ' ')}\n")
    assert isinstance(cookie, str)
    assert len(cookie) == 64
    assert await spend(sqlite_plane, code["session_id"], code["auth_code"]) is Refusal.VOID
    (after,) = await job.codes()
    assert after["session_id"] == code["session_id"]
    assert after["auth_code"] != code["auth_code"]


async def test_of_two_who_spend_a_code_at_once_one_gets_in(plane: ControlPlane) -> None:
    (code,) = await (await running_job(plane)).codes()
    results = await asyncio.gather(*(spend(plane, code["session_id"], code["auth_code"]) for _ in range(5)))
    assert [one for one in results if not isinstance(one, str)] == [Refusal.VOID] * 4


async def test_guesses_at_once_are_all_counted(plane: ControlPlane) -> None:
    (code,) = await (await running_job(plane)).codes()
    results = await asyncio.gather(*(spend(plane, code["session_id"], "wrong") for _ in range(8)))
    assert sorted(results, key=str) == [Refusal.VOID] * 4 + [Refusal.WRONG] * 4


async def test_five_wrong_codes_void_the_code(plane: ControlPlane) -> None:
    job = await running_job(plane)
    (code,) = await job.codes()
    wrong = "0000-0000" if code["auth_code"] != "0000-0000" else "1111-1111"
    results = [await spend(plane, code["session_id"], wrong) for _ in range(5)]
    assert results == [Refusal.WRONG] * 4 + [Refusal.VOID]
    assert await spend(plane, code["session_id"], code["auth_code"]) is Refusal.VOID
    (after,) = await job.codes()
    assert isinstance(await spend(plane, after["session_id"], after["auth_code"]), str)


async def test_rubbish_is_a_wrong_code(sqlite_plane: ControlPlane) -> None:
    (code,) = await (await running_job(sqlite_plane)).codes()
    for typed in ("", "-", "0" * 4096, "é\udcff\0"):
        assert await spend(sqlite_plane, code["session_id"], typed) is Refusal.WRONG


async def test_an_expired_code_opens_nothing_and_is_replaced(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    (code,) = await job.codes()
    await change_sessions(sqlite_plane, code_expires_at_ms=now_ms() - 1)
    assert await spend(sqlite_plane, code["session_id"], code["auth_code"]) is Refusal.VOID
    (after,) = await job.codes()
    assert after["auth_code"] != code["auth_code"]


async def test_a_code_that_was_sealed_with_a_lost_key_is_replaced(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    await job.codes()
    ref = JobRef(sqlite_plane.workspace_id, job.record.project_id, job.record.id)
    (code,) = await sessions.read_auth_codes(sqlite_plane.store, OTHER_KEYS, ref)
    result = await sessions.spend_code(sqlite_plane.store, OTHER_KEYS, code.session.id, code.code)
    assert isinstance(result, str)


async def test_no_code_or_cookie_is_in_the_database_or_a_repr(plane: ControlPlane) -> None:
    job = await running_job(plane)
    (code,) = await job.codes()
    cookie = await spend(plane, code["session_id"], code["auth_code"])
    (code,) = await job.codes()
    async with plane.store.read() as conn:
        stored = repr((await conn.execute(training_sessions.select())).all())
    assert code["auth_code"] not in stored
    assert str(cookie) not in stored
    ref = JobRef(plane.workspace_id, job.record.project_id, job.record.id)
    assert code["auth_code"] not in repr(await sessions.read_auth_codes(plane.store, SECRET_KEYS, ref))


async def test_a_newer_code_ends_the_cookie_of_the_one_before(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    cookies = []
    for _ in range(2):
        (code,) = await job.codes()
        cookies.append(str(await spend(sqlite_plane, code["session_id"], code["auth_code"])))
    session = await sessions.find_session(sqlite_plane.store, code["session_id"])
    assert session is not None
    assert [sessions.is_opened_by(session, cookie) for cookie in (*cookies, "", "é")] == [False, True, False, False]


async def test_on_startup_begins_when_the_job_runs(plane: ControlPlane) -> None:
    job = await running_job(plane, status=DEPLOYING)
    assert await job.codes() == []
    await job.becomes(status=RUNNING)
    assert len(await job.codes()) == 1


async def test_on_failure_begins_when_the_job_has_failed(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane, SessionSpec(ON_FAILURE, 10))
    assert await job.codes() == []
    await job.becomes(error_message="node 0 exited with status 3")
    assert len(await job.codes()) == 1


async def test_a_repeated_report_begins_nothing_twice(plane: ControlPlane) -> None:
    job = await running_job(plane)
    before = await job.codes()
    await job.becomes(updated_at_ms=now_ms())
    assert await job.codes() == before


@pytest.mark.parametrize(
    "change",
    [{"status": COMPLETED}, {"status": PENDING}, {"status": RUNNING, "attempt": 2}],
    ids=["ended", "preempted", "another attempt"],
)
async def test_a_session_ends_with_its_attempt(change: Mapping[str, object], sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane, SessionSpec(ON_FAILURE, 10), error_message="node 0 failed")
    (code,) = await job.codes()
    await job.becomes(**change, error_message=None)
    assert await job.codes() == []
    assert await sessions.find_session(sqlite_plane.store, code["session_id"]) is None
    assert await spend(sqlite_plane, code["session_id"], code["auth_code"]) is Refusal.OVER


async def test_a_session_ends_after_its_timeout(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane, SessionSpec(ON_STARTUP, 7))
    (code,) = await job.codes()
    session = await sessions.find_session(sqlite_plane.store, code["session_id"])
    assert session is not None
    assert session.ends_at_ms - session.created_at_ms == 7 * 60_000
    await change_sessions(sqlite_plane, ends_at_ms=now_ms() - 1)
    assert await job.codes() == []


@pytest.mark.parametrize("session", [SessionSpec(ON_DEMAND, 7), None], ids=["on_demand", "no session configured"])
async def test_on_demand_begins_when_it_is_asked_for(session: SessionSpec | None, sqlite_plane: ControlPlane) -> None:
    await report_backend(sqlite_plane.store)
    job = await running_job(sqlite_plane, session, node_count=2)
    assert await job.codes() == []
    answer = (await sqlite_plane.post(f"{job.path}/interactive_session")).ok()
    assert [code["replica_id"] for code in answer["auth_codes"]] == ["g00r0", "g00r1"]
    assert await job.codes() == answer["auth_codes"]


async def test_asking_again_prolongs_an_active_session_and_replaces_one_that_is_over(plane: ControlPlane) -> None:
    await report_backend(plane.store)
    job = await running_job(plane, SessionSpec(ON_DEMAND, 7))
    (first,) = (await plane.post(f"{job.path}/interactive_session")).ok()["auth_codes"]
    await change_sessions(plane, ends_at_ms=now_ms() + 5000)
    (second,) = (await plane.post(f"{job.path}/interactive_session")).ok()["auth_codes"]
    session = await sessions.find_session(plane.store, second["session_id"])
    assert second == first
    assert session is not None
    assert session.ends_at_ms > now_ms() + 6 * 60_000
    await change_sessions(plane, ends_at_ms=now_ms() - 1)
    (third,) = (await plane.post(f"{job.path}/interactive_session")).ok()["auth_codes"]
    assert third["session_id"] != first["session_id"]


async def test_on_demand_is_refused_where_there_can_be_no_shell(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    job = await running_job(plane)
    path = f"{job.path}/interactive_session"
    (await plane.post(path)).refused(503, "TRAINING_UNAVAILABLE")
    await report_backend(plane.store, has_sessions=False)
    (await plane.post(path)).refused(409, "CONFLICT")
    await report_backend(plane.store)
    job.record = replace(job.record)
    await job.becomes(status=PENDING)
    (await plane.post(path)).refused(409, "CONFLICT")


async def test_another_workspaces_job_does_not_exist(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    other = (await sqlite_plane.another_workspace())["api_key"]
    (await job.auth_codes(key=other)).refused(404, "NOT_FOUND")
    (await sqlite_plane.post(f"{job.path}/interactive_session", key=other)).refused(404, "NOT_FOUND")
    (await sqlite_plane.get(job.path.replace(job.record.id, "tj_none") + "/auth_codes")).refused(404, "NOT_FOUND")
    elsewhere = job.path.replace(job.record.project_id, "tp_none")
    (await sqlite_plane.get(f"{elsewhere}/auth_codes")).refused(404, "NOT_FOUND")


async def test_auth_codes_need_a_management_key(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    (await job.auth_codes(key="acme.nonsense")).refused(403)
    async with sqlite_plane.client.get(f"{job.path}/auth_codes") as answer:
        assert answer.status == 401


async def test_the_address_has_the_scheme_that_a_tls_terminator_names(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane)
    headers = {"X-Forwarded-Proto": "https", "Host": "tollgate.example"}
    (code,) = (await job.auth_codes(headers=headers)).ok()["auth_codes"]
    assert code["auth_url"] == f"https://tollgate.example/sessions/{code['session_id']}"
