"""`tollgate up` of the last release, then of this one, then of the last one again, with the data and calls of each.

As docs/operating.md says it: a backup before the upgrade, and its restore on the way back. Each version is killed while
its journals hold events, so that the other one reads them.
"""

import contextlib
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.edges.sql.migrations.migrate import LATEST
from tests.journeys.operations.last_release import ROOT, last_tree
from tests.journeys.product import OperatorClient, Product, models
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

__all__ = ["last_tree"]
pytestmark = pytest.mark.timeout(300)
PROGRAM = (sys.executable, "-P", "-c", "from control.operator.entry import main; main()")
SLUG = "acme/chat"
LIMIT = {"unit": "DAY", "amount": "1000", "currency": "USD", "enforcement": "HARD"}
PRICE = {"currency": "USD", "input_per_million": "1000", "cached_input_per_million": "0", "output_per_million": "0"}

COST = Decimal("0.015")
"""The cost of a call, whose input is 20 tokens, 5 of them cached."""


class Versions:
    """One data directory, which either version serves."""

    def __init__(self, product: Product) -> None:
        self.product = product

    def use(self, tree: Path) -> None:
        """Run commands and processes from `tree` from now on."""
        self.product.program = PROGRAM
        self.product.environment |= {"PYTHONPATH": str(tree)}

    def schema(self) -> str:
        with contextlib.closing(sqlite3.connect(self.product.data / "control.db")) as database:
            (revision,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(revision)


class Callers:
    """Calls through the slug, and how many of each key's were answered 200."""

    def __init__(self, session: aiohttp.ClientSession, product: Product, operator: OperatorClient) -> None:
        self._session = session
        self._product = product
        self._operator = operator
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.answered: Counter[str] = Counter()

    async def status(self, key: str, stream: bool = False) -> int:
        body = {"model": SLUG, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50, "stream": stream}
        url = f"{self._product.proxy}/v1/chat/completions"
        async with self._session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            await answer.read()
        self.answered[key.split(".")[0]] += answer.status == 200
        return answer.status

    async def call(self, key: str) -> None:
        for stream in (False, True, False):
            assert await self.status(key, stream) == 200, self._product.log_tail()

    async def until_status(self, key: str, status: int) -> None:
        async def look() -> bool:
            return await self.status(key) == status

        await eventually(look, lambda: f"a call is answered {status}\n{self._product.log_tail()}", every_s=0.1)

    async def every_event_is_listed_once(self) -> None:
        """Wait until the events of all answered calls are listed; none is listed twice."""

        async def look() -> bool:
            events = await self._operator.events("customer", self._began, limit=70)
            keys = [event["idempotencyKey"] for event in events]
            assert len(keys) == len(set(keys))
            counts = Counter(event["apiKeyPrefix"] for event in events)
            assert all(count <= self.answered[prefix] for prefix, count in counts.items()), counts
            return counts == self.answered

        await eventually(look, lambda: f"{self.answered}\n{self._product.log_tail()}", every_s=0.2)


async def sums(operator: OperatorClient, group: str) -> tuple[int, Decimal]:
    """Return the calls of the day that are counted, and the money that is spent and no longer reserved."""
    usage = await operator.call("GET", f"/v1/gateway/groups/{group}/usage")
    spend = await operator.call("GET", f"/v1/gateway/groups/{group}/spend")
    (counted,) = (item["current_usage"] for item in usage["items"] if item["type"] == "REQUEST")
    (day,) = spend["items"]
    return counted, Decimal(day["spent"]) if Decimal(day["reserved"]) == 0 else Decimal(-1)


async def set_up(operator: OperatorClient, upstream: ScriptedUpstream) -> str:
    """Create a slug with a price, and a group with limits; return the group's id."""
    await operator.endpoint(SLUG, await operator.model("chat", upstream.url))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    await operator.call("PUT", "/v1/gateway/prices", {"slug": SLUG, "valid_from": today} | PRICE)
    body: dict[str, Any] = {
        "metadata": {"external_entity_id": "customer"},
        "models": models(SLUG, ("REQUEST", "DAY", 1000), ("TOKEN", "MINUTE", 1_000_000)),
        "spend_limits": [LIMIT],
    }
    return str((await operator.call("POST", "/v1/gateway/groups", body))["id"])


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A connection per call, because those of a killed product are closed."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Versions]:
    both = Versions(Product(tmp_path / "data", workers=1))
    try:
        yield both
    finally:
        both.product.kill()


async def test_upgrade_and_the_way_back_lose_and_double_no_event(
    versions: Versions, last_tree: Path, session: aiohttp.ClientSession, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    product = versions.product
    backup = tmp_path / "backup"

    versions.use(last_tree)
    product.start()
    old_schema = versions.schema()
    assert f'LATEST = "{old_schema}"' in (last_tree / "control/edges/sql/migrations/migrate.py").read_text()
    operator = OperatorClient(
        session, product, product.command("workspace", "create", "acme", "--prefix", "acme")["api_key"]
    )
    group = await set_up(operator, upstream)
    callers = Callers(session, product, operator)
    first_key = await operator.key(group)
    await callers.until_status(first_key, 200)
    await callers.call(first_key)
    await callers.every_event_is_listed_once()
    product.command("backup", str(backup))
    await callers.call(first_key)
    product.kill()

    versions.use(ROOT)
    product.start()
    assert versions.schema() == LATEST != old_schema
    await callers.until_status(first_key, 200)  # HARD limits wait until their counters are counted again
    await callers.call(first_key)
    second_key = await operator.key(group)
    await callers.until_status(second_key, 200)
    await callers.call(second_key)
    await callers.every_event_is_listed_once()
    await settled_sums_are(callers, operator, group)
    await callers.call(second_key)
    product.kill()

    versions.use(last_tree)
    product.command("restore", str(backup), "--yes")
    product.start()
    assert versions.schema() == old_schema
    await callers.until_status(second_key, 403)  # made after the backup
    await callers.until_status(first_key, 200)
    await callers.call(first_key)
    await callers.every_event_is_listed_once()
    await settled_sums_are(callers, operator, group)
    assert product.stop() == 0, product.log_tail()


async def settled_sums_are(callers: Callers, operator: OperatorClient, group: str) -> None:
    """Wait until limits and spend have counted each answered call once."""
    calls = callers.answered.total()
    counts: list[tuple[int, Decimal]] = []

    async def look() -> bool:
        counts[:] = [await sums(operator, group)]
        return counts == [(calls, calls * COST)]

    await eventually(look, lambda: f"{calls} calls are counted: {counts}", every_s=0.2)
