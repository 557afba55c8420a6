"""`/v1/training_projects` (docs/reference/training.md#projects)."""

import orjson
import pytest

from control.api.protocol.bodies import valid_body
from control.api.protocol.errors import ProblemError
from control.api.training.projects import PutTrainingProjectRequestV1
from control.edges.sql.training import job_rows
from control.resources.training import projects
from policy.training.statuses import Outcome
from tests.control.plane import ControlPlane
from tests.control.training import create_project, enable, end, new_job, report_backend

PROJECTS = "/v1/training_projects"


async def test_a_project_has_the_documented_fields(sqlite_plane: ControlPlane) -> None:
    project = await create_project(sqlite_plane)
    assert project.keys() == {"id", "name", "created_at", "updated_at", "latest_job", "team_name"}
    assert (project["name"], project["latest_job"], project["team_name"]) == ("llama", None, "workspace acme")
    assert (await sqlite_plane.get(f"{PROJECTS}/{project['id']}")).ok() == {"training_project": project}


async def test_creating_a_project_again_returns_it(plane: ControlPlane) -> None:
    first, again, other = [await create_project(plane, name) for name in ("a", "a", "A")]
    assert first == again
    assert (await plane.get(PROJECTS)).ok() == {"training_projects": [other, first]}


async def test_a_project_shows_its_latest_job(sqlite_plane: ControlPlane) -> None:
    await enable(sqlite_plane)
    project = await create_project(sqlite_plane)
    await new_job(sqlite_plane, project["id"])
    latest = await new_job(sqlite_plane, project["id"], name="second")
    for body in (await sqlite_plane.get(f"{PROJECTS}/{project['id']}")).ok(), (await sqlite_plane.get(PROJECTS)).ok():
        entry = body.get("training_project") or body["training_projects"][0]
        assert entry["latest_job"] == latest
        assert entry["updated_at"] >= latest["created_at"]


async def test_another_workspace_sees_no_project(sqlite_plane: ControlPlane) -> None:
    project = await create_project(sqlite_plane)
    key = (await sqlite_plane.another_workspace())["api_key"]
    path = f"{PROJECTS}/{project['id']}"
    assert (await sqlite_plane.get(PROJECTS, key=key)).ok() == {"training_projects": []}
    for answer in (await sqlite_plane.get(path, key=key), await sqlite_plane.delete(path, key=key)):
        assert answer.refused(404, "NOT_FOUND")["error"] == "training project not found"
    theirs = await create_project(sqlite_plane, key=key)
    assert theirs["id"] != project["id"]


async def test_a_deleted_project_is_gone_with_its_jobs_and_its_name_is_free(plane: ControlPlane) -> None:
    await enable(plane)
    project = await create_project(plane)
    job = await new_job(plane, project["id"])
    await end(plane.store, job["id"], Outcome.COMPLETED)
    deletion = (await plane.delete(f"{PROJECTS}/{project['id']}")).ok()
    assert (deletion["id"], deletion["deleted"]) == (project["id"], True)
    assert deletion["training_project"]["latest_job"]["id"] == job["id"]
    for path in (f"{PROJECTS}/{project['id']}", f"{PROJECTS}/{project['id']}/jobs/{job['id']}"):
        assert (await plane.get(path)).refused(404)["error"] == "training project not found"
    assert (await plane.post("/v1/training_jobs/search", {})).ok() == {"training_jobs": []}
    assert (await create_project(plane))["id"] != project["id"]
    async with plane.store.read() as conn:
        assert [one.id for one in await job_rows.wanted_jobs(conn)] == [job["id"]]


async def test_a_project_with_an_unfinished_job_cannot_be_deleted(sqlite_plane: ControlPlane) -> None:
    await enable(sqlite_plane)
    project = await create_project(sqlite_plane)
    job = await new_job(sqlite_plane, project["id"])
    refused = (await sqlite_plane.delete(f"{PROJECTS}/{project['id']}")).refused(409, "CONFLICT")
    assert job["id"] in refused["error"]


async def test_a_project_with_jobs_is_deleted_only_while_the_backend_is_there(sqlite_plane: ControlPlane) -> None:
    await enable(sqlite_plane)
    project = await create_project(sqlite_plane)
    empty = await create_project(sqlite_plane, "empty")
    await end(sqlite_plane.store, (await new_job(sqlite_plane, project["id"]))["id"])
    await report_backend(sqlite_plane.store, reason="Ray is not reachable")
    (await sqlite_plane.delete(f"{PROJECTS}/{project['id']}")).refused(503, "TRAINING_UNAVAILABLE")
    (await sqlite_plane.delete(f"{PROJECTS}/{empty['id']}")).ok()


async def test_a_project_may_name_the_team_of_its_workspace_alone(sqlite_plane: ControlPlane) -> None:
    project = await create_project(sqlite_plane)
    names = {"name": project["name"], "team_name": project["team_name"]}
    assert (await sqlite_plane.post(PROJECTS, {"training_project": names})).ok()["training_project"] == project
    other = {"training_project": names | {"team_name": "another"}}
    (await sqlite_plane.post(PROJECTS, other)).refused(400, field="training_project.team_name")


async def test_a_workspace_has_a_bounded_number_of_projects(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projects, "MAX_PROJECTS", 1)
    first = await create_project(sqlite_plane)
    answer = await sqlite_plane.post(PROJECTS, {"training_project": {"name": "one more"}})
    assert "at most 1 training projects" in answer.refused(409)["error"]
    assert await create_project(sqlite_plane) == first


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "training_project"),
        ({"training_project": {}}, "training_project.name"),
        ({"training_project": {"name": ""}}, "training_project.name"),
        ({"training_project": {"name": "a", "team_name": 1}}, "training_project.team_name"),
    ],
)
async def test_bad_input_names_the_field(body: object, field: str) -> None:
    with pytest.raises(ProblemError) as problem:
        valid_body(orjson.dumps(body), PutTrainingProjectRequestV1)
    assert problem.value.status == 400
    assert [detail.field for detail in problem.value.details] == [field]
