"""Priority and availability of waiting jobs, on both databases (docs/reference/training.md#jobs)."""

from typing import Any

import pytest

from policy.training.statuses import Outcome, Phase
from tests.control.plane import ControlPlane, Json
from tests.control.trainer import Trainer
from tests.control.training import create_project, enable, end, move, new_job, report_backend


@pytest.fixture
async def project(plane: ControlPlane) -> str:
    await enable(plane)
    id: str = (await create_project(plane))["id"]
    return id


def path_to(job: Json) -> str:
    return f"/v1/training_projects/{job['training_project_id']}/jobs/{job['id']}"


async def actions(plane: ControlPlane) -> list[str]:
    return [event["action"] for event in (await plane.get("/v1/audit_events")).ok()["items"]]


async def test_a_waiting_job_gets_another_place(plane: ControlPlane, project: str) -> None:
    job = await new_job(plane, project)
    after = (await plane.patch(path_to(job), {"priority": 7})).ok()["training_job"]
    changed = {"priority": 7, "updated_at": after["updated_at"]}
    assert after == job | changed
    assert after["updated_at"] > job["updated_at"]
    for model in ("spot", "dedicated"):
        answer = (await plane.patch(path_to(job), {"availability_model": model, "priority": None})).ok()
        assert (answer["training_job"]["availability_model"], answer["training_job"]["priority"]) == (model, 7)
    assert (await actions(plane)).count("training_job.update") == 3


async def test_a_job_that_waits_again_gets_another_place(plane: ControlPlane, project: str) -> None:
    job = await new_job(plane, project, availability_model="spot")
    await move(plane.store, job["id"], (Phase.ENDED, Outcome.REQUEUED))
    after = (await plane.patch(path_to(job), {"priority": -3})).ok()["training_job"]
    assert (after["current_status"], after["priority"]) == ("TRAINING_JOB_PENDING", -3)


@pytest.mark.parametrize("body", [{}, {"priority": None, "availability_model": None}, {"priority": 0}])
async def test_what_asks_for_nothing_changes_nothing(plane: ControlPlane, project: str, body: Json) -> None:
    job = await new_job(plane, project)
    assert (await plane.patch(path_to(job), body)).ok() == {"training_job": job}
    assert "training_job.update" not in await actions(plane)


async def test_the_trainer_is_told_at_its_next_look(plane: ControlPlane, project: str) -> None:
    first, second = [await new_job(plane, project) for _ in range(2)]
    (await plane.patch(path_to(second), {"priority": 5, "availability_model": "spot"})).ok()
    orders = (await Trainer(plane).sync()).jobs
    assert [one.job_id for one in orders] == [second["id"], first["id"]]
    assert (orders[0].priority, orders[0].availability_model) == (5, "spot")


@pytest.mark.parametrize("body", [{"priority": 1}, {"availability_model": "spot"}, {"priority": 0}])
async def test_a_job_that_has_begun_keeps_its_place(plane: ControlPlane, project: str, body: Json) -> None:
    running = await new_job(plane, project)
    await move(plane.store, running["id"], (Phase.RUNNING, None))
    ended = await new_job(plane, project)
    await end(plane.store, ended["id"])
    for job in (running, ended):
        answer = await plane.patch(path_to(job), body)
        assert "does not wait" in answer.refused(409, "CONFLICT")["message"]
        assert (await plane.patch(path_to(job), {})).status == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"priority": 1_000_001}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"priority": True}, "priority"),
        ({"availability_model": "reserved"}, "availability_model"),
        ({"node_count": 2}, "node_count"),
    ],
)
async def test_a_bad_change_names_the_field(plane: ControlPlane, project: str, body: Any, field: str) -> None:
    job = await new_job(plane, project)
    problem = (await plane.patch(path_to(job), body)).refused(400)
    assert [detail["field"] for detail in problem["details"]] == [field]


async def test_others_and_unknown_jobs_are_not_found(plane: ControlPlane, project: str) -> None:
    job = await new_job(plane, project)
    key = (await plane.another_workspace())["api_key"]
    (await plane.patch(path_to(job), {"priority": 1}, key=key)).refused(404)
    (await plane.patch(path_to(job | {"id": "tj_none"}), {"priority": 1})).refused(404)
    (await plane.patch(path_to(job | {"training_project_id": "tp_none"}), {"priority": 1})).refused(404)


async def test_nothing_is_changed_while_the_backend_is_away(plane: ControlPlane, project: str) -> None:
    job = await new_job(plane, project)
    await report_backend(plane.store, reason="the disk is full")
    (await plane.patch(path_to(job), {"priority": 1})).refused(503, "TRAINING_UNAVAILABLE")
    assert (await plane.get(path_to(job))).ok()["training_job"] == job
