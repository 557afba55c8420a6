"""Requests at the same time: whatever their order, each is answered as if it had been alone.

See docs/reference/training.md#jobs.
"""

import asyncio
from collections.abc import Awaitable, Sequence

from control.edges.sql.training import job_rows
from policy.training.statuses import QUEUED
from tests.control.plane import Answer, ControlPlane, Json
from tests.control.training import create_project, enable, end, job_body, move, new_job

SECRET = {"TOKEN": {"type": "SECRET", "name": "vendor"}}


def codes(answers: Sequence[Answer], *allowed: int) -> list[int]:
    statuses = [answer.status for answer in answers]
    assert set(statuses) <= set(allowed), [answer.body for answer in answers if answer.status not in allowed]
    return statuses


async def together(*calls: Awaitable[Answer]) -> list[Answer]:
    return list(await asyncio.gather(*calls))


async def found_jobs(plane: ControlPlane, **filters: str) -> list[Json]:
    jobs: list[Json] = (await plane.post("/v1/training_jobs/search", filters)).ok()["training_jobs"]
    return jobs


async def test_a_project_is_made_once(plane: ControlPlane) -> None:
    body = {"training_project": {"name": "llama"}}
    answers = await together(*(plane.post("/v1/training_projects", body) for _ in range(8)))
    assert len({answer.ok()["training_project"]["id"] for answer in answers}) == 1


async def test_a_job_is_created_or_its_project_deleted(plane: ControlPlane) -> None:
    await enable(plane)
    for _ in range(3):
        path = f"/v1/training_projects/{(await create_project(plane))['id']}"
        created, deleted = await together(plane.post(f"{path}/jobs", job_body()), plane.delete(path))
        assert [created.status, deleted.status] in ([200, 409], [404, 200])
        if created.status == 200:
            (await plane.post(f"{path}/jobs/{created.body['training_job']['id']}/stop")).ok()
            (await plane.delete(path)).ok()
    assert await found_jobs(plane) == []


async def test_a_job_is_created_or_its_secret_deleted(plane: ControlPlane) -> None:
    await enable(plane)
    path = f"/v1/training_projects/{(await create_project(plane))['id']}/jobs"
    for _ in range(3):
        await plane.secret()
        new = plane.post(path, job_body(environment_variables=SECRET))
        created, deleted = await together(new, plane.delete("/v1/secrets/vendor"))
        assert [created.status, deleted.status] in ([200, 409], [400, 200])
        if created.status == 200:
            (await plane.post(f"{path}/{created.body['training_job']['id']}/stop")).ok()


async def test_a_job_is_claimed_or_stopped_and_never_both(plane: ControlPlane) -> None:
    await enable(plane)
    project = await create_project(plane)
    for _ in range(3):
        id = (await new_job(plane, project["id"]))["id"]
        stop = plane.post(f"/v1/training_projects/{project['id']}/jobs/{id}/stop")
        claim, stopped = await asyncio.gather(move(plane.store, id), stop, return_exceptions=True)
        assert isinstance(stopped, Answer)
        stopped.ok()
        async with plane.store.read() as conn:
            record = await job_rows.find_job_anywhere(conn, id)
        assert record is not None
        assert record.status not in QUEUED
        assert (record.attempt, record.stop_requested) == ((0, False) if claim else (1, True))


async def test_a_job_is_deleted_once_and_stopped_by_each(sqlite_plane: ControlPlane) -> None:
    await enable(sqlite_plane)
    project = await create_project(sqlite_plane)
    id = (await new_job(sqlite_plane, project["id"]))["id"]
    path = f"/v1/training_projects/{project['id']}/jobs/{id}"
    stops = await together(*(sqlite_plane.post(f"{path}/stop") for _ in range(4)))
    assert sorted(codes(stops, 200, 409)) == [200, 409, 409, 409]
    deletions = await together(*(sqlite_plane.delete(path) for _ in range(4)))
    assert sorted(codes(deletions, 200, 404)) == [200, 404, 404, 404]


async def test_a_recreated_job_or_a_deleted_one_is_whole(sqlite_plane: ControlPlane) -> None:
    await enable(sqlite_plane)
    project = await create_project(sqlite_plane)
    id = (await new_job(sqlite_plane, project["id"]))["id"]
    await end(sqlite_plane.store, id)
    path = f"/v1/training_projects/{project['id']}/jobs/{id}"
    recreated, deleted = await together(sqlite_plane.post(f"{path}/recreate"), sqlite_plane.delete(path))
    deleted.ok()
    expected = [recreated.body["training_job"]["id"]] if recreated.status == 200 else []
    codes([recreated], 200, 404)
    assert [job["id"] for job in await found_jobs(sqlite_plane)] == expected
