"""HARD spend limits on the whole product: lowered caps, every refusal, and nothing above the amount whatever dies."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.hard_chaos.callers import CAP_HEADER
from tests.journeys.hard_chaos.machines import SecondMachine, flush
from tests.journeys.hard_chaos.orders import Order
from tests.journeys.hard_chaos.vendor import CHAT, MESSAGES, RESPONSES, OddVendor
from tests.journeys.product import Product, kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream

DIALECTS = {CHAT: "CHAT_COMPLETIONS", MESSAGES: "MESSAGES", RESPONSES: "RESPONSES"}
PRICE = {"currency": "EUR", "input_per_million": "1", "output_per_million": "1000", "valid_from": "1970-01-01"}
"""A token of input costs 0.000001, one of output 0.001."""
WHOLE = 9_999_999
"""More output than any cap allows: the vendor gives exactly the cap."""


@pytest.fixture
def vendor() -> OddVendor:
    return OddVendor()


@pytest.fixture
async def upstream(vendor: OddVendor) -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=vendor.answer, port=own_port()) as upstream:
        yield upstream
    assert vendor.faults == []


@dataclass
class HardScene:
    """A stage with a slug for each dialect, and a group with a HARD limit a day."""

    stage: Stage
    amount: Decimal
    group_id: str = ""
    key: str = ""

    def slug(self, path: str) -> str:
        return f"{self.stage.slug}-{DIALECTS[path].lower()}"

    async def prepare(self, **price: Any) -> None:
        operator = self.stage.operator
        model = await operator.model(self.stage.name, self.stage.upstream.url)
        for path, dialect in DIALECTS.items():
            target = {"provider": "PLATFORM", "model_id": model, "target_model": "odd", "dialects": [dialect]}
            await operator.call("POST", "/v1/gateway/endpoints", {"slug": self.slug(path), "targets": [target]})
            await operator.call("PUT", "/v1/gateway/prices", {"slug": self.slug(path)} | PRICE | price)
        self.group_id, self.key = await self.group("hard", self.amount, "HARD")
        await self.is_admitted()

    async def group(self, name: str, amount: Decimal, enforcement: str) -> tuple[str, str]:
        """Create a group with a limit a day; return its id and a key."""
        limit = {"unit": "DAY", "amount": str(amount), "currency": "EUR", "enforcement": enforcement}
        body = {
            "metadata": {"external_entity_id": f"{self.stage.name}-{name}"},
            "models": [{"slug": self.slug(path)} for path in DIALECTS],
            "spend_limits": [limit],
        }
        id = str((await self.stage.operator.call("POST", "/v1/gateway/groups", body))["id"])
        return id, await self.stage.operator.key(id)

    async def is_admitted(self, key: str = "") -> None:
        """Wait until HARD calls are decided on: not 503 any more. Nothing is spent."""
        await self.stage.until(lambda: self.is_decided(key), "HARD calls are decided on")

    async def is_decided(self, key: str = "") -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            status, _, _ = await self.call(Order(ending="fails"), key=key, cap=16)
            return status not in (503, 403, 404)
        return False

    async def call(
        self, order: Order, path: str = CHAT, key: str = "", front: str = "", **body: Any
    ) -> tuple[int, Any, dict[str, str]]:
        """Make a call that is not streamed. `cap`: its cap. Return status, body and header fields."""
        cap = body.pop("cap", None)
        text = order.text()
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if path in DIALECTS else {}
        if path == RESPONSES:
            prompt = {"input": text}
        capped = {} if cap is None else {("max_output_tokens" if path == RESPONSES else "max_tokens"): cap}
        headers = {"Authorization": f"Bearer {key or self.key}"}
        url = (front or self.stage.product.proxy) + path
        request = {"model": self.slug(path) if path in DIALECTS else self.slug(CHAT)} | prompt | capped | body
        async with self.stage.session.post(url, json=request, headers=headers) as answer:
            return answer.status, json.loads(await answer.read()), dict(answer.headers)

    async def spend(self) -> tuple[Decimal, Decimal] | None:
        """The amounts that are spent and reserved; None while they are not counted."""
        status, answer = await self.stage.operator.ask("GET", f"/v1/gateway/groups/{self.group_id}/spend")
        if status != 200:
            return None
        (item,) = answer["items"]
        return Decimal(item["spent"]), Decimal(item["reserved"])

    async def billed(self, name: str = "hard") -> Decimal:
        query = {"start_time": self.stage.began, "external_entity_ids": f"{self.stage.name}-{name}"}
        page = await self.stage.operator.call("GET", "/v1/gateway/events", include="details", **query)
        return sum((Decimal(event["cost"]["amount"]) for event in page["items"]), Decimal(0))

    async def settled(self) -> Decimal:
        """The amount that is billed, once it is what is spent, and nothing is reserved."""
        amount = Decimal(-1)

        async def look() -> bool:
            nonlocal amount
            with contextlib.suppress(aiohttp.ClientError):
                amount = await self.billed()
                return await self.spend() == (amount, Decimal(0))
            return False

        await self.stage.until(look, "spent is what is billed, and nothing is reserved")
        assert amount <= self.amount
        return amount

    async def ready(self) -> None:
        await self.stage.until(self.stage.all_parts_ready, "all processes run again")


async def scene_of(stage: Stage, amount: str, **price: Any) -> HardScene:
    scene = HardScene(stage, Decimal(amount))
    await scene.prepare(**price)
    return scene


# --- lowered caps ----------------------------------------------------------------------------------------------------


async def _openai_chat(scene: HardScene, client: openai.AsyncOpenAI, text: str, *, stream: bool) -> tuple[str, Any]:
    request: Any = {"model": scene.slug(CHAT), "messages": [{"role": "user", "content": text}], "max_tokens": 4_000}
    raw: Any = await client.chat.completions.with_raw_response.create(**request, stream=stream)
    if not stream:
        return raw.parse().choices[0].finish_reason, raw.headers
    reasons = [chunk.choices[0].finish_reason async for chunk in raw.parse() if chunk.choices]
    return reasons[-1], raw.headers


async def _openai_responses(
    scene: HardScene, client: openai.AsyncOpenAI, text: str, *, stream: bool
) -> tuple[str, Any]:
    request: Any = {"model": scene.slug(RESPONSES), "input": text, "max_output_tokens": 4_000}
    raw: Any = await client.responses.with_raw_response.create(**request, stream=stream)
    if not stream:
        return raw.parse().status, raw.headers
    last = [event async for event in raw.parse()][-1]
    return last.response.status, raw.headers


async def _anthropic(scene: HardScene, text: str, *, stream: bool) -> tuple[str, Any]:
    async with anthropic.AsyncAnthropic(
        base_url=scene.stage.product.proxy, api_key=scene.key, max_retries=0, timeout=30
    ) as client:
        request: Any = {"model": scene.slug(MESSAGES), "messages": [{"role": "user", "content": text}]}
        raw: Any = await client.messages.with_raw_response.create(**request, max_tokens=4_000, stream=stream)
        if not stream:
            return str((await raw.parse()).stop_reason), raw.headers
        events = await raw.parse()
        stops = [event.delta.stop_reason async for event in events if event.type == "message_delta"]
        return str(stops[-1]), raw.headers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "stop"), [(CHAT, "length"), (MESSAGES, "max_tokens"), (RESPONSES, "incomplete")])
async def test_cap_is_lowered_to_what_is_left_and_ends_the_answer(
    stage: Stage, path: str, stop: str, stream: bool
) -> None:
    scene = await scene_of(stage, "0.2")
    text = Order(input=10, output=WHOLE).text()
    if path == MESSAGES:
        reason, headers = await _anthropic(scene, text, stream=stream)
    else:
        async with stage.client(scene.key) as client:
            ask = _openai_chat if path == CHAT else _openai_responses
            reason, headers = await ask(scene, client, text, stream=stream)
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


@contextlib.asynccontextmanager
async def open_call(scene: HardScene, front: str = "") -> AsyncIterator[asyncio.Task[Any]]:
    """A call that has reserved all of the amount and waits at the vendor, which answers at the end of the block."""
    gate = scene.stage.upstream.gate
    gate.close()
    before = gate.arrivals
    order = Order(input=10, output=WHOLE, ending="waits")
    task = asyncio.create_task(scene.call(order, front=front, cap=4_000))

    async def arrived() -> bool:
        return gate.arrivals > before

    try:
        await scene.stage.until(arrived, "the call waits at the vendor")
        yield task
    finally:
        gate.open()
        await asyncio.gather(task, return_exceptions=True)


async def refused_while_open(scene: HardScene, front: str = "") -> None:
    """Wait until calls are decided on, all of which the open call's reservation refuses."""

    async def is_refused() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            status, answer, _ = await scene.call(Order(output=1), front=front, cap=16)
            assert status in (429, 503), (status, answer)
            return status == 429
        return False

    await scene.stage.until(is_refused, "calls are refused for the open call alone")


async def kill_redis_and_its_data(stage: Stage) -> None:
    await flush(stage.product)
    for pid in stage.product.processes("redis-server"):
        kill(pid)


@pytest.mark.parametrize("loss", ["emptied", "killed", "killed and emptied"])
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


def waiting_machines(product: Product) -> list[Any]:
    """The machines for which trees wait, as `tollgate spend machines` lists them."""
    listed = product.command("spend", "machines")
    machines = listed if isinstance(listed, list) else [listed]
    return [machine for machine in machines if machine["waiting_trees"]]


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
                return len(await asyncio.to_thread(waiting_machines, stage.product)) == 1

            await stage.until(is_named, "the machine is named")
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
        return len(await asyncio.to_thread(waiting_machines, stage.product)) == 1

    await stage.until(is_named, "the machine is named")
    assert (await scene.call(Order(output=1), cap=16))[0] == 503
    (machine,) = waiting_machines(stage.product)
    name = ("--machine", machine["machine"])
    data = ("--data", str(stage.product.data))
    refusal = stage.product.run("spend", "release", *name, *data)
    assert refusal.returncode != 0
    assert "--force" in refusal.stderr
    assert stage.product.run("spend", "release", *name, "--force", *data).returncode == 0
    await scene.is_admitted()
    assert (await scene.call(Order(input=10, output=WHOLE), cap=100))[0] == 200
    await scene.settled()
