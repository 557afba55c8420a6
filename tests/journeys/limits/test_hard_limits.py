"""HARD spend limits on the whole product: lowered caps, every refusal, and nothing above the amount whatever dies."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.hard_chaos.callers import CAP_HEADER
from tests.journeys.hard_chaos.machines import SecondMachine, flush
from tests.journeys.hard_chaos.orders import Order
from tests.journeys.hard_chaos.vendor import CHAT, MESSAGES, RESPONSES, OddVendor
from tests.journeys.limits.hard_scene import (
    LOSSES,
    WHOLE,
    HardScene,
    asked_by_sdk,
    capped,
    kill_redis_and_its_data,
    open_call,
    refused_while_open,
    scene_of,
)
from tests.journeys.product import Product, kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually


@pytest.fixture
def vendor() -> OddVendor:
    return OddVendor()


@pytest.fixture
async def upstream(vendor: OddVendor) -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=vendor.answer, port=own_port()) as upstream:
        yield upstream
    assert vendor.faults == []


# --- lowered caps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "stop", "stream"), capped(0))
async def test_cap_is_lowered_to_what_is_left_and_ends_the_answer(
    stage: Stage, path: str, stop: str, stream: bool
) -> None:
    scene = await scene_of(stage, "0.2")
    text = Order(input=10, output=WHOLE).text()
    reason, headers = await asked_by_sdk(scene, path, text, stream=stream)
    assert reason == stop
    assert headers[CAP_HEADER] == "199", "0.2 less a millionth for each byte of the body"
    assert await scene.settled() == Decimal("0.19901")
    status, answer, headers = await scene.call(Order(output=1), path, cap=4_000)
    assert (status, answer["error_code"]) == (429, "SPEND_LIMIT_EXCEEDED"), answer
    assert all(word in str(answer) for word in ("DAY", "0.2", "EUR"))
    assert 1 <= int(headers["Retry-After"]) <= 86_400


async def test_call_without_a_cap_gets_one_and_a_call_with_room_keeps_its_own(stage: Stage, vendor: OddVendor) -> None:
    scene = await scene_of(stage, "10", max_output_tokens=500)
    for path in (CHAT, RESPONSES):
        status, answer, headers = await scene.call(Order(input=5, output=WHOLE), path)
        assert status == 200, answer
        assert CAP_HEADER not in headers
        usage = answer["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 500
    status, answer, headers = await scene.call(Order(input=5, output=WHOLE), cap=300)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 300)
    assert CAP_HEADER not in headers
    assert await scene.settled() == Decimal("1.300015")


# --- refusals --------------------------------------------------------------------------------------------------------

PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SEARCH = {"type": "web_search"}


@pytest.mark.parametrize(
    ("path", "body", "missing"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [PICTURE]}]}, "max_input_tokens"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "max_input_tokens"),
        (RESPONSES, {"tools": [SEARCH]}, "max_tool_calls"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "max_uses"),
        ("/v1/images/generations", {"prompt": "A gate."}, "max_output_tokens"),
    ],
)
async def test_call_without_a_bound_is_402_that_names_what_is_missing(
    stage: Stage, path: str, body: Any, missing: str
) -> None:
    scene = await scene_of(stage, "10")
    status, answer, _ = await scene.call(Order(), path, **body)
    assert (status, answer["error_code"]) == (402, "UNPRICED"), answer
    assert missing in answer["error"]
    assert await scene.settled() == 0


async def test_call_that_an_empty_window_could_not_hold_is_400(stage: Stage) -> None:
    scene = await scene_of(stage, "0.02")
    status, answer, _ = await scene.call(Order(), messages=[{"role": "user", "content": "w" * 30_000}])
    assert status == 400, answer
    assert all(word in answer["error"] for word in ("0.02", "DAY")), answer
    assert stage.upstream.received == [] or await scene.settled() == 0


async def test_output_beyond_the_cap_is_billed_as_reported_and_counted_as_an_overrun(stage: Stage) -> None:
    scene = await scene_of(stage, "1")
    status, _, _ = await scene.call(Order(input=10, output=2_000, ending="exceeds"), cap=100)
    assert status == 200

    async def is_billed() -> bool:
        return await scene.billed() == Decimal("2.00001") and await scene.spend() == (Decimal("2.00001"), Decimal(0))

    await stage.until(is_billed, "it is billed as reported")
    assert (await scene.call(Order(output=1), cap=16))[0] == 429

    async def is_counted() -> bool:
        async with stage.session.get(stage.product.admin + "/metrics") as answer:
            return 'tollgate_spend_overrun_total{reason="provider"} 1' in await answer.text()

    await stage.until(is_counted, "the overrun is counted")
    assert scene.slug(CHAT) in stage.product.log.read_text().rpartition("reserved")[0][-2_000:], (
        "the log names the slug"
    )


# --- what dies -------------------------------------------------------------------------------------------------------


async def test_hard_calls_are_503_while_redis_is_away_and_soft_ones_go_on(killable_stage: Stage) -> None:
    stage = killable_stage
    scene = await scene_of(stage, "10")
    _, soft = await scene.group("soft", Decimal("10"), "SOFT")
    await scene.is_admitted(soft)
    os.kill(stage.product.up.pid, signal.SIGSTOP)  # it would start Redis again
    try:
        for pid in stage.product.processes("redis-server"):
            kill(pid)
        status, answer, _ = await scene.call(Order(output=1), cap=16)
        assert (status, answer["error_code"]) == (503, "LIMITS_UNAVAILABLE"), answer
        assert (await scene.call(Order(output=1), key=soft, cap=16))[0] == 200
    finally:
        os.kill(stage.product.up.pid, signal.SIGCONT)
    await scene.is_admitted()
    assert (await scene.call(Order(output=1), cap=16))[0] == 200
    await scene.ready()
    await scene.settled()


@pytest.mark.parametrize("loss", LOSSES)
async def test_open_call_keeps_its_reservation_when_redis_is_lost(killable_stage: Stage, loss: str) -> None:
    stage = killable_stage
    scene = await scene_of(stage, "0.2")
    async with open_call(scene) as task:
        await refused_while_open(scene)
        if "emptied" in loss:
            await flush(stage.product)
        if "killed" in loss:
            for pid in stage.product.processes("redis-server"):
                kill(pid)
        for _ in range(3):
            await refused_while_open(scene)
        await scene.ready()
        await refused_while_open(scene)
    status, _, headers = task.result()
    assert (status, headers[CAP_HEADER]) == (200, "199")
    assert await scene.settled() == Decimal("0.19901")


@pytest.mark.parametrize("victim", ["proxy.worker", "-m proxy --"])
async def test_call_of_a_dead_process_stays_reserved_until_it_is_billed(killable_stage: Stage, victim: str) -> None:
    """The journal is all that knows of it when Redis is emptied meanwhile."""
    stage = killable_stage
    scene = await scene_of(stage, "0.2")
    async with open_call(scene):
        for pid in stage.product.processes(victim):
            kill(pid)
        await kill_redis_and_its_data(stage)
        await scene.ready()
    amount = await scene.settled()
    assert amount <= Decimal("0.2")
    await scene.is_admitted()
    status, _, headers = await scene.call(Order(input=10, output=WHOLE), cap=4_000)
    assert (status, headers[CAP_HEADER]) == (200, str(int((Decimal("0.2") - amount) * 1_000 - Decimal("0.2")))), amount
    await scene.settled()


# --- a machine that is away ------------------------------------------------------------------------------------------


@pytest.fixture
def second(killable_stage: Stage, tmp_path: Path) -> Iterator[SecondMachine]:
    machine = SecondMachine(killable_stage.product, tmp_path / "second", 1)
    machine.start()
    try:
        yield machine
        if machine.is_running:  # one that does not say goodbye would be waited for in the next journey
            assert machine.stop() == 0, machine.log_tail()
    finally:
        machine.kill()


async def serves(scene: HardScene, machine: Product) -> None:
    async def look() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            return (await scene.call(Order(ending="fails"), front=machine.proxy, cap=16))[0] not in (403, 404, 503)
        return False

    await scene.stage.until(look, "the second machine decides on HARD calls")


@contextlib.contextmanager
def machine_stopped(machine: Product) -> Iterator[None]:
    pids = machine.processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def waiting_machines(scene: HardScene) -> list[Any]:
    """The machines for which the scene's tree waits, as `tollgate spend machines` lists them. Others may wait, too."""
    listed = scene.stage.product.command("spend", "machines")
    machines = listed if isinstance(listed, list) else [listed]
    return [machine for machine in machines if scene.group_id in machine["waiting_trees"]]


async def until_named(stage: Stage, look: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a command names the machine. Each look starts a process, so there are few."""
    await eventually(look, lambda: f"the machine is named\n{stage.product.log_tail()}", every_s=1)


async def test_calls_wait_for_a_machine_that_is_away_until_it_is_back(
    killable_stage: Stage, second: SecondMachine
) -> None:
    stage = killable_stage
    scene = await scene_of(stage, "0.2")
    await serves(scene, second)
    async with open_call(scene, second.proxy) as task:
        with machine_stopped(second):
            await flush(stage.product)

            async def is_named() -> bool:
                assert (await scene.call(Order(output=1), cap=16))[0] in (429, 503)
                return len(await asyncio.to_thread(waiting_machines, scene)) == 1

            await until_named(stage, is_named)
            status, answer, _ = await scene.call(Order(output=1), cap=16)
            assert (status, answer["error_code"]) == (503, "LIMITS_UNAVAILABLE"), answer
        await refused_while_open(scene)
        await refused_while_open(scene, second.proxy)
    assert task.result()[0] == 200
    assert await scene.settled() == Decimal("0.19901")


async def test_released_machine_is_waited_for_no_more(killable_stage: Stage, second: SecondMachine) -> None:
    stage = killable_stage
    scene = await scene_of(stage, "0.2")
    await serves(scene, second)
    second.kill()
    await flush(stage.product)

    async def is_named() -> bool:
        return len(await asyncio.to_thread(waiting_machines, scene)) == 1

    await until_named(stage, is_named)
    assert (await scene.call(Order(output=1), cap=16))[0] == 503
    (machine,) = waiting_machines(scene)
    name = ("--machine", machine["machine"])
    data = ("--data", str(stage.product.data))
    refusal = stage.product.run("spend", "release", *name, *data)
    assert refusal.returncode != 0
    assert "--force" in refusal.stderr
    assert stage.product.run("spend", "release", *name, "--force", *data).returncode == 0
    await scene.is_admitted()
    assert (await scene.call(Order(input=10, output=WHOLE), cap=100))[0] == 200
    await scene.settled()
