"""Changes of interactive sessions, on both databases (docs/reference/training.md#interactive-sessions)."""

from datetime import datetime
from typing import Any

import pytest

from control.edges.sql.store import now_ms
from control.edges.sql.training import session_rows
from policy.training.job_spec import ON_DEMAND, ON_FAILURE, ON_STARTUP, SessionSpec
from policy.training.statuses import COMPLETED, PENDING
from tests.control.plane import ControlPlane, Json
from tests.control.training import report_backend
from tests.control.training_jobs import RunningJob, running_job

MINUTE_MS = 60_000


@pytest.fixture
async def place(plane: ControlPlane) -> ControlPlane:
    """A plane whose backend has sessions."""
    await report_backend(plane.store)
    return plane


async def patch(job: RunningJob, session_id: str | None = None, **body: Any) -> Json:
    answer: Json = (await job.plane.patch(path_of(job, session_id), body)).ok()
    return answer


def path_of(job: RunningJob, session_id: str | None = None) -> str:
    return f"{job.path}/interactive_session" + (f"s/{session_id}" if session_id else "")


async def ends_ms(job: RunningJob) -> list[int]:
    async with job.plane.store.read() as conn:
        return [one.ends_at_ms for one in await session_rows.list_active(conn, job.record.id, now_ms())]


async def begin(job: RunningJob) -> Json:
    code: Json = (await job.plane.post(f"{job.path}/interactive_session")).ok()["auth_codes"][0]
    return code


async def test_a_session_on_startup_lasts_longer_by_the_minutes(place: ControlPlane) -> None:
    job = await running_job(place, SessionSpec(ON_STARTUP, 10), node_count=2)
    first = (await job.codes())[0]
    before = await ends_ms(job)
    answer = await patch(job, first["session_id"], timeout_minutes=30)
    assert await ends_ms(job) == [before[0] + 30 * MINUTE_MS, before[1]]
    session = answer["interactive_session"]
    assert session == {
        "id": first["session_id"],
        "trigger": ON_STARTUP,
        "timeout_minutes": 10,
        "session_provider": "browser",
        "auth_provider": "auth_code",
        "pod_name": "g00r0",
        "expires_at": session["expires_at"],
        "tunnel_name": None,
        "auth_code": None,
        "auth_url": first["auth_url"],
        "auth_code_generated_at": first["generated_at"],
        "authenticated_at": None,
        "working_directory": "code",
    }
    assert round(datetime.fromisoformat(session["expires_at"]).timestamp() * 1000) == before[0] + 30 * MINUTE_MS
    assert session["expires_at"] in answer["message"]
    await patch(job, timeout_minutes=5)
    assert await ends_ms(job) == [before[0] + 35 * MINUTE_MS, before[1] + 5 * MINUTE_MS]


async def test_the_trigger_of_sessions_on_startup_stays(place: ControlPlane) -> None:
    job = await running_job(place, SessionSpec(ON_STARTUP, 10))
    for trigger in (ON_DEMAND, ON_FAILURE):
        answer = await place.patch(path_of(job), {"trigger": trigger, "timeout_minutes": 30})
        assert "on_startup" in answer.refused(409)["message"]
    assert (await patch(job, trigger=ON_STARTUP))["message"] == "Nothing was changed."


async def test_the_timeout_of_sessions_on_demand_is_replaced(place: ControlPlane) -> None:
    job = await running_job(place, None)
    assert (await patch(job, timeout_minutes=90))["interactive_session"] == {
        "trigger": ON_DEMAND,
        "timeout_minutes": 90,
    }
    code = await begin(job)
    (first,) = await ends_ms(job)
    assert abs(first - now_ms() - 90 * MINUTE_MS) < MINUTE_MS
    await patch(job, code["session_id"], timeout_minutes=20)
    (second,) = await ends_ms(job)
    assert abs(second - now_ms() - 20 * MINUTE_MS) < MINUTE_MS


async def test_sessions_begin_when_the_trigger_becomes_on_startup(place: ControlPlane) -> None:
    job = await running_job(place, SessionSpec(ON_DEMAND, 10))
    assert await job.codes() == []
    await patch(job, trigger=ON_STARTUP)
    assert [code["replica_id"] for code in await job.codes()] == ["g00r0"]


async def test_a_waiting_job_takes_any_settings_and_one_that_runs_none_of_failure(place: ControlPlane) -> None:
    job = await running_job(place, SessionSpec(ON_FAILURE, 10))
    bodies: list[Json] = [{"timeout_minutes": 20}, {"trigger": ON_DEMAND}]
    for body in bodies:
        assert "on_failure" in (await place.patch(path_of(job), body)).refused(409)["message"]
    assert (await patch(job, trigger=ON_FAILURE, timeout_minutes=10))["message"] == "Nothing was changed."
    await job.becomes(status=PENDING)
    await patch(job, timeout_minutes=20)
    await patch(job, trigger=ON_DEMAND)
    answer = await patch(job, trigger=ON_FAILURE)
    assert answer["interactive_session"] == {"trigger": ON_FAILURE, "timeout_minutes": 20}


@pytest.mark.parametrize(
    "body", [{"timeout_minutes": -1}, {"timeout_minutes": 10_081}, {"trigger": "never"}, {"minutes": 1}]
)
async def test_a_bad_change_names_the_field(place: ControlPlane, body: Json) -> None:
    job = await running_job(place)
    problem = (await place.patch(path_of(job), body)).refused(400)
    assert [detail["field"] for detail in problem["details"]] == list(body)


async def test_no_session_lasts_longer_than_a_week_from_now(place: ControlPlane) -> None:
    job = await running_job(place, SessionSpec(ON_STARTUP, 10))
    before = await ends_ms(job)
    problem = (await place.patch(path_of(job), {"timeout_minutes": 10_080})).refused(400)
    assert [detail["field"] for detail in problem["details"]] == ["timeout_minutes"]
    assert await ends_ms(job) == before


async def test_what_is_not_there_cannot_be_changed(place: ControlPlane) -> None:
    job = await running_job(place)
    code = (await job.codes())[0]
    body = {"timeout_minutes": 5}
    key = (await place.another_workspace())["api_key"]
    (await place.patch(path_of(job, code["session_id"]), body, key=key)).refused(404)
    (await place.patch(path_of(job), body, key=key)).refused(404)
    assert "auth_codes" in (await place.patch(path_of(job, "session_none"), body)).refused(404)["message"]
    await report_backend(place.store, reason="away")
    (await place.patch(path_of(job), body)).refused(503, "TRAINING_UNAVAILABLE")
    await report_backend(place.store, has_sessions=False)
    (await place.patch(path_of(job), body)).refused(409)
    await job.becomes(status=COMPLETED)
    (await place.patch(path_of(job), body)).refused(409)


async def test_there_is_no_ssh(place: ControlPlane) -> None:
    job = await running_job(place)
    body = {"public_key": "ssh-ed25519 AAAA", "replica_id": "g00r0"}
    assert "no SSH" in (await place.post(f"{job.path}/ssh/sign", body)).refused(409)["message"]
    (await place.post(f"{job.path}x/ssh/sign", body)).refused(404)
