"""A client that knows the documented API by its raw JSON: what it sends is accepted, what it reads is there.

See docs/reference/training.md#search.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from control.api.protocol.bodies import valid_body
from control.api.protocol.errors import ProblemError
from control.api.training.search import SearchTrainingJobsRequestV1
from tests.control.plane import Answer, ControlPlane, Json
from tests.control.training import enable, end, job_body

ACTIVE = ["TRAINING_JOB_CREATED", "TRAINING_JOB_PENDING", "TRAINING_JOB_DEPLOYING", "TRAINING_JOB_RUNNING"]


@dataclass
class Client:
    """Calls as `POST training_jobs/search` and its siblings, and unwraps the answers."""

    plane: ControlPlane

    async def upsert_project(self, name: str) -> Json:
        project: Json = await self._post("training_projects", {"training_project": {"name": name}}, "training_project")
        return project

    async def create_job(self, project_id: str, **changes: Any) -> Json:
        job: Json = await self._post(f"training_projects/{project_id}/jobs", job_body(**changes), "training_job")
        return job

    async def recreate_job(self, project_id: str, job_id: str) -> Json:
        job: Json = await self._post(f"training_projects/{project_id}/jobs/{job_id}/recreate", {}, "training_job")
        return job

    async def list_projects(self) -> list[Json]:
        projects: list[Json] = (await self.plane.get("/v1/training_projects")).ok()["training_projects"]
        return projects

    async def search(self, **filters: Any) -> list[str]:
        jobs: list[Json] = await self._post("training_jobs/search", filters, "training_jobs")
        return [job["id"] for job in jobs]

    async def _post(self, path: str, body: Json, member: str) -> Any:
        answer = (await self.plane.post(f"/v1/{path}", body)).ok()
        assert answer.keys() == {member}
        return answer[member]


@pytest.fixture
async def client(sqlite_plane: ControlPlane) -> Client:
    await enable(sqlite_plane)
    return Client(sqlite_plane)


async def test_a_search_finds_by_project_job_and_status(client: Client) -> None:
    llama, mistral = [await client.upsert_project(name) for name in ("llama", "mistral")]
    first, second = [(await client.create_job(llama["id"]))["id"] for _ in range(2)]
    third = (await client.create_job(mistral["id"]))["id"]
    await end(client.plane.store, first)
    everything = {"project_id": None, "job_id": None, "statuses": None, "order_by": None}
    assert await client.search() == await client.search(**everything) == [third, second, first]
    assert await client.search(statuses=[], order_by=[]) == [third, second, first]
    assert await client.search(project_id=llama["id"]) == [second, first]
    assert await client.search(project_id=llama["id"], job_id=first) == [first]
    assert await client.search(project_id=mistral["id"], job_id=first) == []
    assert await client.search(statuses=ACTIVE) == [third, second]
    assert await client.search(statuses=["TRAINING_JOB_FAILED", "TRAINING_JOB_FAILED"]) == [first]
    assert await client.search(project_id="unknown") == await client.search(job_id="unknown") == []


async def test_a_search_is_ordered_by_time_of_creation(client: Client) -> None:
    project = await client.upsert_project("llama")
    ids = [(await client.create_job(project["id"]))["id"] for _ in range(3)]
    assert await client.search(order_by=[{"field": "created_at", "order": "asc"}]) == ids
    assert await client.search(order_by=[{"field": "created_at", "order": "desc"}]) == ids[::-1]
    assert await client.search(order_by=[{"field": "created_at"}]) == ids[::-1]


async def test_projects_are_listed_with_their_latest_job(client: Client) -> None:
    project = await client.upsert_project("llama")
    job = await client.create_job(project["id"])
    (entry,) = await client.list_projects()
    assert entry["latest_job"] == job
    assert entry["latest_job"]["training_project"] == {"id": project["id"], "name": "llama"}


async def test_recreate_makes_a_job_that_a_search_finds_first(client: Client) -> None:
    project = await client.upsert_project("llama")
    job = await client.create_job(project["id"], name="base")
    again = await client.recreate_job(project["id"], job["id"])
    assert again["name"] == "base"
    assert await client.search(project_id=project["id"]) == [again["id"], job["id"]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"statuses": ["RUNNING"]}, "statuses.0"),
        ({"statuses": "TRAINING_JOB_RUNNING"}, "statuses"),
        ({"order_by": [{"field": "name", "order": "asc"}]}, "order_by.0.field"),
        ({"order_by": [{"field": "created_at", "order": "up"}]}, "order_by.0.order"),
        ({"order_by": [{"order": "asc"}]}, "order_by.0.field"),
        ({"project_id": 1}, "project_id"),
        ({"job_id": "x" * 129}, "job_id"),
        ({"limit": 5}, "limit"),
    ],
)
async def test_a_bad_search_names_the_field(body: Json, field: str) -> None:
    with pytest.raises(ProblemError) as problem:
        valid_body(orjson.dumps(body), SearchTrainingJobsRequestV1)
    assert problem.value.status == 400
    assert [detail.field for detail in problem.value.details] == [field]


async def test_others_are_never_found(client: Client) -> None:
    project = await client.upsert_project("llama")
    job = await client.create_job(project["id"])
    key = (await client.plane.another_workspace())["api_key"]
    for body in ({}, {"project_id": project["id"]}, {"job_id": job["id"]}):
        answer = await client.plane.post("/v1/training_jobs/search", body, key=key)
        assert answer.ok() == {"training_jobs": []}


async def test_only_a_management_key_reads_jobs(client: Client) -> None:
    key = (await client.plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()
    calls = [client.plane.post("/v1/training_jobs/search", {}, key=key["api_key"])]
    calls += [client.plane.get("/v1/training_projects", key=key["api_key"])]
    answers: list[Answer] = await asyncio.gather(*calls)
    for answer in answers:
        answer.refused(403, "MISSING_SCOPE")
