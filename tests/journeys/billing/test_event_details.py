"""A call's details and its exact cost, from the provider's report to the list of events."""

import json
from typing import Any

import orjson
import pytest

from policy.billing import Details
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.journeys.conftest import Stage
from tests.upstream.oddities.details import wholes
from tests.upstream.oddities.reading import PATHS, request_body
from tests.upstream.oddities.row import JSON, sends

PRICE = {
    "currency": "USD",
    **{"input_per_million": "1", "cached_input_per_million": "0.1", "output_per_million": "4"},
    **{"cache_write_per_million": "1.25", "cache_write_1h_per_million": "2", "per_server_tool_call": "0.01"},
    "service_tiers": {"flex": {"multiplier": "0.5"}},
}
COSTS = {
    # 50 of input, 20 cached, 30 written, 103 of output: (50 × 1 + 20 × 0.1 + 30 × 1.25 + 103 × 4) / 1 000 000
    CHAT_COMPLETIONS: "0.0005015",
    # 10 of those written for an hour, 2 searches: (50 + 2 + 20 × 1.25 + 10 × 2 + 412) / 1 000 000 + 2 × 0.01
    MESSAGES: "0.020509",
    # half of the first, and a search
    RESPONSES: "0.01025075",
}


@pytest.mark.parametrize(("dialect", "answer", "details"), [pytest.param(*form, id=form[0]) for form in wholes()])
async def test_details_of_a_call_reach_its_event_and_its_cost(
    stage: Stage, dialect: str, answer: dict[str, Any], details: Details
) -> None:
    price = PRICE | {"slug": stage.slug, "valid_from": f"{stage.began[:7]}-01"}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)
    key = await stage.key_without_limits()
    stage.upstream.default = sends(orjson.dumps(answer), label=JSON)
    body = json.dumps(request_body(dialect, stage.slug, stream=False)).encode()
    status, _ = await stage.post({"Authorization": f"Bearer {key}"}, body, PATHS[dialect])
    assert status == 200
    await stage.events_of(stage.name, 1)
    query = {"start_time": stage.began, "external_entity_ids": stage.name, "include": "details"}
    [event] = (await stage.operator.call("GET", "/v1/gateway/events", **query))["items"]
    assert event["cost"] == {"amount": COSTS[dialect], "currency": "USD"}
    assert event["details"] == {
        "status": 200,
        "source": "REPORTED",
        "cacheWriteTokens": details.cache_write,
        "cacheWrite1hTokens": details.cache_write_1h,
        "reasoningTokens": details.reasoning,
        "audioInputTokens": details.audio_input,
        "audioOutputTokens": details.audio_output,
        "imageInputTokens": details.image_input,
        "imageOutputTokens": details.image_output,
        "serverToolCalls": details.server_tool_calls,
        "serviceTier": details.service_tier,
    }
