"""One workspace fills a worker, and the other is still served, over real sockets: bodies, calls, parking, answers."""

import asyncio
import json

import pytest

from policy.credentials import KeyKind, digest_of
from policy.deployments import Deployment
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.limit import SlugLimits
from policy.snapshot import KeyRow, WorkspaceRow
from proxy.capacity.worker_capacity import CapacityLimits
from tests import upstream as script
from tests.contracts.http.test_path import JSON, Wire, request, wired
from tests.fakes.directory import KEY, SLUG, platform
from tests.fakes.front import Caller
from tests.fakes.path import PathRig
from tests.waiting import eventually

BOTH_LOOPS = True
OTHER_KEY = "tg_othertenant1.0123456789abcdefghijklmnopqrst"
COLLEAGUES_KEY = "tg_colleague0001.0123456789abcdefghijklmnopqrst"
OTHER_SLUG = "other/chat"
DECLARED_BYTES = 90_000_000


def tenants(limits: CapacityLimits | None = None) -> PathRig:
    """Workspace `w1` with two groups, and `w2` with one; a key in each, and a slug in each workspace."""
    rig = PathRig(capacity=limits or CapacityLimits(), max_body_bytes=100_000_000)
    directory = rig.directory
    own = (SlugLimits(SLUG, (), ()),)
    directory.groups["colleagues"] = Group("colleagues", "w1", None, "entity-3", Enforcement.INDEPENDENT, own)
    directory.add_key(COLLEAGUES_KEY, group_id="colleagues")
    directory.workspaces["w2"] = WorkspaceRow("w2", "active", "basic", True)
    directory.secrets["s2"] = "sk-other"
    directory.add_slug(OTHER_SLUG, Target("VENDOR_B", secret_id="s2", target_model="m"), "w2")
    models = (SlugLimits(OTHER_SLUG, (), ()),)
    directory.groups["g2"] = Group("g2", "w2", None, "entity-2", Enforcement.INDEPENDENT, models)
    digest = digest_of(OTHER_KEY)
    directory.keys[digest] = KeyRow(digest, OTHER_KEY.partition(".")[0], KeyKind.FEDERATED, "w2", "g2")
    return rig


def head(key: str, length: int) -> bytes:
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: us", f"Authorization: Bearer {key}")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


async def calls(wire: Wire, data: bytes, count: int) -> list[Caller]:
    callers = [await wire.front.caller() for _ in range(count)]
    for caller in callers:
        caller.send(data)
    return callers


async def status_for(wire: Wire, key: str, slug: str) -> int:
    body = json.dumps({"model": slug, "messages": [{"role": "user", "content": "hi"}]}).encode()
    caller = await wire.front.caller()
    caller.send(head(key, len(body)) + body)
    status, _, _ = await caller.answer()
    caller.disconnect()
    return status


@pytest.mark.parametrize("count", [12, 200])
async def test_declared_but_unsent_bodies_take_no_memory_from_other_workspaces(count: int) -> None:
    rig = tenants()
    async with wired(rig) as wire:
        await calls(wire, head(KEY, DECLARED_BYTES) + b"{", count)
        await eventually(lambda: rig.pipeline._capacity.in_flight == count)
        assert await status_for(wire, OTHER_KEY, OTHER_SLUG) == 200
        await eventually(lambda: rig.pipeline._capacity.held_bytes == count)
    await eventually(lambda: rig.pipeline._capacity.in_flight == 0)
    assert rig.pipeline._capacity.held_bytes == 0


async def test_unfinished_bodies_leave_memory_to_other_workspaces() -> None:
    rig = tenants(CapacityLimits(max_held_bytes=4_000_000))
    async with wired(rig) as wire:
        await calls(wire, head(KEY, 1_000_000) + b"x" * 900_000, 8)
        await eventually(lambda: rig.meters.calls)
        assert {call.status for call in rig.meters.calls} == {529}
        assert rig.pipeline._capacity.held_bytes <= 3_000_000
        assert await status_for(wire, OTHER_KEY, OTHER_SLUG) == 200
        assert await status_for(wire, COLLEAGUES_KEY, SLUG) == 200


async def test_unfinished_calls_leave_capacity_to_other_workspaces() -> None:
    rig = tenants(CapacityLimits(max_in_flight=100))
    async with wired(rig) as wire:
        await calls(wire, head(KEY, 1000) + b"{", 120)
        await eventually(lambda: len(rig.meters.calls) + rig.pipeline._capacity.in_flight == 120)
        assert {call.status for call in rig.meters.calls} == {529}
        assert rig.pipeline._capacity.in_flight <= 75
        for _ in range(3):
            assert await status_for(wire, OTHER_KEY, OTHER_SLUG) == 200
            assert await status_for(wire, COLLEAGUES_KEY, SLUG) == 200


async def test_shed_call_gets_a_retry_after() -> None:
    rig = tenants(CapacityLimits(max_in_flight=4))
    async with wired(rig) as wire:
        callers = await calls(wire, head(KEY, 1000) + b"{", 4)
        answered = await asyncio.wait(
            [asyncio.ensure_future(caller.answer()) for caller in callers], return_when=asyncio.FIRST_COMPLETED
        )
        status, fields, body = answered[0].pop().result()
        assert (status, json.loads(body)["error_code"]) == (529, "CAPACITY_EXHAUSTED")
        assert b"\r\nretry-after: 1\r\n" in fields
        for pending in answered[1]:
            pending.cancel()


async def test_parked_calls_leave_parking_to_other_workspaces() -> None:
    rig = tenants(CapacityLimits(max_parked=20))
    async with wired(rig) as wire:
        rig.directory.add_slug(SLUG, platform())
        rig.directory.deploy("WAKING_UP")
        rig.directory.add_model("m2", Deployment("d2", "WAKING_UP"), workspace_id="w2")
        rig.directory.add_slug(OTHER_SLUG, Target("PLATFORM", model_id="m2"), "w2")
        await calls(wire, request(), 25)
        await eventually(lambda: len(rig.meters.calls) + rig.pipeline._capacity.parked == 25)
        assert {call.status for call in rig.meters.calls} == {529}
        parked = rig.pipeline._capacity.parked
        other = asyncio.ensure_future(status_for(wire, OTHER_KEY, OTHER_SLUG))
        await eventually(lambda: rig.pipeline._capacity.parked == parked + 1)
        awake = Deployment("d2", "ACTIVE", (wire.upstream.url,))
        rig.directory.add_model("m2", awake, workspace_id="w2")
        assert await other == 200


async def test_buffered_answers_leave_memory_to_other_workspaces() -> None:
    rig = tenants(CapacityLimits(max_held_bytes=1_000_000))
    answer_part = script.head(200, JSON | {"content-length": "600000"})
    async with wired(rig) as wire:
        wire.upstream.plan(*[script.silent(answer_part + b" " * 300_000)] * 4)
        await calls(wire, request(), 4)
        await eventually(lambda: len(rig.meters.calls) >= 2)
        assert {call.status for call in rig.meters.calls} == {529}
        assert rig.pipeline._capacity.held_bytes <= 750_000
        assert await status_for(wire, OTHER_KEY, OTHER_SLUG) == 200
