"""Checks what supervisors report to `/internal/v1/deployments/…`: loads, health, lines of calls; on both databases.

Wake hooks: tests/control/api/test_wake_hooks.py.
"""

import asyncio
from io import BytesIO
from typing import Any

import pytest
from sqlalchemy import event, select

from control.edges.redis import load_book
from control.edges.sql import model_rows
from control.edges.sql.store import current_revision
from control.edges.sql.tables import deployments
from control.records import loads
from control.resources.platform import load_reports
from tests.control.plane import TOKEN, Answer, ControlPlane, running_plane
from tests.redis_server import private_redis
from tests.waiting import eventually

Json = dict[str, Any]
ONE = "a" * 16
TWO = "b" * 16
FIRST = "https://93.184.215.14:8000"
SECOND = "https://93.184.215.14:8001"
HEALTH = {"path": "/health", "interval_s": 5, "timeout_s": 2, "healthy_after": 1, "unhealthy_after": 3}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the deadlines: a busy machine may take seconds between a report and the look at it."""
    monkeypatch.setattr(loads, "FIGURES_LAST_MS", 60_000)
    monkeypatch.setattr(load_book, "_DEADLINE_S", 10)


async def create_deployment(plane: ControlPlane, *replicas: str, **settings: Any) -> Json:
    """A new deployment, and the path to it."""
    model = (await plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    item = (await plane.post(f"/v1/models/{model}/deployments", {"name": "first", **settings})).ok()
    path = f"/v1/models/{model}/deployments/{item['id']}"
    if replicas:
        item = (await plane.put(f"{path}/replicas", {"replicas": list(replicas)})).ok()
    return {**item, "path": path}


def load(of: Json, **figures: Any) -> Json:
    idle: Json = {"in_flight": 0, "queued": 0, "parked": 0, "last_request_at_ms": None, "healthy": [], "unhealthy": []}
    return {"model_id": of["model_id"], "deployment_id": of["id"], **idle, **figures}


async def tell(plane: ControlPlane, what: str, body: Any) -> Answer:
    return await plane.post(f"/internal/v1/deployments/{what}", body, key=TOKEN)


async def report(plane: ControlPlane, *loads: Json, machine: str = ONE) -> None:
    assert (await tell(plane, "loads", {"machine": machine, "loads": list(loads)})).ok() == {}


async def shown(plane: ControlPlane, of: Json) -> Json:
    item: Json = (await plane.get(of["path"])).ok()
    assert (await plane.get(of["path"].rpartition("/")[0])).ok()["items"] == [item]
    return item


async def test_reported_figures_are_shown(plane: ControlPlane) -> None:
    deployment = await create_deployment(plane, FIRST, SECOND)
    assert deployment["load"] == {"in_flight": 0, "queued": 0, "parked": 0, "last_request_at": None}
    await report(plane, load(deployment, in_flight=3, queued=2, parked=1, last_request_at_ms=1_767_225_600_000))
    await report(plane, load(deployment, in_flight=10, healthy=[FIRST], unhealthy=[SECOND]), machine=TWO)
    item = await shown(plane, deployment)
    last = "2026-01-01T00:00:00.000Z"
    assert item["load"] == {"in_flight": 13, "queued": 2, "parked": 1, "last_request_at": last}
    assert item["active_replica_count"] == 1


async def test_machines_that_report_at_once_share_the_look_at_the_deployment(plane: ControlPlane) -> None:
    looks: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "FROM deployments" in statement:
            looks.append(statement)

    deployment = await create_deployment(plane, FIRST)
    event.listen(plane.store.engine.sync_engine, "before_cursor_execute", note)
    await report(plane, load(deployment), machine=f"{0:016x}")
    each = len(looks)
    looks[:] = []
    await asyncio.gather(*(report(plane, load(deployment, in_flight=1), machine=f"{n:016x}") for n in range(50)))
    assert each <= len(looks) <= 10 * each
    assert (await shown(plane, deployment))["load"]["in_flight"] == 50


async def test_figures_vanish_when_a_machine_falls_silent(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = await create_deployment(plane, FIRST)
    monkeypatch.setattr(loads, "FIGURES_LAST_MS", 200)
    await report(plane, load(deployment, in_flight=3, healthy=[FIRST]))

    async def is_idle() -> bool:
        return bool((await plane.get(deployment["path"])).ok()["load"]["in_flight"] == 0)

    await eventually(is_idle, every_s=0.05)
    assert (await shown(plane, deployment))["active_replica_count"] == 1


async def test_status_follows_health(plane: ControlPlane) -> None:
    deployment = await create_deployment(plane, FIRST, SECOND, health=HEALTH)
    assert (deployment["status"], deployment["active_replica_count"]) == ("LOADING_MODEL", 0)
    for healthy, unhealthy, status in (
        ([], [FIRST, SECOND], "LOADING_MODEL"),
        ([FIRST], [SECOND], "ACTIVE"),
        ([], [FIRST, SECOND], "UNHEALTHY"),
        ([SECOND], [FIRST], "ACTIVE"),
    ):
        await report(plane, load(deployment, healthy=healthy, unhealthy=unhealthy))
        item = await shown(plane, deployment)
        assert (item["status"], item["active_replica_count"]) == (status, len(healthy))


async def test_deployment_is_unhealthy_only_if_no_machine_sees_a_healthy_replica(plane: ControlPlane) -> None:
    deployment = await create_deployment(plane, FIRST, health=HEALTH)
    await report(plane, load(deployment, healthy=[FIRST]), machine=ONE)
    await report(plane, load(deployment, unhealthy=[FIRST]), machine=TWO)
    assert (await shown(plane, deployment))["status"] == "ACTIVE"
    await report(plane, load(deployment, unhealthy=[FIRST]), machine=ONE)
    assert (await shown(plane, deployment))["status"] == "UNHEALTHY"


async def test_report_that_changes_no_status_writes_nothing(plane: ControlPlane) -> None:
    deployment = await create_deployment(plane, FIRST, health=HEALTH)
    await report(plane, load(deployment, healthy=[FIRST]))
    before = await shown(plane, deployment)
    async with plane.store.read() as conn:
        revision = await current_revision(conn)
    for n in range(5):
        await report(plane, load(deployment, healthy=[FIRST], in_flight=n, last_request_at_ms=n))
    async with plane.store.read() as conn:
        assert await current_revision(conn) == revision
    assert (await shown(plane, deployment))["updated_at"] == before["updated_at"]


async def test_time_of_the_last_request_outlives_the_machines(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_reports, "LAST_REQUEST_INTERVAL_S", 0.05)
    async with running_plane(database_url) as plane:
        deployment = await create_deployment(plane, FIRST)
        await report(plane, load(deployment, last_request_at_ms=1_767_225_600_000))

        async def is_written() -> bool:
            async with plane.store.read() as conn:
                at_ms = (await conn.execute(select(deployments.c.last_request_at_ms))).scalar_one()
            return bool(at_ms == 1_767_225_600_000)

        await eventually(is_written)
        await report(plane, load(deployment, last_request_at_ms=1_000))  # of a machine whose clock is behind
        key = plane.key
    async with running_plane(database_url, prefix="b") as restarted:
        item = (await restarted.get(deployment["path"], key=key)).ok()
        assert item["load"]["last_request_at"] == "2026-01-01T00:00:00.000Z"


async def test_time_of_the_last_request_is_written_when_control_stops(database_url: str) -> None:
    async with running_plane(database_url) as plane:
        deployment = await create_deployment(plane, FIRST)
        await report(plane, load(deployment, last_request_at_ms=1_767_225_600_000))
        key = plane.key
    async with running_plane(database_url, prefix="b") as restarted:
        assert (await restarted.get(deployment["path"], key=key)).ok()["load"]["last_request_at"] is not None


async def test_reports_of_unknown_deployments_are_ignored(plane: ControlPlane) -> None:
    deployment = await create_deployment(plane, FIRST, health=HEALTH)
    other = await create_deployment(plane)
    stray = [
        {**load(deployment), "deployment_id": "dep_x"},
        {**load(deployment, healthy=[FIRST]), "model_id": other["model_id"]},
    ]
    await report(plane, *stray)
    assert (await plane.get(deployment["path"])).ok()["status"] == "LOADING_MODEL"


async def test_two_control_processes_on_one_redis_show_the_same_load(database_url: str) -> None:
    with private_redis() as server:
        async with (
            running_plane(database_url, redis_url=server.url) as one,
            running_plane(database_url, prefix="b", redis_url=server.url) as two,
        ):
            deployment = await create_deployment(one, FIRST)
            await report(one, load(deployment, in_flight=2, parked=1), machine=ONE)
            await report(two, load(deployment, in_flight=3, healthy=[FIRST]), machine=TWO)
            for plane in (one, two):
                item = (await plane.get(deployment["path"], key=one.key)).ok()
                assert (item["load"]["in_flight"], item["load"]["parked"]) == (5, 1)
            server.kill()
            await report(one, load(deployment, in_flight=2), machine=ONE)
            assert (await one.get(deployment["path"])).ok()["load"]["in_flight"] == 2


async def test_a_thousand_deployments_are_reported_at_once(sqlite_plane: ControlPlane) -> None:
    deployment = await create_deployment(sqlite_plane, FIRST, health=HEALTH)
    strays = [{**load(deployment), "deployment_id": f"dep_{n}"} for n in range(999)]
    await report(sqlite_plane, *strays, load(deployment, healthy=[FIRST]))
    assert (await sqlite_plane.get(deployment["path"])).ok()["status"] == "ACTIVE"


async def test_status_follows_health_in_a_full_model_too(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error here would refuse the whole report, with the loads of every tenant in it."""
    deployment = await create_deployment(sqlite_plane, FIRST, health=HEALTH)
    await report(sqlite_plane, load(deployment, healthy=[FIRST]))
    monkeypatch.setattr(model_rows, "MAX_MODEL_BYTES", 10)
    await report(sqlite_plane, load(deployment, unhealthy=[FIRST]))  # UNHEALTHY is a longer word than ACTIVE
    assert (await sqlite_plane.get(deployment["path"])).ok()["status"] == "UNHEALTHY"


GOOD_LOAD: Json = load({"model_id": "m", "id": "d"})
GOOD_LINE: Json = {"deployment_id": "d", "timestamp": "1", "level": "INFO", "message": "x"}


@pytest.mark.parametrize(
    ("what", "body", "problem"),
    [
        ("loads", [], "object"),
        ("loads", None, "object"),
        ("loads", {"loads": []}, "machine"),
        ("loads", {"machine": "A" * 16, "loads": []}, "machine"),
        ("loads", {"machine": 5, "loads": []}, "machine"),
        ("loads", {"machine": ONE}, "loads"),
        ("loads", {"machine": ONE, "loads": {}}, "loads"),
        ("loads", {"machine": ONE, "loads": [GOOD_LOAD] * 1001}, "loads"),
        ("loads", {"machine": ONE, "loads": [GOOD_LOAD, 5]}, "loads.1"),
        *(
            ("loads", {"machine": ONE, "loads": [{**GOOD_LOAD, name: value}]}, name)
            for name, value in (
                ("model_id", None),
                ("model_id", ["m"]),
                ("deployment_id", ""),
                ("deployment_id", "d\0"),
                ("deployment_id", "d" * 129),
                ("in_flight", -1),
                ("queued", 1.5),
                ("parked", True),
                ("parked", 2**31),
                ("parked", 10**30),
                ("last_request_at_ms", "1"),
                ("last_request_at_ms", ""),
                ("last_request_at_ms", False),
                ("last_request_at_ms", 2**53),
                ("last_request_at_ms", 2**63),
                ("healthy", "http://r"),
                ("healthy", [None]),
                ("unhealthy", ["x" * 2049]),
                ("unhealthy", ["x"] * 1001),
            )
        ),
        *(
            ("loads", {"machine": ONE, "loads": [{key: GOOD_LOAD[key] for key in GOOD_LOAD if key != name}]}, name)
            for name in GOOD_LOAD
        ),
        ("wake", {"model_id": "m"}, "deployment_id"),
        ("wake", {"model_id": ["m"], "deployment_id": "d"}, "model_id"),
        ("logs", {}, "lines"),
        ("logs", {"lines": [GOOD_LINE] * 1001}, "lines"),
        ("logs", {"lines": ["x"]}, "lines.0"),
        *(
            ("logs", {"lines": [GOOD_LINE, {**GOOD_LINE, name: value}]}, name)
            for name, value in (
                ("timestamp", 5),
                ("timestamp", "9" * 19),
                ("timestamp", "٣"),
                ("level", "info"),
                ("level", ["INFO"]),
                ("message", None),
                ("message", "x" * 65_537),
                ("message", "\0"),
                ("replica", 5),
                ("request_id", "r" * 129),
            )
        ),
    ],
)
async def test_malformed_report_is_400_and_names_the_fault(
    sqlite_plane: ControlPlane, what: str, body: Any, problem: str
) -> None:
    refused = (await tell(sqlite_plane, what, body)).refused(400, "INVALID_REQUEST")
    assert problem in refused["error"] + str(refused.get("details"))


@pytest.mark.parametrize("what", ["loads", "wake", "logs"])
async def test_reports_need_the_internal_token(sqlite_plane: ControlPlane, what: str) -> None:
    for key in (sqlite_plane.key, "wrong"):
        (await sqlite_plane.post(f"/internal/v1/deployments/{what}", {}, key=key)).refused(401)


@pytest.mark.parametrize("content", [b"", b"{", b'{"machine": "\\ud800"}', b"\xff", b"[" * 100_000, b'{"loads": NaN}'])
async def test_report_that_is_not_json_is_400(sqlite_plane: ControlPlane, content: bytes) -> None:
    for what in ("loads", "wake", "logs"):
        path = f"/internal/v1/deployments/{what}"
        (await sqlite_plane.call("POST", path, key=TOKEN, data=content)).refused(400)


async def test_report_that_is_too_large_is_413(sqlite_plane: ControlPlane) -> None:
    content = BytesIO(b'{"machine": "' + b"a" * (17 * 1024 * 1024) + b'"}')
    (await sqlite_plane.call("POST", "/internal/v1/deployments/loads", key=TOKEN, data=content)).refused(413)


async def test_lines_of_calls_are_in_the_log(plane: ControlPlane) -> None:
    deployment = await create_deployment(plane)
    line = {
        **{"timestamp": "5000000001", "level": "WARNING", "message": "POST /v1/chat/completions 404 in 1.2 ms"},
        **{"replica": FIRST, "request_id": "req_1"},
    }
    stray = {**line, "deployment_id": "dep_unknown"}
    assert (await tell(plane, "logs", {"lines": [{**line, "deployment_id": deployment["id"]}, stray]})).ok() == {}
    assert (await plane.post(f"{deployment['path']}/logs", {})).ok() == {"logs": [line]}


async def test_flood_of_lines_leaves_every_other_transaction_to_others(sqlite_plane: ControlPlane) -> None:
    """SQLite has one writer. Between two batches of lines there is room for a waiting management call."""
    deployment = await create_deployment(sqlite_plane)
    batch = {"lines": [{**GOOD_LINE, "deployment_id": deployment["id"], "message": "x" * 100}] * 1000}
    order = list[str]()

    async def flood() -> None:
        (await tell(sqlite_plane, "logs", batch)).ok()
        order.append("lines")

    floods = [asyncio.create_task(flood()) for _ in range(20)]
    await eventually(lambda: order)
    (await sqlite_plane.post("/v1/models", {"name": "other tenant"})).ok()
    order.append("model")
    await asyncio.gather(*floods)
    assert order.index("model") < 12, order
