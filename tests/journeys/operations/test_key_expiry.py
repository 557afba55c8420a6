"""A key that has expired stays so: on a kept connection, without control and Redis, and with an old copy of the replica
and a clock that is set back."""

import contextlib
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from proxy.edges.policy.recorded_time import RecordedTime, recorded_time_path
from tests.journeys.conftest import Stage
from tests.journeys.hard_chaos.machines import SecondMachine
from tests.stepped_clock import COMPILER, MISSING, SteppedClock

HOUR_S = 3600
REFUSED = (403, {"error": "Authentication failed"})
pytestmark = pytest.mark.timeout(240)


@contextlib.contextmanager
def running_machine(stage: Stage, clock: SteppedClock, directory: Path) -> Iterator[SecondMachine]:
    """A second proxy, whose clock can be set. It says goodbye, or the next journey's calls would wait for it."""
    machine = SecondMachine(stage.product, directory / "second", 2)
    machine.environment |= clock.environment
    machine.start()
    try:
        yield machine
        assert machine.stop() == 0, machine.log_tail()
    finally:
        machine.kill()


class Caller:
    """One connection to the machine."""

    def __init__(self, stage: Stage, machine: SecondMachine, session: aiohttp.ClientSession) -> None:
        self._stage = stage
        self._machine = machine
        self._session = session

    async def ask(self, key: str) -> tuple[int, object]:
        body = {"model": self._stage.slug, "messages": [{"role": "user", "content": "Hello"}]}
        url = f"{self._machine.proxy}/v1/chat/completions"
        async with self._session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            return answer.status, await answer.json()

    async def until_served(self, key: str) -> None:
        async def is_served() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return (await self.ask(key))[0] == 200
            return False

        await self._stage.until(is_served, f"the machine serves the key\n{self._machine.log_tail()}")


@contextlib.asynccontextmanager
async def connected(stage: Stage, machine: SecondMachine) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        yield Caller(stage, machine, session)


async def assert_refused_everywhere(stage: Stage, machine: SecondMachine, key: str) -> None:
    """Each connection may reach the other worker."""
    for _ in range(6):
        async with connected(stage, machine) as caller:
            assert await caller.ask(key) == REFUSED


def copy_replica(source: Path, to: Path) -> None:
    """Copy the policy replica as a backup would, with its stamp."""
    conn = sqlite3.connect(source / "replica.db")
    copy = sqlite3.connect(to / "replica.db")
    with contextlib.closing(conn), contextlib.closing(copy):
        conn.backup(copy)
    shutil.copy(source / "replica.db.stamp", to)


def put_back(copy: Path, data: Path) -> None:
    for name in ("replica.db-wal", "replica.db-shm"):
        (data / name).unlink(missing_ok=True)
    for name in ("replica.db", "replica.db.stamp"):
        shutil.copy(copy / name, data)


@pytest.mark.skipif(COMPILER is None, reason=MISSING)
async def test_nothing_revives_a_key_that_has_expired(killable_stage: Stage, tmp_path: Path) -> None:
    stage = killable_stage
    clock = SteppedClock(tmp_path)
    lasting = await stage.key_without_limits()
    (group,) = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=stage.name))["items"]
    expires_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + HOUR_S))
    place = f"/v1/gateway/groups/{group['id']}/api_keys"
    key = (await stage.operator.call("POST", place, {"expires_at": expires_at}))["api_key"]
    copy = tmp_path / "copy"
    copy.mkdir()
    with running_machine(stage, clock, tmp_path) as machine:
        async with connected(stage, machine) as caller:
            await caller.until_served(key)
            assert [(await caller.ask(key))[0] for _ in range(3)] == [200] * 3
            copy_replica(machine.data, copy)
            clock.step(2 * HOUR_S)
            assert await caller.ask(key) == REFUSED, "the connection and the head are the same"
            assert (await caller.ask(lasting))[0] == 200
            recorded = RecordedTime(recorded_time_path(machine.data / "journal"))

            async def is_recorded() -> bool:
                return recorded.cell[0] > (time.time() + HOUR_S) * 1000

            await stage.until(is_recorded, "the time is recorded")
            recorded.close()
            clock.step(-2 * HOUR_S)
            assert await caller.ask(key) == REFUSED
        await assert_refused_everywhere(stage, machine, key)
        machine.kill()
        put_back(copy, machine.data)
        stage.product.kill()
        machine.start()
        async with connected(stage, machine) as caller:
            await caller.until_served(lasting)  # Redis and control are away, and it has no limits
        await assert_refused_everywhere(stage, machine, key)
        output = machine.run("snapshot", "show", "--key-prefix", key.split(".")[0], "--data", str(machine.data))
        assert "it expired at" in output.stdout, output.stderr
        stage.product.start()
        async with connected(stage, machine) as caller:
            await caller.until_served(lasting)
        await assert_refused_everywhere(stage, machine, key)
