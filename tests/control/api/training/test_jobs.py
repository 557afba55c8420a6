"""Creating, reading, stopping, deleting and recreating training jobs; what locks rows, on both databases.

See docs/reference/training.md#jobs.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import delete, insert

from control.edges.redis.throttle_windows import LocalWindows
from control.edges.sql.training import job_rows
from control.edges.sql.training.tables import training_backend, training_checkpoints
from control.resources.training import jobs
from control.resources.workspaces import set_workspace
from control.throttle import OTHER, Allowance, allowance_for
from policy.training.job_spec import JobSpec, SecretRef, SessionSpec
from policy.training.resources import Host, NodeResources
from policy.training.statuses import Outcome, Phase
from tests.control.plane import ControlPlane, Json
from tests.control.training import HOSTS, create_project, enable, end, job_body, move, new_job, report_backend

FIELDS = {
    *("id", "created_at", "updated_at", "current_status", "instance_type", "training_project_id", "training_project"),
    *("error_message", "node_count", "name", "checkpoint_sync_status", "priority", "availability_model", "user"),
}
INSTANCE = {"id", "name", "memory_limit_mib", "millicpu_limit", "gpu_count", "gpu_type", "gpu_memory_limit_mib"}
NULLABLE = {"error_message", "name", "checkpoint_sync_status"}


@pytest.fixture
async def place(plane: ControlPlane) -> str:
    """The path of the jobs of a project whose workspace may create some."""
    await enable(plane)
    return f"/v1/training_projects/{(await create_project(plane))['id']}/jobs"


@pytest.fixture
async def sqlite_place(sqlite_plane: ControlPlane) -> str:
    """The same, on SQLite only."""
    await enable(sqlite_plane)
    return f"/v1/training_projects/{(await create_project(sqlite_plane))['id']}/jobs"


async def create(plane: ControlPlane, place: str, **changes: Any) -> Json:
    return await new_job(plane, place.split("/")[3], **changes)


async def spec_of(plane: ControlPlane, job: Json) -> JobSpec:
    async with plane.store.read() as conn:
        return await job_rows.get_spec(conn, job["id"])


async def project_of(plane: ControlPlane, jobs: str) -> Json:
    """The project of the jobs below this path."""
    project: Json = (await plane.get(jobs.removesuffix("/jobs"))).ok()["training_project"]
    return project


async def test_a_job_has_the_documented_fields(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place)
    assert job.keys() == FIELDS
    assert {name for name, value in job.items() if value is None} == NULLABLE
    assert job["user"] == {"email": None}
    assert job["instance_type"].keys() == INSTANCE
    assert job["training_project"] == {"id": job["training_project_id"], "name": "llama"}
    assert (job["current_status"], job["node_count"], job["priority"]) == ("TRAINING_JOB_CREATED", 1, 0)
    assert job["availability_model"] == "dedicated"
    project = await project_of(sqlite_plane, sqlite_place)
    details = (await sqlite_plane.get(f"{sqlite_place}/{job['id']}")).ok()
    assert details == {"training_job": job, "training_project": project}


async def test_jobs_of_a_project_are_listed_newest_first(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    project = await project_of(sqlite_plane, sqlite_place)
    assert (await sqlite_plane.get(sqlite_place)).ok() == {"training_project": project, "training_jobs": []}
    jobs = [await create(sqlite_plane, sqlite_place) for _ in range(2)]
    other = (await sqlite_plane.post("/v1/training_projects", {"training_project": {"name": "other"}})).ok()
    await create(sqlite_plane, f"/v1/training_projects/{other['training_project']['id']}/jobs")
    answer = (await sqlite_plane.get(sqlite_place)).ok()
    assert answer["training_jobs"] == jobs[::-1]
    assert answer["training_project"] == await project_of(sqlite_plane, sqlite_place)
    assert answer["training_project"]["latest_job"] == jobs[-1]
    key = (await sqlite_plane.another_workspace())["api_key"]
    (await sqlite_plane.get(sqlite_place, key=key)).refused(404, "NOT_FOUND")


async def test_the_instance_type_tells_what_each_node_gets(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    gpu = {"accelerator": "H100", "count": 2}
    job = await create(sqlite_plane, sqlite_place, cpu_count=2, memory="1Gi", accelerator=gpu)
    assert job["instance_type"] == {
        "id": "2000m-1024Mi-2xH100",
        "name": "2 CPU, 1 GiB, 2 H100",
        "memory_limit_mib": 1024,
        "millicpu_limit": 2000,
        "gpu_count": 2,
        "gpu_type": "H100",
        "gpu_memory_limit_mib": 81920,
    }


async def test_everything_that_was_configured_is_kept(plane: ControlPlane, place: str) -> None:
    await plane.secret("hub token")
    settings = {
        "environment_variables": {"A": "1", "TOKEN": {"type": "SECRET", "name": "hub token"}},
        "working_directory": "./src//run/",
        "checkpointing_config": {"enabled": True, "checkpoint_path": "out/best"},
        "interactive_session": {"trigger": "on_failure", "timeout_minutes": 60},
        "image": {"base_image": "python:3.12"},
    }
    job = await create(plane, place, node_count=2, name="try", priority=-3, availability_model="spot", **settings)
    assert (job["name"], job["priority"], job["availability_model"]) == ("try", -3, "spot")
    assert await spec_of(plane, job) == JobSpec(
        start_commands=("echo hello",),
        resources=NodeResources(1000, 512),
        node_count=2,
        environment={"A": "1", "TOKEN": SecretRef("hub token")},
        working_directory="src/run",
        checkpoint_path="out/best",
        base_image="python:3.12",
        session=SessionSpec("on_failure", 60),
    )


async def test_everything_that_may_be_left_out_has_its_default(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    spec = JobSpec((), NodeResources(1000, 2048), checkpoint_path="checkpoints")
    shortest = {"compute": {"cpu_count": 1}, "runtime": {"checkpointing_config": {"enabled": True}}}
    nulls = {
        "image": None,
        "compute": {"cpu_count": 1, "node_count": None, "memory": None, "accelerator": None},
        "runtime": {
            "start_commands": None,
            "environment_variables": None,
            "working_directory": None,
            "checkpointing_config": {"enabled": True, "checkpoint_path": None},
        },
        **{"name": None, "priority": None, "availability_model": None, "interactive_session": None},
    }
    for body in (shortest, nulls):
        job = (await sqlite_plane.post(sqlite_place, {"training_job": body})).ok()["training_job"]
        assert await spec_of(sqlite_plane, job) == spec
        assert (job["priority"], job["availability_model"]) == (0, "dedicated")


async def test_only_a_workspace_with_training_may_create_jobs(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place)
    await set_workspace(sqlite_plane.store, "workspace acme", training=False)
    for path, body in ((sqlite_place, job_body()), (f"{sqlite_place}/{job['id']}/recreate", None)):
        assert "--training" in (await sqlite_plane.post(path, body)).refused(403, "TRAINING_NOT_ENABLED")["error"]
    (await sqlite_plane.get(f"{sqlite_place}/{job['id']}")).ok()
    (await sqlite_plane.post(f"{sqlite_place}/{job['id']}/stop")).ok()


@pytest.mark.parametrize(
    "report", [None, {"reported_at_ms": 0}, {"reason": "Ray is not reachable"}], ids=["never", "silent", "away"]
)
async def test_without_a_backend_writes_are_503_and_jobs_stay(
    sqlite_plane: ControlPlane, sqlite_place: str, report: Json | None
) -> None:
    job = await create(sqlite_plane, sqlite_place)
    ended = await create(sqlite_plane, sqlite_place)
    await end(sqlite_plane.store, ended["id"])
    async with sqlite_plane.store.write() as tx:
        await tx.conn.execute(delete(training_backend))
    if report is not None:
        await report_backend(sqlite_plane.store, **report)
    answers = [
        await sqlite_plane.post(path, job_body()) for path in (sqlite_place, f"{sqlite_place}/{job['id']}/recreate")
    ]
    answers += [
        await sqlite_plane.post(f"{sqlite_place}/{job['id']}/stop"),
        await sqlite_plane.delete(f"{sqlite_place}/{ended['id']}"),
    ]
    for answer in answers:
        error = answer.refused(503, "TRAINING_UNAVAILABLE")["error"]
        assert ("Ray is not reachable" in error) == bool(report and "reason" in report)
    assert (await sqlite_plane.get(f"{sqlite_place}/{job['id']}")).ok()["training_job"] == job
    assert len((await sqlite_plane.post("/v1/training_jobs/search", {})).ok()["training_jobs"]) == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cpu_count": 9}, "cpu_count"),
        ({"memory": "17Gi"}, "memory"),
        ({"accelerator": {"accelerator": "H100", "count": 3}}, "accelerator"),
        ({"accelerator": {"accelerator": "A100", "count": 1}}, "accelerator"),
        ({"node_count": 17}, "node_count"),
        ({"cpu_count": 5, "node_count": 2}, "node_count"),
    ],
)
async def test_what_can_never_fit_is_refused_by_its_field(
    sqlite_plane: ControlPlane, sqlite_place: str, changes: Json, field: str
) -> None:
    refused = (await sqlite_plane.post(sqlite_place, job_body(**changes))).refused(400, "INVALID_REQUEST")
    assert [detail["field"] for detail in refused["details"]] == [f"training_job.compute.{field}"]


async def test_a_session_is_refused_where_the_backend_has_none(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    await report_backend(sqlite_plane.store, HOSTS, backend="ray", has_sessions=False)
    session = {"trigger": "on_startup", "timeout_minutes": 1}
    refused = (await sqlite_plane.post(sqlite_place, job_body(interactive_session=session))).refused(400)
    assert refused["details"][0]["field"] == "training_job.interactive_session"


async def test_a_secret_must_exist_in_the_same_workspace(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    other = (await sqlite_plane.another_workspace())["api_key"]
    (await sqlite_plane.post("/v1/secrets", {"name": "theirs", "value": "v"}, key=other)).ok()
    body = job_body(environment_variables={"A": "plain", "TOKEN": {"type": "SECRET", "name": "theirs"}})
    refused = (await sqlite_plane.post(sqlite_place, body)).refused(400)
    assert refused["details"][0]["field"] == "training_job.runtime.environment_variables.TOKEN"


async def test_a_secret_of_an_unfinished_job_cannot_be_deleted(plane: ControlPlane, place: str) -> None:
    await plane.secret("hub")
    job = await create(plane, place, environment_variables={"TOKEN": {"type": "SECRET", "name": "hub"}})
    assert "training job" in (await plane.delete("/v1/secrets/hub")).refused(409)["error"]
    await end(plane.store, job["id"])
    (await plane.delete("/v1/secrets/hub")).ok()
    refused = (await plane.post(f"{place}/{job['id']}/recreate")).refused(400)
    assert refused["details"][0]["field"] == "training_job.runtime.environment_variables.TOKEN"


async def test_a_waiting_job_stops_at_once(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place)
    stopped = (await sqlite_plane.post(f"{sqlite_place}/{job['id']}/stop")).ok()["training_job"]
    assert stopped["current_status"] == "TRAINING_JOB_STOPPED"
    assert stopped["updated_at"] > job["updated_at"]
    assert (
        "has ended" in (await sqlite_plane.post(f"{sqlite_place}/{job['id']}/stop")).refused(409, "CONFLICT")["error"]
    )


async def test_a_running_job_is_asked_to_stop(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place)
    await move(sqlite_plane.store, job["id"], (Phase.RUNNING, None))
    for _ in range(2):
        state = (await sqlite_plane.post(f"{sqlite_place}/{job['id']}/stop")).ok()["training_job"]
        assert state["current_status"] == "TRAINING_JOB_RUNNING"
    async with sqlite_plane.store.read() as conn:
        (row,) = await job_rows.wanted_jobs(conn)
    assert row.stop_requested


async def test_a_failed_job_tells_why(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place)
    await end(sqlite_plane.store, job["id"])
    failed = (await sqlite_plane.get(f"{sqlite_place}/{job['id']}")).ok()["training_job"]
    assert (failed["current_status"], failed["error_message"]) == ("TRAINING_JOB_FAILED", "node 0 exited with status 3")


async def test_only_an_ended_job_can_be_deleted_and_is_gone_at_once(plane: ControlPlane, place: str) -> None:
    job = await create(plane, place)
    path = f"{place}/{job['id']}"
    assert "stop it first" in (await plane.delete(path)).refused(409, "CONFLICT")["error"]
    await end(plane.store, job["id"])
    deletion = (await plane.delete(path)).ok()
    ids = {"id": job["id"], "training_project_id": job["training_project_id"], "deleted": True}
    assert deletion == {**ids, "training_job": deletion["training_job"]}
    assert deletion["training_job"]["id"] == job["id"]
    answers = [await plane.get(path), await plane.delete(path)]
    answers += [await plane.post(f"{path}/{verb}") for verb in ("stop", "recreate")]
    for answer in answers:
        assert answer.refused(404, "NOT_FOUND")["error"] == "training job not found"


async def test_a_recreated_job_is_a_new_one_with_the_same_configuration(plane: ControlPlane, place: str) -> None:
    session = {"trigger": "on_demand", "timeout_minutes": 1}
    job = await create(plane, place, name="first", priority=7, interactive_session=session)
    await end(plane.store, job["id"])
    again = (await plane.post(f"{place}/{job['id']}/recreate")).ok()["training_job"]
    new = {name: again[name] for name in ("id", "created_at", "updated_at")}
    assert again == job | new
    assert again["id"] != job["id"]
    assert await spec_of(plane, again) == await spec_of(plane, job)
    async with plane.store.read() as conn:
        (record,) = await job_rows.wanted_jobs(conn)
    assert record.recreated_from == job["id"]


async def test_a_job_that_fits_no_longer_is_not_recreated(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place, cpu_count=4)
    await report_backend(sqlite_plane.store, [Host("small", 1000, 8192, 8)])
    refused = (await sqlite_plane.post(f"{sqlite_place}/{job['id']}/recreate")).refused(400)
    assert refused["details"][0]["field"] == "training_job.compute.cpu_count"


async def test_another_workspace_or_project_has_no_such_job(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    job = await create(sqlite_plane, sqlite_place)
    other = await sqlite_plane.another_workspace()
    await set_workspace(sqlite_plane.store, "other", training=True)
    theirs = await create_project(sqlite_plane, key=other["api_key"])
    mine = await create_project(sqlite_plane, "another")
    elsewhere = [
        (f"{sqlite_place}/{job['id']}", other["api_key"], "training project not found"),
        (f"/v1/training_projects/{theirs['id']}/jobs/{job['id']}", other["api_key"], "training job not found"),
        (f"/v1/training_projects/{mine['id']}/jobs/{job['id']}", sqlite_plane.key, "training job not found"),
    ]
    for path, key, error in elsewhere:
        answers = [await sqlite_plane.get(path, key=key), await sqlite_plane.delete(path, key=key)]
        answers += [await sqlite_plane.post(f"{path}/{verb}", key=key) for verb in ("stop", "recreate")]
        assert [answer.refused(404, "NOT_FOUND")["error"] for answer in answers] == [error] * 4
    answer = await sqlite_plane.post(sqlite_place, job_body(), key=other["api_key"])
    assert answer.refused(404)["error"] == "training project not found"


async def test_a_workspace_has_a_bounded_number_of_unfinished_jobs(
    plane: ControlPlane, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_UNFINISHED", 3)
    answers = await asyncio.gather(*(plane.post(place, job_body()) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 409, 409]
    job = next(answer.body["training_job"] for answer in answers if answer.status == 200)
    (await plane.post(f"{place}/{job['id']}/stop")).ok()
    await create(plane, place)


async def test_instance_types_are_the_machines_also_while_the_backend_is_away(sqlite_plane: ControlPlane) -> None:
    path = "/v1/training_instance_types"
    assert (await sqlite_plane.get(path)).ok() == {"instance_types": []}
    await report_backend(sqlite_plane.store, [*HOSTS, HOSTS[0]], reason="gone")
    instance_types = (await sqlite_plane.get(path)).ok()["instance_types"]
    assert [(one["id"], one["gpu_memory_limit_mib"]) for one in instance_types] == [
        ("4000m-8192Mi", None),
        ("8000m-16384Mi-2xH100", 81920),
    ]
    assert instance_types[0].keys() == INSTANCE


async def test_training_falls_under_the_limit_of_all_other_operations(sqlite_plane: ControlPlane) -> None:
    document = (await sqlite_plane.get("/v1/openapi.json")).ok()
    operations = [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation["tags"][0].startswith("Training")
    ]
    assert len(operations) >= 11
    assert {allowance_for(*one) for one in operations} == {OTHER}
    assert (OTHER.requests, OTHER.window_ms) == (100, 1000)


async def test_training_is_limited_together_with_all_other_operations(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted = Counter[str]()

    async def admit_as_if_no_time_passed(_windows: LocalWindows, _key: str, allowance: Allowance) -> int:
        admitted[allowance.name] += 1
        return 0 if admitted[allowance.name] <= allowance.requests else 1

    monkeypatch.setattr(LocalWindows, "admit", admit_as_if_no_time_passed)
    for path in ["/v1/training_projects", "/v1/secrets"] * (OTHER.requests // 2):
        (await sqlite_plane.get(path)).ok()
    assert (await sqlite_plane.get("/v1/training_instance_types")).refused(429)["retry_after"] == 1
    (await sqlite_plane.post("/v1/training_jobs/search", {})).refused(429, "RATE_LIMITED")


async def test_a_reported_outcome_is_what_the_job_shows(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    statuses = {}
    for outcome in Outcome:
        job = await create(sqlite_plane, sqlite_place)
        await move(sqlite_plane.store, job["id"], (Phase.ENDED, outcome))
        state = (await sqlite_plane.get(f"{sqlite_place}/{job['id']}")).ok()["training_job"]
        statuses[outcome.value] = state["current_status"].removeprefix("TRAINING_JOB_")
    assert statuses == {outcome.value: outcome.value for outcome in Outcome} | {"REQUEUED": "PENDING"}


async def test_a_checkpoint_to_load_has_to_be_the_workspaces_own(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    plane = sqlite_plane
    source = await create(plane, sqlite_place)
    refs: list[Json] = [{"job_id": source["id"]}, {"job_id": source["id"], "checkpoint_name": "step-1"}]
    refs += [{"project_name": "llama"}, {}]
    for ref in refs:
        await loading_is_refused(plane, sqlite_place, ref)  # the job has none yet
    row: Json = {"id": "ckpt_1", "job_id": source["id"], "name": "step-1", "location": "x", "checkpoint_type": "FULL"}
    row |= {"size_bytes": 3, "sync_status": "SYNCING", "created_at_ms": 1, "updated_at_ms": 1}
    async with plane.store.write() as tx:
        await tx.conn.execute(insert(training_checkpoints).values(**row))
    for ref in refs:
        job = await create(plane, sqlite_place, load_checkpoint_config={"enabled": True, "checkpoints": [ref]})
        (await plane.post(f"{sqlite_place}/{job['id']}/recreate")).ok()
    for ref in ({"job_id": "tj_unknown"}, {"job_id": source["id"], "checkpoint_name": "x"}, {"project_name": "x"}):
        await loading_is_refused(plane, sqlite_place, ref)
    stranger = await plane.another_workspace()
    await set_workspace(plane.store, stranger["name"], training=True)
    project = await create_project(plane, key=stranger["api_key"])
    for ref in refs:
        await loading_is_refused(plane, f"/v1/training_projects/{project['id']}/jobs", ref, key=stranger["api_key"])


async def loading_is_refused(plane: ControlPlane, place: str, ref: Json, **more: Any) -> None:
    body = job_body(load_checkpoint_config={"enabled": True, "checkpoints": [ref]})
    refused = (await plane.post(place, body, **more)).refused(400, "INVALID_REQUEST")
    (detail,) = refused["details"]
    assert detail["field"] == "training_job.runtime.load_checkpoint_config.checkpoints.0"
    assert "no such checkpoint" in detail["message"]


async def test_a_cache_is_refused_where_the_backend_has_none(sqlite_plane: ControlPlane, sqlite_place: str) -> None:
    caching = job_body(cache_config={"enabled": True})
    job = (await sqlite_plane.post(sqlite_place, caching)).ok()["training_job"]
    await report_backend(sqlite_plane.store, backend="ray")
    for path, body in ((sqlite_place, caching), (f"{sqlite_place}/{job['id']}/recreate", None)):
        (detail,) = (await sqlite_plane.post(path, body)).refused(400, "INVALID_REQUEST")["details"]
        assert detail["field"] == "training_job.runtime.cache_config.enabled"
        assert "(ray) keeps no caches" in detail["message"]
