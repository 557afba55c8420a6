"""A call of a stock client, from the caller's trace to the collector: spans, log lines, exemplars, the end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.collector import Collector, collector
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product
from tests.ports import own_port
from tests.upstream import ScriptedUpstream

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"
PROMPT = "a prompt that nobody may read"


@pytest.fixture
def collecting() -> Iterator[Collector]:
    with collector(own_port()) as running:
        yield running


@pytest.fixture
def traced(collecting: Collector, tmp_path: Path) -> Iterator[Workspace]:
    settings = {
        "TOLLGATE_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with started(Product(tmp_path / "data", workers=1, settings=settings)) as workspace:
        yield workspace


@pytest.fixture
async def stage(
    traced: Workspace, session: aiohttp.ClientSession, upstream: ScriptedUpstream, numbers: Iterator[int]
) -> Stage:
    return stage_of(traced, session, upstream, f"traces-{next(numbers)}")


async def test_a_stock_clients_call_is_one_trace_from_its_own_span_to_the_upstream(
    stage: Stage, collecting: Collector
) -> None:
    key = await stage.key_without_limits()
    headers = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-01"}
    await stage.ask(key, messages=[{"role": "user", "content": PROMPT}], extra_headers=headers)

    async def whole() -> bool:
        return len([span for span in collecting.spans if span.trace_id == TRACE_ID]) >= 4

    await stage.until(whole, "the call's spans")
    spans = {span.name.partition(" ")[0]: span for span in collecting.spans if span.trace_id == TRACE_ID}
    server = spans["POST"]
    client = spans["chat"]
    assert spans.keys() == {"POST", "admit", "replica", "chat"}
    assert server.parent_id == CALLERS_SPAN
    assert {spans[name].parent_id for name in ("admit", "replica", "chat")} == {server.span_id}
    assert client.attributes["gen_ai.usage.output_tokens"] == 10

    async def access_lines() -> list[Any]:
        lines = [json.loads(line) for line in stage.product.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("trace_id") == TRACE_ID]

    [logged] = await stage.until(access_lines, "the call's log line")
    assert (logged["span_id"], logged["path"]) == (server.span_id, "/v1/chat/completions")
    async with stage.session.get(
        stage.product.admin + "/metrics", headers={"Accept": "application/openmetrics-text"}
    ) as answer:
        assert f'# {{trace_id="{TRACE_ID}"}}' in await answer.text()
    for hidden in (PROMPT, key, key.partition(".")[2]):
        assert hidden not in repr(collecting.spans)
    collecting.going_on.clear()  # the collector hangs: calls and the end do not
    await stage.ask(key)
    assert stage.product.stop() == 0
