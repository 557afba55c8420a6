"""The console's traffic figures, from the proxies by way of control: each call once, whichever process dies."""

from typing import Any

import openai

from tests.journeys.conftest import Stage
from tests.journeys.product import kill, models
from tests.upstream import answer_json

LIMIT = 4


async def test_each_call_is_in_the_traffic_once_whichever_process_dies(killable_stage: Stage) -> None:
    """A worker and control are killed, and the product is restarted: its last figures are sent at the drain."""
    stage = killable_stage
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    limited = models(stage.slug, ("REQUEST", "DAY", LIMIT))
    key = await stage.operator.key(await stage.operator.group(stage.name, limited))
    stage.upstream.plan(answer_json(500, {"error": {"message": "broken"}}))
    await ask(stage, key, LIMIT + 2)
    item = await stage.until(lambda: traffic(stage, LIMIT + 2), "traffic of the first calls")
    assert (item["errors"], item["refusals"]) == (1, 2)
    answered = LIMIT - 1
    tokens = {"uncached_input": 15 * answered, "cached_input": 5 * answered, "output": 10 * answered}
    assert {kind: item[f"{kind}_tokens"] for kind in tokens} == tokens
    assert 0 < item["first_byte_ms"]["p50"] <= item["first_byte_ms"]["p99"]
    assert sum(point["calls"] for point in item["series"]) == LIMIT + 2
    (control,) = stage.product.processes("-m control")
    kill(control)
    kill(stage.product.processes("proxy.worker")[0])
    await ask(stage, key, 3)
    await stage.control_is_back()
    await ask(stage, key, 1)
    assert stage.product.stop() == 0
    stage.product.start()
    for period in ("hour", "day", "month"):
        item = await traffic(stage, LIMIT + 6, period)
        assert (item["errors"], item["refusals"]) == (1, 6)


async def ask(stage: Stage, key: str, calls: int) -> None:
    for _ in range(calls):
        try:
            await stage.ask(key)
        except openai.APIStatusError:
            continue


async def traffic(stage: Stage, calls: int, period: str = "hour") -> Any:
    """Return the slug's item if it shows this many calls."""
    answer = await stage.operator.call("GET", "/v1/gateway/traffic", period=period, slug=stage.slug)
    return next((item for item in answer["items"] if item["calls"] == calls), None)
