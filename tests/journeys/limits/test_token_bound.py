"""TOKEN limits against hundreds of callers at once who know the rule, over two machines with two workers each.

The upstream answers only once every call is either refused or on its way, and costs as much as each call allows.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage, Workspace
from tests.journeys.product import models
from tests.journeys.second_machine import second_proxy, serves
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.behaviours import answer_json
from tests.upstream.chat_completions import DONE, begin_events, chat_chunk, end_events, event, send_event
from tests.upstream.exchange import Exchange

THRESHOLD = 20_000
CALLERS = 400
TEACHERS = 160
"""Cheap calls before the burst, each on a connection of its own, so that the estimates of all four workers have seen
sixteen."""
ASSUMED = 8192
THAI = "ก" * 700
without_escapes = partial(json.dumps, ensure_ascii=False)
"""JSON with fewer bytes for a dense script, so that its tokens are estimated lower."""
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def tokens_of(path: str, body: dict[str, Any]) -> tuple[int, int]:
    """The dearest answer that a call allows: each byte of its text a token, each answer as long as its cap."""
    size = len(without_escapes(body.get("messages") or body.get("input") or body.get("prompt")).encode())
    if path.endswith("/embeddings"):
        return size, 0
    cap = body.get("max_tokens") or body.get("max_completion_tokens") or ASSUMED
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    return size, cap * body.get("n", 1) * prompts


async def cost_the_most(exchange: Exchange) -> None:
    """The behaviour: wait until all callers were decided, then report the most."""
    raw = await exchange.read_body()
    path = exchange.received.path
    if path.endswith("/edits"):
        count = int((re.search(rb'name="n"\r\n\r\n(\d+)', raw) or [b"", b"1"])[1])
        body: dict[str, Any] = {"model": "m", "prompt": "cat", "max_tokens": 1000, "n": count}
    elif path.endswith("/messages"):
        await answer_json(404, {"detail": "Not Found"})(exchange)
        return
    else:
        body = json.loads(raw)
    await exchange.gate.passed()
    size, output = tokens_of(path, body)
    usage = {"prompt_tokens": size, "completion_tokens": output, "total_tokens": size + output}
    message = {"role": "assistant", "content": "ok"}
    choice = {"index": 0, "message": message, "text": "ok", "finish_reason": "stop"}
    if body.get("stream"):
        await begin_events(exchange)
        finish = [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]
        await send_event(exchange, event(chat_chunk(body["model"], finish)))
        await send_event(exchange, event(chat_chunk(body["model"], []) | {"usage": usage}))
        await send_event(exchange, DONE)
        await end_events(exchange)
        return
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    await answer_json(200, answer | {"data": [], "usage": usage})(exchange)


@pytest.fixture
async def dear_upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=cost_the_most, port=own_port()) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def second_machine(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with second_proxy(workspace.product, tmp_path_factory.mktemp("machine") / "second", workers=2) as url:
        yield url


class Crowd:
    """Callers of one key, all at once, who go to all machines in turn. Each call has a connection of its own."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession, key: str, machines: list[str]) -> None:
        self._stage = stage
        self._session = session
        self._key = key
        self._machines = machines
        self._turns = cycle(machines)
        self.refused = 0

    async def until_served(self) -> None:
        """Wait until all machines know the key."""

        async def are_ready() -> bool:
            return all([await serves(self._session, machine, self._key) for machine in self._machines])

        await self._stage.until(are_ready, "all machines serve the key")

    async def call(self, path: str, body: dict[str, Any]) -> int:
        url = next(self._turns) + path
        options = dict[str, Any](json={"model": self._stage.slug, **body})
        if path.endswith("/edits"):
            form = aiohttp.FormData({"n": str(body["n"]), "model": self._stage.slug, "prompt": "cat"})
            form.add_field("image", b"png", filename="a.png")
            options = {"data": form}
        headers = {"Authorization": f"Bearer {self._key}"}
        async with self._session.post(url, headers=headers, **options) as answer:
            await answer.read()
            self.refused += answer.status == 429
            return answer.status

    async def all_at_once(self, path: str, body: dict[str, Any], upstream: ScriptedUpstream) -> list[int]:
        """Make the calls; let none end before each of them is refused or held by the upstream."""
        upstream.gate.close()
        arrivals_before = upstream.gate.arrivals
        self.refused = 0
        calls = [asyncio.create_task(self.call(path, body)) for _ in range(CALLERS)]

        async def are_decided() -> bool:
            return upstream.gate.arrivals - arrivals_before + self.refused >= CALLERS

        await self._stage.until(are_decided, "every call was refused or is on its way")
        upstream.gate.open()
        return list(await asyncio.gather(*calls))


KINDS = [
    ("capped", "/v1/chat/completions", CHAT | {"max_tokens": 4000}),
    ("uncapped", "/v1/chat/completions", CHAT),
    ("n", "/v1/chat/completions", CHAT | {"max_tokens": 30, "n": 100}),
    ("dense", "/v1/chat/completions", {"messages": [{"role": "user", "content": THAI}], "max_tokens": 1}),
    ("prompts", "/v1/completions", {"prompt": ["a"] * 100, "max_tokens": 30}),
    ("stream", "/v1/chat/completions", CHAT | {"max_tokens": 4000, "stream": True}),
    ("translated", "/v1/messages", CHAT | {"max_tokens": 4000}),
    ("embeddings", "/v1/embeddings", {"input": [THAI]}),
    ("form", "/v1/images/edits", {"n": 4, "max_tokens": 1000, "prompt": "cat"}),
]
CASES = [
    pytest.param(unit, path, body, id=f"{kind}-{unit}", marks=[] if unit == short else [pytest.mark.soak])
    for (kind, path, body), short in zip(KINDS, cycle(["DAY", "MINUTE"]))
    for unit in ("DAY", "MINUTE")
]
"""Each kind under one of both units in `make test`, and under the other one in the soak."""


@pytest.mark.parametrize(("unit", "path", "body"), CASES)
async def test_true_tokens_are_at_most_twice_the_threshold_and_one_call(
    stage: Stage, second_machine: str, dear_upstream: ScriptedUpstream, unit: str, path: str, body: dict[str, Any]
) -> None:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, dear_upstream.url))
    limits = models(stage.slug, ("TOKEN", unit, THRESHOLD))
    key = await stage.operator.key(await stage.operator.group(stage.name, limits))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, json_serialize=without_escapes) as session:
        crowd = Crowd(stage, session, key, [stage.product.proxy, second_machine])
        await crowd.until_served()
        for _ in range(TEACHERS):  # one by one, so that each is settled before the next
            assert await crowd.call("/v1/chat/completions", CHAT | {"max_tokens": 1}) == 200
        statuses = await crowd.all_at_once(path, body, dear_upstream)
    assert set(statuses) == {200, 429}
    a_call = sum(tokens_of(path, body))
    taught = TEACHERS * sum(tokens_of("", CHAT | {"max_tokens": 1}))
    counted = taught if unit == "DAY" else 0  # a slow machine may take more than a minute
    assert counted + statuses.count(200) * a_call <= 2 * THRESHOLD + a_call
