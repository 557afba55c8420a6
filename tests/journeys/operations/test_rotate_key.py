"""`tollgate secrets rotate-key` beside a running product: no call fails, a kill at any step leaves a state that works,
and a shell that would seal under another key is refused."""

import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage, stage_of, started
from tests.journeys.product import COMMAND, Product
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.timeout(240)
VALUE = "sk-of-the-vendor"


@pytest.fixture
async def vault(tmp_path: Path, session: aiohttp.ClientSession, upstream: ScriptedUpstream) -> AsyncIterator[Stage]:
    """A product of its own whose slug needs a stored secret."""
    product = Product(tmp_path / "data", settings={"TOLLGATE_VENDOR_B_BASE_URL": upstream.url})
    with started(product) as workspace:
        stage = stage_of(workspace, session, upstream, "vault")
        secret = await stage.operator.call("POST", "/v1/secrets", {"name": "vendor", "value": VALUE})
        target = {"provider": "VENDOR_B", "target_model": "m", "secret_id": secret["id"]}
        await stage.operator.call("POST", "/v1/gateway/endpoints", {"slug": stage.slug, "targets": [target]})
        yield stage


async def rotate(stage: Stage, *flags: str, **settings: str) -> subprocess.CompletedProcess[str]:
    process = await start(stage, *flags, **settings)
    out, err = await process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(flags, process.returncode, out.decode(), err.decode())


async def start(stage: Stage, *flags: str, **settings: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*COMMAND, "secrets", "rotate-key", "--data", str(stage.product.data), *flags),
        env=stage.product.environment | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextlib.asynccontextmanager
async def calling(stage: Stage, key: str) -> AsyncIterator[Counter[int]]:
    """Call without a pause, on new connections too, until the block ends; the statuses by number."""
    statuses: Counter[int] = Counter()
    body = json.dumps({"model": stage.slug, "messages": [{"role": "user", "content": "Hi"}]}).encode()

    async def call() -> None:
        while True:
            headers = {"Authorization": f"Bearer {key}", "content-type": "application/json"}
            status, _ = await stage.post(headers, body)
            statuses[status] += 1

    tasks = [asyncio.create_task(call()) for _ in range(3)]
    try:
        yield statuses
        answered = statuses[200]

        async def more() -> bool:
            return statuses[200] >= answered + 50

        await stage.until(more, "calls go on after the last step")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def keys_in(stage: Stage) -> list[str]:
    return (stage.product.data / "secret.key").read_text().strip().split(",")


async def group_key(stage: Stage) -> str:
    return await stage.operator.key(await stage.operator.group(stage.name, [{"slug": stage.slug}]))


async def test_keys_rotate_and_old_ones_are_dropped_without_a_failed_call(vault: Stage) -> None:
    key = await group_key(vault)
    (first,) = keys_in(vault)
    async with calling(vault, key) as statuses:
        result = await rotate(vault)
        assert result.returncode == 0, result.stderr
        summary: dict[str, Any] = json.loads(result.stdout)
        assert summary["reencrypted"] == 1
        assert keys_in(vault)[1:] == [first]
        refusal = await rotate(vault, "--drop-old")
        assert (refusal.returncode, "--yes" in refusal.stderr) == (1, True)
        assert len(keys_in(vault)) == 2
        dropped = await rotate(vault, "--drop-old", "--yes")
        assert dropped.returncode == 0, dropped.stderr
        assert json.loads(dropped.stdout) == {"reencrypted": 0, "key": summary["key"], "old_keys": []}
        await vault.operator.call("POST", "/v1/secrets", {"name": "vendor", "value": VALUE})  # control has the new key
    assert set(statuses) == {200}
    (second,) = keys_in(vault)
    assert second != first
    assert vault.product.stop() == 0
    vault.product.start()
    async with calling(vault, key) as statuses:
        pass
    assert set(statuses) == {200}


async def test_a_rotation_that_is_killed_at_any_step_leaves_a_state_that_works(vault: Stage) -> None:
    key = await group_key(vault)
    control = next(iter(vault.product.processes("-m control --")))
    async with calling(vault, key) as statuses:
        vault.product.up.send_signal(signal.SIGSTOP)  # it would replace control
        os.kill(control, signal.SIGSTOP)  # control does not read the new key: the command waits behind its first step
        killed = await start(vault)

        async def new_key_is_in_front() -> bool:
            return len(keys_in(vault)) == 2

        await vault.until(new_key_is_in_front, "the new key is in the file")
        killed.kill()
        await killed.communicate()
        os.kill(control, signal.SIGCONT)
        vault.product.up.send_signal(signal.SIGCONT)
        first_try = keys_in(vault)
        for delay_s in (0.0, 0.6, 1.2):
            again = await start(vault)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await again.wait()
            if again.returncode is None:
                again.kill()
            await again.communicate()
        result = await rotate(vault, "--drop-old", "--yes")
        assert result.returncode == 0, result.stderr
        await vault.operator.call("POST", "/v1/secrets", {"name": "vendor", "value": VALUE})
    assert set(statuses) == {200}
    assert len(keys_in(vault)) == 1
    assert first_try[1] not in keys_in(vault)


async def test_a_shell_with_other_keys_than_the_product_changes_nothing(vault: Stage) -> None:
    key = await group_key(vault)
    before = keys_in(vault)
    other = base64.b64encode(secrets.token_bytes(32)).decode()
    refusal = await rotate(vault, TOLLGATE_SECRET_KEY=other)
    assert refusal.returncode == 1
    assert "Nothing was changed" in refusal.stderr
    assert len(refusal.stderr.splitlines()) <= 3
    assert other not in refusal.stderr
    assert keys_in(vault) == before
    assert vault.product.stop() == 0
    vault.product.environment["TOLLGATE_SECRET_KEY"] = f"{other},{before[0]}"
    vault.product.start()
    for words in (("rotate-key",), ("reencrypt",)):  # the second terminal lacks the environment
        plain = {name: value for name, value in vault.product.environment.items() if name != "TOLLGATE_SECRET_KEY"}
        result = await asyncio.to_thread(
            subprocess.run,
            [*COMMAND, "secrets", *words, "--data", str(vault.product.data)],
            env=plain,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1, result.stdout
        assert "Nothing was changed" in result.stderr
        assert keys_in(vault) == before
    async with calling(vault, key) as statuses:
        pass
    assert set(statuses) == {200}
    assert vault.product.command("secrets", "reencrypt") == {"reencrypted": 1}
