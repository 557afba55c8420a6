"""The queries on training projects and jobs, on SQLite and PostgreSQL.

See docs/reference/training.md#jobs.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from control.edges.sql import secret_rows, tables
from control.edges.sql.database import TakenError
from control.edges.sql.store import Store
from control.edges.sql.training import backend_rows, job_rows, project_rows
from control.edges.sql.training.tables import training_backend, training_projects
from control.records.policy import SecretRecord
from control.records.training import BackendRecord, JobRecord, JobSearch, ProjectRecord
from policy.training.job_spec import JobSpec, SecretRef, SessionSpec
from policy.training.reports import NodeState
from policy.training.resources import Host, NodeResources
from policy.training.statuses import COMPLETED, RUNNING
from tests.control.resources.training.job_examples import SMALL, job

SPEC = JobSpec(("echo é",), SMALL, environment={"A": "b", "C": SecretRef("d_1")}, session=SessionSpec("on_demand", 5))
WORKSPACES = [
    {"id": id, "name": id, "tier": "basic", "billing": "active", "onboarded": True, "created_at_ms": 1}
    for id in ("ws", "other")
]


def project(id: str, workspace_id: str = "ws", **changes: object) -> ProjectRecord:
    return replace(ProjectRecord(id, workspace_id, f"name of {id}", False, 1, 1), **changes)  # type: ignore[arg-type]  # a test's


async def filled(store: Store, *jobs: JobRecord, spec: JobSpec = SPEC) -> None:
    """Two projects of workspace `ws` and one of another; these jobs."""
    async with store.write() as tx:
        await tx.conn.execute(insert(tables.workspaces), WORKSPACES)
        for record in (project("tp_1"), project("tp_2"), project("tp_9", "other")):
            await project_rows.insert_project(tx, record)
        for one in jobs:
            await job_rows.insert_job(tx, one, spec)


async def search(store: Store, **filters: object) -> list[str]:
    async with store.read() as conn:
        return [one.id for one in await job_rows.search_jobs(conn, JobSearch("ws", **filters))]  # type: ignore[arg-type]


async def test_a_job_is_read_as_it_was_written(store: Store) -> None:
    gpu = NodeResources(500, 2**40, 2, "H100")
    full = job(name="é", resources=gpu, gpu_memory_mib=2**33, nodes=(NodeState(1, "h", -9),), output_offsets={10: 7})
    await filled(store, full)
    async with store.read() as conn:
        assert await job_rows.find_job(conn, "ws", "tp_1", "tj_1") == full
        assert await job_rows.get_spec(conn, "tj_1") == SPEC


async def test_a_change_of_a_job_is_read_back(store: Store) -> None:
    await filled(store, job())
    changed = job(status=RUNNING, attempt=2, stop_requested=True, output_offsets={0: 1}, updated_at_ms=2000)
    async with store.write() as tx:
        record = await job_rows.lock_job(tx, "tj_1")
        assert record == job()
        await job_rows.update_job(tx, record, changed)
        assert await job_rows.lock_job(tx, "tj_2") is None
    async with store.read() as conn:
        assert await job_rows.find_job_anywhere(conn, "tj_1") == changed


async def test_a_job_is_invisible_to_others_in_other_projects_and_when_deleted(store: Store) -> None:
    await filled(store, job(), job(id="tj_2", is_deleted=True))
    async with store.read() as conn:
        for path in (("other", "tp_1", "tj_1"), ("ws", "tp_2", "tj_1"), ("ws", "tp_1", "tj_2")):
            assert await job_rows.find_job(conn, *path) is None
        assert await job_rows.find_job_anywhere(conn, "tj_2") is not None


async def test_a_search_filters_orders_and_ends_at_its_limit(store: Store) -> None:
    others = job(id="tj_9", workspace_id="other", project_id="tp_9")
    await filled(
        store, job(), job(id="tj_2", project_id="tp_2", status=RUNNING), job(id="tj_0", created_at_ms=5), others
    )
    assert await search(store) == ["tj_2", "tj_1", "tj_0"]
    assert await search(store, newest_first=False) == ["tj_0", "tj_1", "tj_2"]
    assert await search(store, limit=1) == ["tj_2"]
    assert await search(store, project_id="tp_2") == ["tj_2"]
    assert await search(store, job_id="tj_0") == ["tj_0"]
    assert await search(store, statuses=(RUNNING, COMPLETED)) == ["tj_2"]
    assert await search(store, project_id="tp_9") == []


async def test_the_latest_job_of_a_project_is_the_newest_visible_one(store: Store) -> None:
    await filled(store, job(), job(id="tj_0", created_at_ms=1001), job(id="tj_2", created_at_ms=1002, is_deleted=True))
    async with store.read() as conn:
        latest = await job_rows.latest_jobs(conn, ["tp_1", "tp_2"])
    assert {id: one.id for id, one in latest.items()} == {"tp_1": "tj_0"}


async def test_what_is_wanted_are_unfinished_and_deleted_jobs_of_all_workspaces(store: Store) -> None:
    others = job(id="tj_4", workspace_id="other", project_id="tp_9", priority=-1)
    ended = job(id="tj_1", status=COMPLETED)
    deleted = replace(ended, id="tj_2", is_deleted=True, created_at_ms=3)
    await filled(store, ended, deleted, job(id="tj_3"), others, job(id="tj_5", priority=1))
    async with store.read() as conn:
        assert [one.id for one in await job_rows.wanted_jobs(conn)] == ["tj_5", "tj_2", "tj_3", "tj_4"]
        assert await job_rows.count_unfinished(conn, "ws") == 2


async def test_many_deleted_jobs_are_wanted_in_portions(store: Store) -> None:
    deleted = [job(id=f"tj_{number:03}", status=COMPLETED, is_deleted=True) for number in range(201)]
    await filled(store, *deleted, job(id="tj_9"))
    async with store.read() as conn:
        assert [one.id for one in await job_rows.wanted_jobs(conn)] == [*(one.id for one in deleted[:200]), "tj_9"]


@pytest.mark.parametrize("migrated_original", ["sqlite"], indirect=True)
async def test_what_trainers_ask_twice_a_second_reads_no_ended_jobs(store: Store) -> None:
    statements: list[tuple[str, Any]] = []

    def note(_conn: object, _cursor: object, statement: str, parameters: Any, *_more: object) -> None:
        statements.append((statement, parameters))

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    async with store.read() as conn:
        await job_rows.wanted_jobs(conn)
        await job_rows.syncing_ended_jobs(conn)
        await job_rows.count_by_status(conn)
        plans = [
            (await conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {one}", arguments)).all()
            for one, arguments in statements[-3:]
        ]
    steps = [row.detail for plan in plans for row in plan if "training_jobs" in row.detail]
    read = {step.partition("INDEX ")[2].partition(" (")[0] for step in steps}
    by_id = "sqlite_autoindex_training_jobs_1"
    assert read == {"ix_training_jobs_status", "ix_training_jobs_is_deleted", "ix_training_jobs_syncing", by_id}
    assert [step for step in steps if by_id in step] == [f"SEARCH training_jobs USING INDEX {by_id} (id=?)"]


async def test_a_secret_is_used_by_unfinished_jobs_that_name_it(store: Store) -> None:
    misleading = JobSpec(("",), SMALL, environment={"secret": "plain", "A": "%", "B": SecretRef("dX1")})
    await filled(store, job(), job(id="tj_2", status=COMPLETED))
    async with store.write() as tx:
        await job_rows.insert_job(tx, job(id="tj_3"), misleading)
    async with store.read() as conn:
        assert await job_rows.uses_secret(conn, "ws", "d_1")
        for unused in ("plain", "%", "d_2", "D_1"):
            assert not await job_rows.uses_secret(conn, "ws", unused)
        assert not await job_rows.uses_secret(conn, "other", "d_1")
    async with store.write() as tx:
        await job_rows.update_job(tx, job(), job(status=COMPLETED))
    async with store.read() as conn:
        assert not await job_rows.uses_secret(conn, "ws", "d_1")


async def test_the_name_of_a_deleted_project_is_free_again(store: Store) -> None:
    await filled(store)
    with pytest.raises(TakenError):
        async with store.write() as tx:
            await project_rows.insert_project(tx, project("tp_3", name="name of tp_1"))
    async with store.write() as tx:
        await project_rows.update_project(tx, project("tp_1", is_deleted=True))
        await project_rows.insert_project(tx, project("tp_3", name="name of tp_1"))
    async with store.read() as conn:
        assert await project_rows.find_project(conn, "ws", "tp_1") is None
        assert await project_rows.find_project(conn, "other", "tp_3") is None
        successor = await project_rows.find_project_called(conn, "ws", "name of tp_1")
        assert successor is not None
        assert successor.id == "tp_3"
        assert [one.id for one in await project_rows.list_projects(conn, "ws")] == ["tp_3", "tp_2"]
        assert await project_rows.count_projects(conn, "ws") == 2
        assert await project_rows.project_names(conn, ["tp_2"]) == {"tp_2": "name of tp_2"}


async def test_the_jobs_of_a_project_are_made_invisible_together(store: Store) -> None:
    ended = job(status=COMPLETED)
    await filled(store, ended, job(id="tj_2", project_id="tp_2"))
    async with store.write() as tx:
        assert await job_rows.unfinished_in_project(tx.conn, "tp_1") == []
        assert await job_rows.unfinished_in_project(tx.conn, "tp_2") == ["tj_2"]
        await job_rows.mark_deleted_in_project(tx, "tp_1")
        assert await job_rows.lock_job(tx, "tj_1") == replace(ended, is_deleted=True, updated_at_ms=tx.now_ms)
    assert await search(store) == ["tj_2"]


async def test_a_secret_that_a_new_job_names_cannot_be_deleted_meanwhile(store: Store) -> None:
    await filled(store)
    async with store.write() as tx:
        for id, workspace_id in (("s_1", "ws"), ("s_2", "other")):
            await secret_rows.insert_secret(tx, SecretRecord(id, workspace_id, id, "sealed", 1, 1))
    order: list[str] = []

    async def delete() -> None:
        async with store.write() as tx:
            await secret_rows.delete_secret(tx, "ws", "s_1")
        order.append("deleted")

    async with store.write() as tx:
        assert await secret_rows.lock_existing(tx, "ws", ["s_1", "s_2", "s_3"]) == {"s_1"}
        deleting = asyncio.create_task(delete())
        await asyncio.sleep(0.05)  # the deletion waits; were it not to, the order would show it
        order.append("created")
    await deleting
    assert order == ["created", "deleted"]


async def test_the_row_of_a_deleted_project_goes_with_its_last_job(store: Store) -> None:
    first = job(is_deleted=True)
    second = job(id="tj_2", is_deleted=True)
    await filled(store, first, second)
    async with store.write() as tx:
        await job_rows.delete_job(tx, first)
        await project_rows.update_project(tx, project("tp_1", is_deleted=True))
    assert "tp_1" in await _project_ids(store)
    async with store.write() as tx:
        await job_rows.delete_job(tx, second)
    assert await _project_ids(store) == ["tp_2", "tp_9"]


async def test_the_backend_is_read_as_it_was_reported(store: Store) -> None:
    async with store.read() as conn:
        assert await backend_rows.find_backend(conn) is None
    row = {"trainer": "t", "backend": "local", "reason": None, "has_sessions": True, "reported_at_ms": 7}
    hosts = '[{"name":"h","millicpu":1,"memory_mib":2,"max_nodes":3,"gpus":{"H100":1},"gpu_memory_mib":{}}]'
    async with store.write() as tx:
        await tx.conn.execute(insert(training_backend).values(id=1, hosts=hosts, **row))
    async with store.read() as conn:
        backend = await backend_rows.find_backend(conn)
    assert backend == BackendRecord("t", "local", None, True, (Host("h", 1, 2, 3, {"H100": 1}),), 7)


async def _project_ids(store: Store) -> list[str]:
    async with store.read() as conn:
        return list((await conn.execute(select(training_projects.c.id).order_by("id"))).scalars())
