"""Wake hooks on a real hook server, with several machines and control processes, on both databases."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from sqlalchemy import select, update

from control.edges.sql.store import Store
from control.edges.sql.tables import deployments
from control.records.models import DeploymentRecord
from control.resources.platform import wake_sender as wake_sender
from control.resources.platform.wake_sender import WakeSender
from control.resources.platform.wakes import NoClaim, WakeClaim, WakeRequest, claim_wake, finish_wake
from tests.control.api.description.deliveries import check_delivery
from tests.control.api.test_load_reports import Json, create_deployment, load, report, tell
from tests.control.plane import METRICS_TOKEN, ControlPlane, running_plane
from tests.redis_server import private_redis
from tests.waiting import eventually

HERE = {"egress_allow": "127.0.0.0/8"}
MACHINES = tuple(f"{n:016x}" for n in range(3))
SECRET = "the-launchers-secret"


@dataclass
class Hook:
    """A launcher's hook. Answers `status`, after `gate` is set. Records the bodies."""

    status: int = 202
    headers: Json = field(default_factory=dict)
    bodies: list[Json] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    earlier_pause_ms: int = 0
    """The pause after the answer before."""

    async def answer(self, request: web.Request) -> web.Response:
        assert request.path == f"/wake/{SECRET}"
        assert request.headers["Content-Type"] == "application/json"
        self.bodies.append(json.loads(await request.read()))
        check_delivery("wakeDeployment", self.bodies[-1])
        await self.gate.wait()
        return web.Response(status=self.status, headers=self.headers)


@asynccontextmanager
async def listening(status: int = 202, *, hangs: bool = False, headers: Json | None = None) -> AsyncIterator[Hook]:
    hook = Hook(status, headers or {})
    if not hangs:
        hook.gate.set()
    app = web.Application()
    app.router.add_post("/{rest:.*}", hook.answer)
    async with TestServer(app) as server:
        hook.url = f"http://127.0.0.1:{server.port}/wake/{SECRET}"
        yield hook
        hook.gate.set()


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(database_url, **HERE) as control_plane:
        yield control_plane


@pytest.fixture
async def sqlite_plane(sqlite_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(sqlite_url, **HERE) as control_plane:
        yield control_plane


async def sleeping(plane: ControlPlane, hook: Hook) -> Json:
    """A deployment that is scaled to zero, with this hook."""
    deployment = await create_deployment(plane, wake_url=hook.url)
    return {**deployment, **(await plane.put(f"{deployment['path']}/replicas", {"replicas": []})).ok()}


async def row(store: Store, of: Json) -> Any:
    async with store.read() as conn:
        return (await conn.execute(select(deployments).where(deployments.c.id == of["id"]))).one()


async def settled(store: Store, of: Json, count: int, hook: Hook) -> Any:
    """The row after the hook's answer number `count` was recorded."""
    await eventually(lambda: len(hook.bodies) >= count, lambda: f"{hook.bodies}")

    async def found() -> Any:
        record = await row(store, of)
        return record if record.wake_pause_ms not in (0, hook.earlier_pause_ms) else None

    record = await eventually(found)
    hook.earlier_pause_ms = record.wake_pause_ms
    return record


async def pass_pause(store: Store, of: Json) -> None:
    """Let the time of the next call come."""
    async with store.write() as tx:
        values = {"wake_next_ms": tx.now_ms - 1}
        await tx.conn.execute(update(deployments).where(deployments.c.id == of["id"]).values(**values))


async def quiet(hook: Hook, count: int) -> None:
    """Check that the hook receives no further request."""
    await asyncio.sleep(0.3)
    assert len(hook.bodies) == count, hook.bodies


async def test_many_parked_calls_of_many_machines_and_processes_make_one_post(database_url: str) -> None:
    with private_redis() as server:
        more = {**HERE, "redis_url": server.url}
        async with (
            listening(hangs=True) as hook,
            running_plane(database_url, **more) as one,
            running_plane(database_url, prefix="b", **more) as two,
        ):
            deployment = await sleeping(one, hook)
            planes = [one, two]

            async def parked(calls: int) -> None:
                for n, machine in enumerate(MACHINES):
                    for plane in (planes[n % 2], planes[(n + 1) % 2]):
                        await report(plane, load(deployment, parked=calls), machine=machine)

            await asyncio.gather(*(parked(calls) for calls in (1, 20, 66, 66)))
            await eventually(lambda: hook.bodies)
            assert (
                hook.bodies[0].items()
                >= {"model_id": deployment["model_id"], "deployment_id": deployment["id"]}.items()
            )
            assert (hook.bodies[0]["reason"], set(hook.bodies[0])) == (
                "request",
                {"model_id", "deployment_id", "reason", "parked"},
            )
            assert 1 <= hook.bodies[0]["parked"] <= 200
            hook.gate.set()
            await eventually(lambda: _status(one, deployment, "WAKING_UP"))
            await parked(66)
            await quiet(hook, 1)


async def _status(plane: ControlPlane, of: Json, status: str) -> bool:
    return bool((await plane.get(of["path"])).ok()["status"] == status)


async def test_hook_is_asked_again_while_calls_stay_parked(plane: ControlPlane) -> None:
    async with listening() as hook:
        deployment = await sleeping(plane, hook)
        for count, pause_ms in enumerate((10_000, 20_000, 40_000, 60_000), start=1):
            await report(plane, load(deployment, parked=5))
            record = await settled(plane.store, deployment, count, hook)
            assert (record.status, record.wake_pause_ms) == ("WAKING_UP", pause_ms)
            await report(plane, load(deployment, parked=5))
            await quiet(hook, count)
            await pass_pause(plane.store, deployment)
            await report(plane, load(deployment, parked=0))
            await quiet(hook, count)


@pytest.mark.parametrize("status", [500, 404, 301, 400])
async def test_hook_that_fails_is_asked_again_soon(plane: ControlPlane, status: int) -> None:
    async with listening(status, headers={"Location": "/elsewhere"}) as hook:
        deployment = await sleeping(plane, hook)
        for count, pause_ms in enumerate((1_000, 2_000, 4_000), start=1):
            await report(plane, load(deployment, parked=5))
            record = await settled(plane.store, deployment, count, hook)
            assert (record.status, abs(record.wake_pause_ms)) == ("SCALED_TO_ZERO", pause_ms)
            await report(plane, load(deployment, parked=5))
            await quiet(hook, count)
            await pass_pause(plane.store, deployment)
        hook.status = 200
        await report(plane, load(deployment, parked=5))
        record = await settled(plane.store, deployment, 4, hook)
        assert (record.status, record.wake_pause_ms) == ("WAKING_UP", 10_000)


async def test_first_retry_comes_after_a_second_by_itself(sqlite_plane: ControlPlane) -> None:
    async with listening(500) as hook:
        deployment = await sleeping(sqlite_plane, hook)

        async def reporting() -> bool:
            await report(sqlite_plane, load(deployment, parked=5))
            return len(hook.bodies) == 2

        await eventually(reporting, every_s=0.1)


async def test_hook_that_hangs_delays_neither_reports_nor_other_hooks(sqlite_plane: ControlPlane) -> None:
    async with listening(hangs=True) as hanging, listening() as hook:
        stuck = await sleeping(sqlite_plane, hanging)
        deployment = await sleeping(sqlite_plane, hook)
        async with asyncio.timeout(8):  # less than the client's timeout
            await report(sqlite_plane, load(stuck, parked=1), load(deployment, parked=1))
            await settled(sqlite_plane.store, deployment, 1, hook)
        assert len(hanging.bodies) == 1


async def test_one_workspace_with_many_hanging_hooks_leaves_room_for_others(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_sender, "AT_ONCE_PER_WORKSPACE", 3)
    async with listening(hangs=True) as hanging, listening() as hook:
        stuck = [await sleeping(sqlite_plane, hanging) for _ in range(5)]
        await report(sqlite_plane, *(load(one, parked=1) for one in stuck))
        await eventually(lambda: len(hanging.bodies) == 3)
        refused = await tell(sqlite_plane, "wake", {"model_id": stuck[4]["model_id"], "deployment_id": stuck[4]["id"]})
        refused.refused(503, "TOO_MANY_WAKE_HOOKS")
        other = await sqlite_plane.another_workspace()
        theirs = ControlPlane(sqlite_plane.client, sqlite_plane.store, other["api_key"], other["workspace_id"])
        deployment = await sleeping(theirs, hook)
        await report(sqlite_plane, load(deployment, parked=1))
        await settled(sqlite_plane.store, deployment, 1, hook)
        hanging.gate.set()

        async def rest() -> bool:
            await report(sqlite_plane, *(load(one, parked=1) for one in stuck))
            return len(hanging.bodies) == 5

        await eventually(rest, every_s=0.05)


async def test_need_is_asked_again_when_the_one_who_asked_died(plane: ControlPlane) -> None:
    async with listening() as hook:
        deployment = await sleeping(plane, hook)
        record = DeploymentRecord(deployment["id"], deployment["model_id"], "", "SCALED_TO_ZERO", (), 1, 1, hook.url)
        request = WakeRequest(plane.workspace_id, record, "request", 1)
        assert isinstance(await claim_wake(plane.store, request), WakeClaim)  # and then its process was killed
        assert await claim_wake(plane.store, request) is NoClaim.NOT_YET
        await report(plane, load(deployment, parked=1))
        assert hook.bodies == []
        await pass_pause(plane.store, deployment)  # the claim's lease ends

        async def reporting() -> int:
            await report(plane, load(deployment, parked=1))
            return len(hook.bodies)

        await eventually(reporting, every_s=0.05)


async def test_two_processes_cannot_both_have_the_turn(database_url: str) -> None:
    async with (
        listening() as hook,
        running_plane(database_url, **HERE) as one,
        running_plane(database_url, prefix="b", **HERE) as two,
    ):
        deployment = await sleeping(one, hook)
        record = DeploymentRecord(deployment["id"], deployment["model_id"], "", "SCALED_TO_ZERO", (), 1, 1, hook.url)
        request = WakeRequest(one.workspace_id, record, "request", 1)
        claims = await asyncio.gather(*(claim_wake(plane.store, request) for plane in (one, two) * 10))
        assert len([claim for claim in claims if isinstance(claim, WakeClaim)]) == 1


@pytest.mark.parametrize("change", ["replicas", "wake_url", "activate"])
async def test_change_during_the_call_is_not_undone_by_its_answer(sqlite_plane: ControlPlane, change: str) -> None:
    plane = sqlite_plane
    async with listening(hangs=True) as hook:
        deployment = await sleeping(plane, hook)
        await report(plane, load(deployment, parked=1))
        await eventually(lambda: hook.bodies)
        if change == "replicas":
            (await plane.put(f"{deployment['path']}/replicas", {"replicas": ["http://127.0.0.1:1"]})).ok()
        elif change == "wake_url":
            (await plane.patch(deployment["path"], {"wake_url": hook.url})).ok()
        else:
            (await plane.post(f"{deployment['path']}/activate")).ok()
        before = await row(plane.store, deployment)
        assert before.wake_next_ms == 0
        hook.gate.set()
        await asyncio.sleep(0.3)
        assert await row(plane.store, deployment) == before


async def test_deployment_without_need_is_not_woken(plane: ControlPlane) -> None:
    async with listening() as hook:
        deployment = await create_deployment(plane, "http://127.0.0.1:1", wake_url=hook.url)
        await report(plane, load(deployment, parked=3))
        (await plane.put(f"{deployment['path']}/replicas", {"replicas": []})).ok()
        await report(plane, load(deployment, parked=0, queued=3, in_flight=3))
        (await plane.post(f"{deployment['path']}/deactivate")).ok()
        await report(plane, load(deployment, parked=3))
        await quiet(hook, 0)


async def test_new_deployment_is_woken_while_deploying(plane: ControlPlane) -> None:
    async with listening() as hook:
        deployment = await create_deployment(plane, wake_url=hook.url)
        await report(plane, load(deployment, parked=3))
        assert (await settled(plane.store, deployment, 1, hook)).status == "WAKING_UP"
        assert hook.bodies[0]["parked"] == 3


async def wake(plane: ControlPlane, of: Json) -> None:
    assert (await tell(plane, "wake", {"model_id": of["model_id"], "deployment_id": of["id"]})).ok() == {}


async def test_wake_without_a_call_asks_once(plane: ControlPlane) -> None:
    async with listening() as hook:
        deployment = await sleeping(plane, hook)
        await asyncio.gather(*(wake(plane, deployment) for _ in range(20)))
        assert (await settled(plane.store, deployment, 1, hook)).status == "WAKING_UP"
        assert hook.bodies[0]["reason"] == "wake"
        assert hook.bodies[0]["parked"] == 0
        await wake(plane, deployment)
        await quiet(hook, 1)


async def test_wake_without_a_call_is_tried_again_after_a_failure(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_sender, "TRY_AGAIN_S", 0.05)
    async with listening(500) as hook:
        deployment = await sleeping(sqlite_plane, hook)
        await wake(sqlite_plane, deployment)
        await eventually(lambda: hook.bodies)
        hook.status = 200
        await eventually(lambda: _status(sqlite_plane, deployment, "WAKING_UP"), every_s=0.05)
        await quiet(hook, 2)


async def test_wake_of_what_needs_none_is_accepted_and_of_what_is_not_there_404(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    await wake(plane, await create_deployment(plane))
    await wake(plane, await create_deployment(plane, "http://127.0.0.1:1"))
    deployment = await create_deployment(plane)
    other = await create_deployment(plane)
    (await tell(plane, "wake", {"model_id": other["model_id"], "deployment_id": deployment["id"]})).refused(404)
    (await tell(plane, "wake", {"model_id": deployment["model_id"], "deployment_id": "dep_x"})).refused(404)


@pytest.mark.parametrize("status", [200, 500])
async def test_log_names_the_deployment_and_never_the_hooks_path(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    async with listening(status) as hook:
        deployment = await sleeping(sqlite_plane, hook)
        with caplog.at_level(logging.INFO):
            await report(sqlite_plane, load(deployment, parked=1))
            await eventually(lambda: any("Wake hook" in record.message for record in caplog.records))
    (line,) = [record for record in caplog.records if "Wake hook" in record.message]
    assert deployment["id"] in line.message
    assert "127.0.0.1" in line.message
    assert (status == 200) == (line.levelno == logging.INFO)
    ours = [record for record in caplog.records if record.name.startswith("control")]
    assert not any(SECRET in str(record.__dict__) for record in ours)


async def test_outcomes_are_counted(sqlite_plane: ControlPlane) -> None:
    async with listening(500) as hook:
        deployment = await sleeping(sqlite_plane, hook)
        await report(sqlite_plane, load(deployment, parked=1))
        await settled(sqlite_plane.store, deployment, 1, hook)

        async def counted() -> bool:
            metrics = (await sqlite_plane.get("/metrics", key=METRICS_TOKEN)).ok()
            return 'tollgate_wake_hooks_total{outcome="failed"} 1.0' in metrics

        await eventually(counted, every_s=0.05)


async def test_answer_of_a_deleted_deployment_has_no_effect(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    async with listening(hangs=True) as hook:
        deployment = await sleeping(plane, hook)
        await report(plane, load(deployment, parked=1))
        await eventually(lambda: hook.bodies)
        (await plane.delete(deployment["path"])).ok()
        assert (
            await finish_wake(plane.store, WakeClaim(deployment["model_id"], deployment["id"], hook.url, 1), True) == 0
        )
        hook.gate.set()


async def test_senders_close_in_the_middle_of_a_call(store: Store) -> None:
    """Closing waits for no hook."""

    class Never:
        async def post(self, url: str, body: bytes) -> str:
            await asyncio.Event().wait()
            return ""

    sender = WakeSender(store, Never(), lambda outcome: None)
    record = DeploymentRecord("dep", "mdl", "", "SCALED_TO_ZERO", (), 1, 1, "https://a.example.com/")
    assert sender.ask(WakeRequest("ws", record, "request", 1))
    assert sender.ask(WakeRequest("ws", record, "request", 1))
    async with asyncio.timeout(10):
        await sender.close()
