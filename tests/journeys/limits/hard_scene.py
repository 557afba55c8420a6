"""Calls that HARD spend limits or a prepaid balance bind: slugs for each dialect, groups, and what is billed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.hard_chaos.machines import flush
from tests.journeys.hard_chaos.orders import Order
from tests.journeys.hard_chaos.vendor import CHAT, MESSAGES, RESPONSES
from tests.journeys.product import kill

DIALECTS = {CHAT: "CHAT_COMPLETIONS", MESSAGES: "MESSAGES", RESPONSES: "RESPONSES"}
PRICE = {"currency": "EUR", "input_per_million": "1", "output_per_million": "1000", "valid_from": "1970-01-01"}
"""A token of input costs 0.000001, one of output 0.001."""
WHOLE = 9_999_999
"""More output than any cap allows: the vendor gives exactly the cap."""

_CAPPED = [
    ("chat-whole", CHAT, "length", False),
    ("chat-streamed", CHAT, "length", True),
    ("messages-streamed", MESSAGES, "max_tokens", True),
    ("messages-whole", MESSAGES, "max_tokens", False),
    ("responses-whole", RESPONSES, "incomplete", False),
    ("responses-streamed", RESPONSES, "incomplete", True),
]


def capped(turn: int) -> list[Any]:
    """Calls whose cap is lowered, and how they end. `make test` has every other one with a HARD limit (turn 0) and the
    rest with a balance (turn 1), the soak has all with both.
    """
    return [
        pytest.param(path, stop, stream, id=name, marks=[] if number % 2 == turn else [pytest.mark.soak])
        for number, (name, path, stop, stream) in enumerate(_CAPPED)
    ]


LOSSES = ["emptied", "killed", pytest.param("killed and emptied", marks=pytest.mark.soak)]
"""Losses of Redis under an open call. The last one also happens where the call's process dies with it."""


@dataclass
class HardScene:
    """A stage with a slug for each dialect, and a group with a HARD limit a day."""

    stage: Stage
    amount: Decimal
    group_id: str = ""
    key: str = ""
    refusal: int = 429
    """The status of a call for which there is no room."""

    def slug(self, path: str) -> str:
        return f"{self.stage.slug}-{DIALECTS[path].lower()}"

    async def prepare(self, **price: Any) -> None:
        await self.make_slugs(**price)
        self.group_id, self.key = await self.group("hard", self.amount, "HARD")
        await self.is_admitted()

    async def make_slugs(self, **price: Any) -> None:
        operator = self.stage.operator
        model = await operator.model(self.stage.name, self.stage.upstream.url)
        for path, dialect in DIALECTS.items():
            target = {"provider": "PLATFORM", "model_id": model, "target_model": "odd", "dialects": [dialect]}
            await operator.call("POST", "/v1/gateway/endpoints", {"slug": self.slug(path), "targets": [target]})
            await operator.call("PUT", "/v1/gateway/prices", {"slug": self.slug(path)} | PRICE | price)

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
        events = await self.stage.operator.events(
            f"{self.stage.name}-{name}", self.stage.began, 1000, include="details"
        )
        return sum((Decimal(event["cost"]["amount"]) for event in events), Decimal(0))

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


async def asked_by_sdk(scene: HardScene, path: str, text: str, *, stream: bool) -> tuple[str, Any]:
    """Ask by the stock SDK of the path's dialect for 4 000 tokens; return how the answer ended, and its header fields.

    Raises the SDK's `APIStatusError` for a refusal.
    """
    if path == MESSAGES:
        return await _anthropic(scene, text, stream=stream)
    async with scene.stage.client(scene.key) as client:
        ask = _openai_chat if path == CHAT else _openai_responses
        return await ask(scene, client, text, stream=stream)


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
            assert status in (scene.refusal, 503), (status, answer)
            return bool(status == scene.refusal)
        return False

    await scene.stage.until(is_refused, "calls are refused for the open call alone")


async def kill_redis_and_its_data(stage: Stage) -> None:
    await flush(stage.product)
    for pid in stage.product.processes("redis-server"):
        kill(pid)
