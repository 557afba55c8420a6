"""One product with two workers for all journeys with its default settings, and a stage for each journey."""

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest

from tests.journeys.product import OperatorClient, Product
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, Usage, chat
from tests.waiting import eventually, stay_within_one_day


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: each would read the system's authorities, which takes many times as long as a call."""
    return ssl.create_default_context()


class Workspace:
    """A product with one workspace, created by `tollgate workspace create`."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.record = product.command("workspace", "create", "acme", "--prefix", "acme")
        self.api_key: str = self.record["api_key"]


@contextmanager
def started(product: Product) -> Iterator[Workspace]:
    """Run the product, with a workspace, and kill it in the end."""
    try:
        product.start()
        yield Workspace(product)
    finally:
        product.kill()


@dataclass
class Stage:
    """A journey's tools: the operator's HTTP client, an upstream, and names that no other journey uses."""

    product: Product
    operator: OperatorClient
    session: aiohttp.ClientSession
    upstream: ScriptedUpstream
    name: str
    began: str

    @property
    def slug(self) -> str:
        return f"acme/{self.name}"

    def client(self, api_key: str) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=_tls())
        url = self.product.proxy + "/v1"
        return openai.AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0, timeout=30, http_client=http)

    async def ask(self, api_key: str, **changes: Any) -> Any:
        """Make one unstreamed call of the slug with the stock SDK."""
        request: dict[str, Any] = {"model": self.slug, "messages": [{"role": "user", "content": "Hello"}]} | changes
        async with self.client(api_key) as client:
            return await client.chat.completions.create(**request)

    async def post(self, headers: dict[str, str], body: bytes, path: str = "/v1/chat/completions") -> tuple[int, Any]:
        """Make one call without an SDK. Return the status, and the body as JSON or else as text."""
        async with self.session.post(self.product.proxy + path, data=body, headers=headers) as answer:
            if "json" in answer.content_type:
                return answer.status, await answer.json()
            return answer.status, await answer.text()

    async def key_without_limits(self) -> str:
        """Create an endpoint for the upstream, and a group that may call it. Return a key of the group."""
        await self.operator.endpoint(self.slug, await self.operator.model(self.name, self.upstream.url))
        return await self.operator.key(await self.operator.group(self.name, [{"slug": self.slug}]))

    async def until(self, look: Callable[[], Awaitable[Any]], what: str) -> Any:
        return await eventually(look, lambda: f"{what}\n{self.product.log_tail()}", every_s=0.1)

    async def refuses_connections(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(self.product.proxy).port)
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    async def all_parts_ready(self) -> bool:
        """Return whether all processes run and the product is ready. For a while after a kill this is False."""
        try:
            async with self.session.get(self.product.admin + "/readyz") as answer:
                ready = answer.status == 200
        except aiohttp.ClientConnectionError:
            return False
        parts = [
            len(self.product.processes(command_part))
            for command_part in ("proxy.worker", "-m control --", "redis-server")
        ]
        return ready and parts == [self.product.workers, 1, 1]

    async def control_is_back(self) -> None:
        async def back() -> bool:
            try:
                await self.operator.call("GET", "/v1/gateway/groups")
            except aiohttp.ClientConnectionError:
                return False
            return True

        await self.until(back, "control is back")

    async def events_of(self, entity: str, count: int) -> list[Any]:
        """All events of one group, once there are at least `count`."""

        async def look() -> list[Any] | None:
            events = await self.operator.events(entity, self.began)
            return events if len(events) >= count else None

        return list(await self.until(look, f"{count} events of {entity}"))


@pytest.fixture(autouse=True)
def within_one_day() -> None:
    """Keep a journey of less than a minute from midnight UTC, when daily limits and usage begin anew."""
    stay_within_one_day()


@pytest.fixture(scope="package")  # not the session: an idle product takes CPU from the tests after the journeys
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    product = Product(tmp_path_factory.mktemp("product") / "data")
    with started(product) as workspace:
        yield workspace
        assert product.stop() == 0, product.log_tail()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    answer = chat(("This ", "is ", "upstream", "."), Usage(20, 10, 5), role_first=False)
    async with ScriptedUpstream(default=answer, port=own_port()) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def stage(
    workspace: Workspace, session: aiohttp.ClientSession, upstream: ScriptedUpstream, numbers: Iterator[int]
) -> Stage:
    return stage_of(workspace, session, upstream, f"journey-{next(numbers)}")


def stage_of(workspace: Workspace, session: aiohttp.ClientSession, upstream: ScriptedUpstream, name: str) -> Stage:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    operator = OperatorClient(session, workspace.product, workspace.api_key)
    return Stage(workspace.product, operator, session, upstream, name, began)


@pytest.fixture
async def killable_stage(stage: Stage) -> AsyncIterator[Stage]:
    """The stage of a journey that may kill, stop and restart the product and change its settings.

    The next journey finds the product running, with the settings it began with. Start the product on the main thread:
    it dies with the thread that started it.
    """
    product = stage.product
    environment = dict(stage.product.environment)
    try:
        yield stage
    finally:
        if product.environment != environment:
            product.kill()
            product.environment = environment
        if not product.is_running:
            product.start()
        await stage.until(stage.all_parts_ready, "all processes run again")
