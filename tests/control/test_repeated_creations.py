"""Requests with an `Idempotency-Key` at real processes of control: killed before, after and around the commit.

See docs/reference/management-api.md#idempotency.
"""

import asyncio
import random
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import aiohttp
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url

from control.edges.sql.idempotency.tables import idempotent_answers
from control.edges.sql.store import Store
from tests.control.test_process import Process, key_of_new_workspace, ready_processes, wait_for_readiness
from tests.postgres_copies import PostgresCopies
from tests.waiting import eventually

KEYS = "/v1/api_keys"
REPLAYED = "Idempotency-Replayed"


class Operator:
    """A client with a management key, which repeats what was not answered."""

    def __init__(self, session: aiohttp.ClientSession, key: str) -> None:
        self._session = session
        self._key = key

    async def send(self, process: Process, idempotency_key: str) -> tuple[str, bool]:
        """The plaintext that the first request with this idempotency key got, and whether this is a replay."""
        headers = {"Authorization": f"Bearer {self._key}", "Idempotency-Key": idempotency_key}
        body = {"type": "WORKSPACE_MANAGE_ALL", "name": idempotency_key}
        while True:
            async with self._session.post(process.url + KEYS, json=body, headers=headers) as answer:
                content = await answer.json()
                if answer.status == 200:
                    return content["api_key"], answer.headers.get(REPLAYED) == "true"
                assert answer.status in (409, 429), content
                await asyncio.sleep(content["retry_after"])

    async def lose(self, process: Process, idempotency_key: str) -> None:
        """Send it, and learn nothing of it."""
        with suppress(aiohttp.ClientError):
            await self.send(process, idempotency_key)

    async def names(self, process: Process, key: str | None = None) -> list[str]:
        headers = {"Authorization": f"Bearer {key or self._key}"}
        while True:
            async with self._session.get(f"{process.url}{KEYS}?limit=1000", headers=headers) as answer:
                content: dict[str, Any] = await answer.json()
                if answer.status == 200:
                    return [item["name"] for item in content["items"]]
                assert answer.status == 429, content
                await asyncio.sleep(content["retry_after"])


@asynccontextmanager
async def commits_held_back(database_url: str) -> AsyncIterator[None]:
    """Hold the lock without which nothing is published: on PostgreSQL the last one that a creation takes."""
    if database_url.startswith("sqlite"):
        with closing(sqlite3.connect(make_url(database_url).database or "", isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield
            file.execute("ROLLBACK")
        return
    store = Store.at(database_url)
    async with store.engine.connect() as connection, connection.begin():
        await connection.execute(text("SELECT value FROM revision FOR UPDATE"))
        yield
    await store.close()


async def answers_in(database_url: str) -> int:
    store = Store.at(database_url)
    async with store.read() as conn:
        count: int = (await conn.execute(select(func.count()).select_from(idempotent_answers))).scalar_one()
    await store.close()
    return count


async def is_waiting(database_url: str) -> bool:
    """Return whether a transaction of PostgreSQL waits for a lock. Of SQLite nobody can tell."""
    if database_url.startswith("sqlite"):
        return True
    store = Store.at(database_url)
    async with store.read() as conn:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        count = (await conn.execute(text(query))).scalar_one()
    await store.close()
    return bool(count)


async def test_killed_before_the_commit_the_repeat_creates(database_url: str) -> None:
    process = Process(database_url)
    async with ready_processes(process) as session:
        operator = Operator(session, await key_of_new_workspace(database_url))
        async with commits_held_back(database_url):
            attempt = asyncio.create_task(operator.lose(process, "order-1"))
            await eventually(lambda: is_waiting(database_url), "the creation waits for the revision")
            process.end(signal.SIGKILL)
            await attempt
        assert await answers_in(database_url) == 0
        process.start()
        await wait_for_readiness(session, process, 200)
        assert "order-1" not in await operator.names(process)
        key, is_replayed = await operator.send(process, "order-1")
        assert not is_replayed
        assert (await operator.names(process, key)).count("order-1") == 1


async def test_killed_after_the_commit_the_repeat_gets_the_plaintext(database_url: str) -> None:
    process = Process(database_url)
    async with ready_processes(process) as session:
        operator = Operator(session, await key_of_new_workspace(database_url))
        attempt = asyncio.create_task(operator.lose(process, "order-1"))
        await eventually(lambda: answers_in(database_url), "the answer is committed")
        process.end(signal.SIGKILL)
        await attempt
        process.start()
        await wait_for_readiness(session, process, 200)
        key, is_replayed = await operator.send(process, "order-1")
        assert is_replayed
        assert (await operator.names(process, key)).count("order-1") == 1  # the key works


async def test_killed_at_any_moment_each_is_created_once(database_url: str) -> None:
    process = Process(database_url)
    chance = random.Random(43)
    async with ready_processes(process) as session:
        operator = Operator(session, await key_of_new_workspace(database_url))
        for kill in range(3):
            orders = [f"order-{kill}-{number}" for number in range(12)]
            attempts = [asyncio.create_task(operator.lose(process, order)) for order in orders]
            await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(chance.uniform(0, 0.03))
            process.end(signal.SIGKILL)
            await asyncio.gather(*attempts)
            process.start()
            await wait_for_readiness(session, process, 200)
            repeats = await asyncio.gather(*(operator.send(process, order) for order in orders * 2))
            assert len({key for key, _ in repeats}) == len(orders)
            names = await operator.names(process)
            assert [names.count(order) for order in orders] == [1] * len(orders)


async def test_two_hundred_repeats_at_two_processes_create_once(postgres_copies: PostgresCopies) -> None:
    async with postgres_copies.one() as url:
        processes = [Process(url) for _ in range(2)]
        async with ready_processes(*processes) as session:
            operator = Operator(session, await key_of_new_workspace(url))
            async with commits_held_back(url):
                calls = [asyncio.create_task(operator.send(processes[n % 2], "order-1")) for n in range(200)]
                await eventually(lambda: is_waiting(url), "the first one waits for the revision")
            answers = await asyncio.gather(*calls)
            assert len({key for key, _ in answers}) == 1
            assert [is_replayed for _, is_replayed in answers].count(False) == 1
            assert (await operator.names(processes[0])).count("order-1") == 1
            assert await answers_in(url) == 1
