"""A job's place in the queue, and the GPUs that jobs have, on both databases (docs/reference/training.md#queue)."""

from typing import Any

import pytest

from control.edges.sql.store import now_ms
from policy.training.reports import NodeState
from policy.training.resources import Host, NodeResources
from policy.training.statuses import COMPLETED, CREATED, PENDING, RUNNING, STOPPED, SYNCING
from tests.control.plane import ControlPlane, Json
from tests.control.trainer import PROJECT, add_job
from tests.control.training import report_backend
from tests.control.training_jobs import running_job

HOSTS = (Host("machine-1", 4000, 8192, 8, {"H100": 4}),)
CAPACITY = "/v1/training/capacity"


@pytest.fixture
async def busy(plane: ControlPlane) -> ControlPlane:
    """A backend whose one machine is half used: 2 of 4 CPUs and 1 of 4 GPUs."""
    await report_backend(plane.store, HOSTS)
    gpus = NodeResources(2000, 512, 1, "H100")
    await add_job(plane, id="tj_run", **placed(gpus), created_at_ms=1_000, claimed_at_ms=2_000)
    return plane


def placed(resources: NodeResources, **more: Any) -> Json:
    return {"status": RUNNING, "attempt": 1, "resources": resources, "nodes": (NodeState(0, "machine-1"),)} | more


def needs(cpus: int) -> NodeResources:
    return NodeResources(cpus * 1000, 512)


async def context(plane: ControlPlane, id: str, **more: Any) -> Json:
    answer: Json = (await plane.get(f"/v1/training/jobs/{id}/queue_context", **more)).ok()
    return answer


async def place(plane: ControlPlane, id: str) -> tuple[int, str]:
    answer = await context(plane, id)
    assert answer["message"]
    return answer["position"], answer["reason"]


async def test_a_waiting_job_says_its_place_and_why(busy: ControlPlane) -> None:
    await add_job(busy, id="tj_a", resources=needs(4), created_at_ms=10_000)
    await add_job(busy, id="tj_b", resources=needs(1), created_at_ms=20_000, status=PENDING)
    await add_job(busy, id="tj_c", resources=needs(3), created_at_ms=30_000)
    assert await place(busy, "tj_a") == (1, "NO_ROOM")
    assert await place(busy, "tj_b") == (2, "RESERVED")
    assert await place(busy, "tj_c") == (3, "NO_ROOM")
    await add_job(busy, id="tj_first", resources=needs(2), created_at_ms=40_000, priority=1)
    assert await place(busy, "tj_first") == (1, "STARTS")
    assert await place(busy, "tj_a") == (2, "NO_ROOM")
    assert await place(busy, "tj_b") == (3, "NO_ROOM")


async def test_a_spot_job_that_becomes_dedicated_goes_ahead_and_preempts(plane: ControlPlane) -> None:
    await report_backend(plane.store, HOSTS)
    await add_job(plane, id="tj_run", **placed(needs(4), availability_model="spot"), created_at_ms=1_000)
    await add_job(plane, id="tj_a", resources=needs(1), availability_model="spot", created_at_ms=10_000)
    await add_job(plane, id="tj_b", resources=needs(1), availability_model="spot", created_at_ms=20_000)
    assert await place(plane, "tj_b") == (2, "NO_ROOM")
    path = f"/v1/training_projects/{PROJECT}/jobs/tj_b"
    (await plane.patch(path, {"availability_model": "dedicated"})).ok()
    assert await place(plane, "tj_b") == (1, "PREEMPTS")


async def test_jobs_of_others_count_and_are_not_named(busy: ControlPlane) -> None:
    other = await busy.another_workspace()
    theirs: Json = {"workspace_id": other["workspace_id"], "created_at_ms": 5}
    for id, status in (("tj_theirs", CREATED), ("tj_their_run", RUNNING)):
        await running_job(busy, None, id=id, name=id, project_id=f"tp_{id}", status=status, **theirs)
    await add_job(busy, id="tj_a", resources=needs(4), created_at_ms=10_000)
    answer = await context(busy, "tj_a")
    assert answer["position"] == 2
    assert "tj_their" not in str(answer)
    (await busy.get("/v1/training/jobs/tj_theirs/queue_context")).refused(404, "NOT_FOUND")
    (await busy.get("/v1/training/jobs/tj_none/queue_context")).refused(404, "NOT_FOUND")
    assert (await context(busy, "tj_theirs", key=other["api_key"]))["position"] == 1


async def test_the_surroundings_are_those_of_the_jobs_creation(busy: ControlPlane) -> None:
    await add_job(busy, id="tj_gone", status=COMPLETED, created_at_ms=1_000, claimed_at_ms=1_500, ended_at_ms=5_000)
    end: Json = {"status": COMPLETED, "created_at_ms": 1_500, "claimed_at_ms": 2_500, "ended_at_ms": 11_000}
    await add_job(busy, id="tj_then", name="then", **end)
    await add_job(busy, id="tj_ahead", status=RUNNING, created_at_ms=9_000, claimed_at_ms=30_000)
    await add_job(busy, id="tj_low", created_at_ms=9_500, priority=-1)
    await add_job(busy, id="tj_a", created_at_ms=10_000, resources=NodeResources(4000, 512, 2, "H100"), node_count=2)
    await add_job(busy, id="tj_later", created_at_ms=20_000, priority=5)
    answer = await context(busy, "tj_a")
    assert (answer["gpu_type"], answer["requested_gpus"]) == ("H100", 4)
    assert [one["training_job_id"] for one in answer["active_at_submit"]] == ["tj_run", "tj_then"]
    assert answer["active_at_submit"][0] == {
        "training_job_id": "tj_run",
        "training_job_name": None,
        "instance_type_name": "2 CPU, 512 MiB, 1 H100",
        "total_gpus": 1,
        "workload_plane_name": "local",
        "status_at_submit": "TRAINING_JOB_DEPLOYING",
        "status_set_at": "1970-01-01T00:00:02.000Z",
    }
    assert [one["training_job_id"] for one in answer["pending_ahead_at_submit"]] == ["tj_ahead"]
    assert [(one["training_job_id"], one["status"]) for one in answer["events"]] == [
        ("tj_a", "TRAINING_JOB_CREATED"),
        ("tj_then", "TRAINING_JOB_COMPLETED"),
        ("tj_ahead", "TRAINING_JOB_DEPLOYING"),
    ]


async def test_a_job_that_has_begun_says_when(busy: ControlPlane) -> None:
    answer = await context(busy, "tj_run")
    assert (answer["position"], answer["reason"], answer["message"]) == (None, None, None)
    assert (answer["released_at"], answer["pending_seconds"]) == ("1970-01-01T00:00:02.000Z", 1)
    assert answer["events_window_end"] == answer["released_at"]


async def test_a_job_that_was_stopped_while_it_waited_has_no_place(busy: ControlPlane) -> None:
    await add_job(busy, id="tj_a", status=STOPPED, ended_at_ms=now_ms())
    answer = await context(busy, "tj_a")
    assert (answer["position"], answer["released_at"], answer["gpu_type"]) == (None, None, "")


async def test_a_job_waits_for_checkpoints_and_for_the_backend(busy: ControlPlane) -> None:
    await add_job(busy, id="tj_old", status=COMPLETED, ended_at_ms=5, checkpoint_sync_status=SYNCING)
    await add_job(busy, id="tj_a", recreated_from="tj_old", created_at_ms=10_000)
    assert await place(busy, "tj_a") == (1, "CHECKPOINTS_SYNCING")
    await report_backend(busy.store, HOSTS, reason="the disk is full")
    assert await place(busy, "tj_a") == (1, "BACKEND_AWAY")
    assert "the disk is full" in (await context(busy, "tj_a"))["message"]


async def test_the_capacity_is_that_of_the_machines_and_of_the_jobs_on_them(busy: ControlPlane) -> None:
    other = await busy.another_workspace()
    spot = placed(NodeResources(1000, 512, 2, "H100"), availability_model="spot", node_count=1)
    await running_job(busy, None, id="tj_theirs", workspace_id=other["workspace_id"], project_id="tp_theirs", **spot)
    await add_job(busy, id="tj_waits", resources=NodeResources(1000, 512, 4, "H100"))
    h100 = {"gpu_type": "H100", "baseline": 0, "limit": 4}
    own = {"usage_count": 1, "dedicated_usage_count": 1, "spot_usage_count": 0}
    assert (await busy.get(CAPACITY)).ok() == {
        "gpu_capacities": [{**h100, "usage_count": 3, "dedicated_usage_count": 1, "spot_usage_count": 2}],
        "team_gpu_capacities": [{**h100, **own, "team_id": busy.workspace_id, "team_name": "workspace acme"}],
    }


async def test_without_gpus_or_a_backend_the_capacity_is_empty(plane: ControlPlane) -> None:
    assert (await plane.get(CAPACITY)).ok() == {"gpu_capacities": [], "team_gpu_capacities": []}
    await report_backend(plane.store, [Host("cpus", 4000, 8192, 8)], reason="away")
    assert (await plane.get(CAPACITY)).ok() == {"gpu_capacities": [], "team_gpu_capacities": []}


async def test_the_capacity_is_the_operators(plane: ControlPlane) -> None:
    body = {"team_id": plane.workspace_id, "gpu_type": "H100", "max_gpus": 8}
    assert "operator" in (await plane.patch(CAPACITY, body)).refused(409, "CONFLICT")["message"]
