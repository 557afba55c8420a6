"""`tollgate backup` beside a product under load, `tollgate restore` in its place and elsewhere."""

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage, stage_of, started
from tests.journeys.product import COMMAND, OperatorClient, Product
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(240)
VALUE = "sk-of-the-vendor"


async def command(product: Product, *words: str) -> subprocess.CompletedProcess[str]:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, *words, "--data", str(product.data)),
        env=product.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())


async def did(product: Product, *words: str) -> Any:
    result = await command(product, *words)
    assert result.returncode == 0, result.stderr + result.stdout
    return json.loads(result.stdout)


async def set_up(stage: Stage) -> str:
    """A slug with a stored secret, a group that may call it. Returns its key."""
    secret = await stage.operator.call("POST", "/v1/secrets", {"name": "vendor", "value": VALUE})
    target = {"provider": "VENDOR_B", "target_model": "m", "secret_id": secret["id"]}
    await stage.operator.call("POST", "/v1/gateway/endpoints", {"slug": stage.slug, "targets": [target]})
    return await stage.operator.key(await stage.operator.group(stage.name, [{"slug": stage.slug}]))


class Load:
    """Callers that call without a pause until they are stopped. `answered`: the number of answered calls."""

    def __init__(self, stage: Stage, key: str) -> None:
        self._stage = stage
        self._key = key
        self._stop = False
        self.answered = 0
        self._tasks = [asyncio.create_task(self._call()) for _ in range(3)]

    async def _call(self) -> None:
        while not self._stop:
            await self._stage.ask(self._key)
            self.answered += 1

    async def stopped(self) -> int:
        self._stop = True
        await asyncio.gather(*self._tasks)
        return self.answered


async def test_a_backup_under_load_is_restored_in_place_and_elsewhere(
    tmp_path: Path, session: aiohttp.ClientSession, upstream: ScriptedUpstream
) -> None:
    settings = {"TOLLGATE_VENDOR_B_BASE_URL": upstream.url}
    product = Product(tmp_path / "data", settings=settings)
    target = tmp_path / "backup"
    with started(product) as workspace:
        stage = stage_of(workspace, session, upstream, "books")
        key = await set_up(stage)
        load = Load(stage, key)
        await stage.until(lambda: _is_at_least(load, 20), "calls are answered")
        summary = await did(product, "backup", str(target))
        assert summary["files"] == ["control.db", "secret.key"]
        at_backup = load.answered
        await stage.until(lambda: _is_at_least(load, at_backup + 20), "calls go on")
        answered = await load.stopped()
        again = await command(product, "backup", str(target))
        assert (again.returncode, "not an empty directory" in again.stderr) == (1, True)
        served = await command(product, "restore", str(target), "--yes")
        assert (served.returncode, "Stop it" in served.stderr) == (1, True)
        await stage.events_of(stage.name, answered)
        assert product.stop() == 0
        unsure = await command(product, "restore", str(target))
        assert (unsure.returncode, "--yes" in unsure.stderr) == (1, True)
        await did(product, "restore", str(target), "--yes")
        product.start()
        events = await stage.events_of(stage.name, answered)
        assert len({event["idempotencyKey"] for event in events}) == len(events) == answered
        await stage.ask(key)
        await stage.events_of(stage.name, answered + 1)
        await _books_agree(stage)
        assert product.stop() == 0
    other = Product(tmp_path / "elsewhere", settings=settings)
    await did(other, "restore", str(target))
    try:
        other.start()
        operator = OperatorClient(session, other, stage.operator.api_key)
        there = Stage(other, operator, session, upstream, stage.name, stage.began)
        await there.ask(key)  # by the restored secret
        assert upstream.received[-1].header("authorization") == f"Bearer {VALUE}"
        assert 20 <= len(await there.events_of(there.name, 20)) <= answered
        assert other.stop() == 0
    finally:
        other.kill()


async def _is_at_least(load: Load, count: int) -> bool:
    return load.answered >= count


async def _books_agree(stage: Stage) -> None:
    """Journals and database agree, once the last event is final."""
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    words = ("events", "reconcile", "--start", stage.began, "--end", until, "--all-machines", "--json")
    journal = ("--journal", str(stage.product.data / "journal"))
    outcome = subprocess.CompletedProcess[str]([], 1)

    async def agree() -> bool:
        nonlocal outcome
        outcome = await command(stage.product, *words, *journal)
        return outcome.returncode == 0

    await eventually(agree, lambda: outcome.stdout + outcome.stderr, every_s=0.5)
