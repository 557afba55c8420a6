"""One tenant holds all that it can of a control process; another one's requests, the product's and downloads go on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from control.api.protocol import authentication
from control.app import LIMITS
from control.dependencies import MAX_DOWNLOADS
from control.resources.keys import find_presented_keys
from policy.training.store_keys import store_key
from runtime.http import known_callers
from runtime.object_store import ObjectStore
from tests.control.api.training.test_checkpoints import file as stored_file
from tests.control.api.training.test_checkpoints import path_of, report, synced
from tests.control.plane import TOKEN, ControlPlane, running_plane
from tests.control.training_jobs import running_job
from tests.fakes.front import Caller, connect
from tests.waiting import eventually

CONNECTIONS = 32
SHARE = 18
"""The share of one workspace: three quarters of the three quarters that workspaces have."""
REFUSED = 6
"""Requests of a workspace above its share."""
LARGE = 8 << 20
"""Bytes of a file, more than the kernel takes of an answer that nobody reads."""


@dataclass
class World:
    """A control plane with few connections, and the keys of two tenants."""

    plane: ControlPlane
    stack: AsyncExitStack
    hostile: str
    other: str

    async def caller(self, data: bytes, *, reads: bool = True) -> Caller:
        port = self.plane.client.port
        assert port is not None
        caller = await connect(port, data, reads=reads)
        self.stack.callback(caller.reset)
        return caller

    async def status(self, data: bytes) -> int:
        """The status of the answer to one request, on a connection of its own."""
        caller = await self.caller(data)
        return int((await caller.head()).split(b" ")[1])

    async def has_status(self, status: int, data: bytes) -> bool:
        return await self.status(data) == status

    async def everyone_else_is_served(self) -> None:
        feed = request("/internal/v1/snapshot?since=0", TOKEN)
        for data in (request("/v1/gateway/groups", self.other), feed, request("/readyz", "")):
            assert await self.status(data) == 200


@asynccontextmanager
async def two_tenants(database_url: str, **more: Any) -> AsyncIterator[World]:
    limits = replace(LIMITS, max_connections=CONNECTIONS, lingering_s=0.2)
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(running_plane(database_url, limits=limits, **more))
        other = await plane.another_workspace()
        yield World(plane, stack, plane.key, other["api_key"])


def request(path: str, key: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    return head.encode() + b"\r\n"


def unfinished(key: str) -> bytes:
    """A request with a valid key whose body does not end."""
    head = f"POST /v1/gateway/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


async def first_statuses(callers: Sequence[Caller], count: int) -> list[int]:
    """The statuses of the first answers; nobody else need get one."""
    heads = [asyncio.ensure_future(caller.head()) for caller in callers]
    try:
        return [int((await head).split(b" ")[1]) for head in islice(asyncio.as_completed(heads), count)]
    finally:
        for head in heads:
            head.cancel()
        await asyncio.gather(*heads, return_exceptions=True)


HELD: dict[str, Callable[[str], bytes]] = {
    "silence": lambda _: b"",
    "half a head": lambda key: request("/v1/gateway/groups", key)[:-2],
    "half a body": unfinished,
    "half a login": lambda _: b"POST /console/session HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{",
    "half a report": lambda _: b"POST /internal/v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{",
}
"""Requests with which a tenant holds connections, by its key."""


@pytest.mark.parametrize("request_of", HELD.values(), ids=HELD)
async def test_others_are_served_while_one_tenant_holds_every_connection(
    sqlite_url: str, request_of: Callable[[str], bytes]
) -> None:
    async with two_tenants(sqlite_url) as world:
        for _ in range(3):
            for _ in range(CONNECTIONS * 2):
                await world.caller(request_of(world.hostile))
            await world.everyone_else_is_served()


async def test_tenant_with_its_share_of_connections_is_429_until_its_requests_end(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_tenants(sqlite_url) as world:
        callers = [await world.caller(unfinished(world.hostile)) for _ in range(SHARE + REFUSED)]
        assert await first_statuses(callers, REFUSED) == [429] * REFUSED
        groups = request("/v1/gateway/groups", world.hostile)
        assert await world.status(groups) == 429
        await world.everyone_else_is_served()
        for caller in callers:
            caller.send(b'"metadata": {}}'.ljust(99))
        await eventually(partial(world.has_status, 200, groups))
    assert f"it holds {SHARE} of 24 connections" in caplog.text


async def test_others_are_served_while_one_tenant_s_requests_wait_for_the_look_up_of_their_key(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_tenants(sqlite_url) as world:
        groups = request("/v1/gateway/groups", world.hostile)
        assert await world.status(groups) == 200
        answer = asyncio.Event()

        async def look_up(store: Any, keys: tuple[str, ...]) -> Any:
            if world.hostile in keys:
                await answer.wait()
            return await find_presented_keys(store, keys)

        monkeypatch.setattr(authentication, "find_presented_keys", look_up)
        callers = [await world.caller(groups) for _ in range(SHARE)]
        await eventually(partial(world.has_status, 429, groups))
        for _ in range(CONNECTIONS * 2):
            await world.caller(groups)
        await world.everyone_else_is_served()
        answer.set()
        assert {(await caller.head()).split(b" ")[1] for caller in callers} == {b"200"}


async def test_first_requests_of_a_key_share_its_look_up(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[tuple[str, ...]] = []
    async with two_tenants(sqlite_url) as world:
        answer = asyncio.Event()

        async def look_up(store: Any, keys: tuple[str, ...]) -> Any:
            looked_up.append(keys)
            if len(looked_up) == 1:
                await answer.wait()
            return await find_presented_keys(store, keys)

        monkeypatch.setattr(authentication, "find_presented_keys", look_up)
        monkeypatch.setattr(known_callers, "LOOK_UP_S", 60)
        for _ in range(CONNECTIONS - 4):
            await world.caller(request("/v1/gateway/groups", world.hostile))
        await world.everyone_else_is_served()
        assert looked_up.count((world.hostile,)) == 1
        answer.set()
        await eventually(partial(world.has_status, 200, request("/v1/gateway/groups", world.hostile)))


async def test_tenant_downloads_while_another_one_holds_all_downloads_that_it_can(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        store = (tmp_path / "store").as_uri()
        plane = await stack.enter_async_context(running_plane(sqlite_url, checkpoint_store=store))
        workspace = await plane.another_workspace()
        other = replace(plane, key=workspace["api_key"], workspace_id=workspace["workspace_id"])
        world = World(plane, stack, plane.key, other.key)
        own = await large_file(plane, store, "1")
        others = await large_file(other, store, "2")
        for _ in range(MAX_DOWNLOADS):
            await world.caller(request(own, ""), reads=False)

        await eventually(partial(world.has_status, 429, request(own, "")))
        async with plane.client.get(others) as answer:
            assert (answer.status, len(await answer.read())) == (200, LARGE)
        (await plane.get(own)).refused(429, "TOO_MANY_CALLS")


async def large_file(plane: ControlPlane, store: str, number: str) -> str:
    """The path of a link to a file of a checkpoint of a job of this workspace."""
    job = await running_job(plane, id=f"tj_{number}", project_id=f"tp_{number}")
    content = bytes(LARGE)
    checkpoint = synced("step-1", "v1", stored_file("model.bin", content), job_id=job.record.id)
    ObjectStore(store).write(store_key(checkpoint.location, "model.bin"), LARGE, iter([content]))
    (await report(plane, checkpoint, job_id=job.record.id)).ok()
    [listed] = (await plane.get(f"{job.path}/checkpoints")).ok()["checkpoints"]
    [link] = (await plane.get(f"{job.path}/checkpoints/{listed['checkpoint_id']}/files")).ok()["files"]
    return path_of(link)
