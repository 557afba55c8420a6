"""The end of a month while calls run: a price that was entered before begins, and days and months of limits do.

All processes have a clock that the test sets to shortly before.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from policy.prices import date_text
from tests.journeys.conftest import Stage
from tests.journeys.hard_chaos.orders import Order
from tests.journeys.hard_chaos.vendor import CHAT, OddVendor
from tests.journeys.limits.hard_scene import HardScene
from tests.journeys.limits.own_product import own_product
from tests.ports import own_port
from tests.stepped_clock import COMPILER, MISSING, SteppedClock
from tests.upstream import ScriptedUpstream

AMOUNT = Decimal("0.3")
CALL = Order(input=10, output=20)
OPEN = Order(input=10, output=50, ending="waits")
"""The call that is open over midnight: it ends in the new month."""
MOST = Decimal("0.04002")
"""The most that a call of CALL costs, by the new month's prices, which are twice the old one's."""
CALLERS = 4
HOLD = 2 * OPEN.output * Decimal("0.00101") + (CALLERS - 1) * MOST / 2
"""The most that the open call and the other callers hold of the old month: they reserve by the new one's prices."""


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    vendor = OddVendor()
    async with ScriptedUpstream(default=vendor.answer, port=own_port()) as upstream:
        yield upstream
    assert vendor.faults == []


def next_month(at_s: float) -> float:
    first = datetime.fromtimestamp(at_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1).timestamp()


async def limited_scene(stage: Stage, enforcement: str) -> HardScene:
    """A group whose day and month hold the same, and its key."""
    scene = HardScene(stage, AMOUNT)
    shared = {"amount": str(AMOUNT), "currency": "EUR", "enforcement": enforcement}
    body = {
        "metadata": {"external_entity_id": enforcement},
        "models": [{"slug": scene.slug(CHAT)}],
        "spend_limits": [{"unit": unit, **shared} for unit in ("DAY", "MONTH")],
    }
    scene.group_id = str((await stage.operator.call("POST", "/v1/gateway/groups", body))["id"])
    scene.key = await stage.operator.key(scene.group_id)
    await scene.is_admitted()
    return scene


@dataclass
class Callers:
    """Some that call again and again, until calls that were sent from a time on were admitted and one more refused."""

    scene: HardScene
    clock: SteppedClock
    since_s: float = 0.0
    is_admitted: bool = False
    is_refused: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._call() for _ in range(CALLERS)))

    async def _call(self) -> None:
        while not self.is_refused:
            sent_s = self.clock.now_s
            status, answer, _ = await self.scene.call(CALL, cap=CALL.output)
            assert status in (200, 429), answer
            if sent_s >= self.since_s:
                self.is_refused |= self.is_admitted and status == 429
                self.is_admitted |= status == 200
            await asyncio.sleep(0.02)


async def days_of_events(stage: Stage, enforcement: str) -> dict[str, list[Any]]:
    """The events of the group by day."""
    days: dict[str, list[Any]] = {}
    for event in await stage.operator.events(enforcement, stage.began, 1000, include="details"):
        days.setdefault(event["timestamp"][:10], []).append(event)
    return days


def cost(events: list[Any]) -> Decimal:
    return sum((Decimal(event["cost"]["amount"]) for event in events), Decimal(0))


def cost_by_tokens(events: list[Any], factor: int) -> Decimal:
    """The same, worked out: `factor` times 0.000001 for a token of input and 0.001 for one of output."""
    tokens = [event["tokens"] for event in events]
    return factor * Decimal(sum(one["inputTokens"] + 1000 * one["outputTokens"] for one in tokens)) / 1_000_000


async def spend_of(stage: Stage, group_id: str) -> list[Any]:
    """The amounts that are spent and reserved in the day, and in the month."""
    status, answer = await stage.operator.ask("GET", f"/v1/gateway/groups/{group_id}/spend")
    items = answer["items"] if status == 200 else []
    return [(Decimal(item["spent"]), Decimal(item["reserved"])) for item in items]


async def use_up(scene: HardScene) -> None:
    """Call until there is no room although nothing is reserved: calls of the old month had a place in the new one."""

    async def is_free() -> bool:
        amounts = await spend_of(scene.stage, scene.group_id)
        return bool(amounts) and not any(reserved for _, reserved in amounts)

    status = 200
    while status == 200:
        await scene.stage.until(is_free, "nothing is reserved")
        status, answer, _ = await scene.call(CALL, cap=CALL.output)
    assert status == 429, answer


@pytest.mark.skipif(COMPILER is None, reason=MISSING)
async def test_month_ends_while_calls_run(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    clock = SteppedClock(tmp_path)
    midnight_s = next_month(clock.now_s + 2 * 86_400)
    clock.step(int(midnight_s - clock.now_s) - 3600)
    async with own_product(tmp_path, clock.environment, upstream) as stage:
        await HardScene(stage, AMOUNT).make_slugs()
        dearer = {"currency": "EUR", "input_per_million": "2", "output_per_million": "2000"}
        first = date_text(int(midnight_s * 1000))
        slug = HardScene(stage, AMOUNT).slug(CHAT)
        await stage.operator.call("PUT", "/v1/gateway/prices", {"slug": slug, "valid_from": first} | dearer)
        scenes = {enforcement: await limited_scene(stage, enforcement) for enforcement in ("HARD", "SOFT")}
        upstream.gate.close()
        open_calls = asyncio.gather(*(scene.call(OPEN, cap=OPEN.output) for scene in scenes.values()))
        await asyncio.gather(*(Callers(scene, clock).run() for scene in scenes.values()))
        clock.step(int(midnight_s - clock.now_s) - 1)
        callers = asyncio.gather(*(Callers(scene, clock, midnight_s).run() for scene in scenes.values()))
        await asyncio.sleep(midnight_s + 0.1 - clock.now_s)
        upstream.gate.open()
        assert [status for status, _, _ in await open_calls] == [200, 200]
        await callers
        await use_up(scenes["HARD"])
        for enforcement, scene in scenes.items():
            await check_books(scene, first, enforcement)


async def check_books(scene: HardScene, first: str, enforcement: str) -> None:
    """Compare events, prices and spend of both months. `first`: the new one's first day."""
    days: dict[str, list[Any]] = {}

    async def agree() -> bool:
        nonlocal days
        days = await days_of_events(scene.stage, enforcement)
        return await spend_of(scene.stage, scene.group_id) == [(cost(days.get(first, [])), Decimal(0))] * 2

    await scene.stage.until(agree, "what is spent is what the new month's events cost")
    (last,) = days.keys() - {first}
    assert any(event["tokens"]["outputTokens"] == OPEN.output for event in days[first])
    for day, factor in ((last, 1), (first, 2)):
        total = cost(days[day])
        assert total == cost_by_tokens(days[day], factor)
        assert total > AMOUNT - MOST - (HOLD if day == last else 0)
        if enforcement == "HARD":
            assert total <= AMOUNT
