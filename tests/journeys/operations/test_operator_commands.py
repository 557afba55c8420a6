"""Commands over the management API as an operator runs them: on the machine of `up`, without a key."""

import asyncio
import csv
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.journeys.conftest import Stage
from tests.journeys.product import COMMAND


class Operator:
    """Runs commands on the data directory of the stage's product."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        started = await asyncio.create_subprocess_exec(
            *(*COMMAND, *words, "--data", str(self._stage.product.data)),
            env=self._stage.product.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await started.communicate(stdin.encode())
        assert started.returncode is not None
        return subprocess.CompletedProcess(words, started.returncode, out.decode(), err.decode())

    async def did(self, *words: str, stdin: str = "") -> str:
        done = await self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def answer(self, *words: str, stdin: str = "") -> Any:
        return json.loads(await self.did(*words, "--json", stdin=stdin))


async def test_export_goes_on_after_a_kill_and_has_each_event_once(stage: Stage, tmp_path: Path) -> None:
    operator, file = Operator(stage), tmp_path / "events.csv"
    key = await stage.key_without_limits()
    for _ in range(3):
        await stage.ask(key)
    await stage.events_of(stage.name, 3)
    words = ("events", "export", "--since", stage.began, "--entity", stage.name, "--output", str(file))
    killed = await asyncio.create_subprocess_exec(
        *(*COMMAND, *words, "--data", str(stage.product.data)), env=stage.product.environment
    )

    async def has_begun() -> bool:
        return file.with_name("events.csv.state").exists()

    await stage.until(has_begun, "the export has begun")
    if killed.returncode is None:
        killed.send_signal(signal.SIGKILL)
    await killed.wait()
    for _ in range(2):
        await stage.ask(key)
    wanted = {event["idempotencyKey"]: event["tokens"] for event in await stage.events_of(stage.name, 5)}
    assert "5 in all" in await operator.did(*words)
    assert "0 new events, 5 in all" in await operator.did(*words)
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 5
    assert {row["idempotency_key"]: int(row["input_tokens"]) for row in rows} == {
        key: tokens["inputTokens"] for key, tokens in wanted.items()
    }
    refused = await operator.run(*words[:-2], "--format", "jsonl", "--output", str(file))
    assert refused.returncode == 1
    assert "was begun with other values of --format" in refused.stderr
    listed = await operator.did("events", "list", "--since", stage.began, "--entity", stage.name)
    assert len(listed.splitlines()) == 6
    everything = await operator.did("events", "export", "--since", stage.began, "--format", "jsonl")
    assert {json.loads(line)["idempotencyKey"] for line in everything.splitlines()} >= wanted.keys()


async def test_operator_sets_up_a_call_and_sees_its_usage_in_the_tree(stage: Stage) -> None:
    operator, name, slug = Operator(stage), stage.name, stage.slug
    await operator.did("models", "create", name)
    await operator.did("models", "deployments", "create", name, "d")
    await operator.did("models", "deployments", "replicas", name, "d", stage.upstream.url)
    await operator.did("models", "environments", "set", name, "production", "d")
    await operator.did("endpoints", "create", slug, "--provider", "platform", "--model", name, "--target-model", "m")
    root = await operator.answer(
        "groups", "create", name, "--enforcement", "cascading", "--limit", f"{slug}:REQUEST/DAY=4"
    )
    await operator.did("groups", "create", f"{name}-kid", "--parent", name, "--slug", slug)
    key = (await operator.answer("keys", "create", "--group", f"{name}-kid"))["api_key"]
    await stage.ask(key)

    async def is_used() -> bool:
        return "25%  1 of 4 REQUEST today" in await operator.did("groups", "tree", name)

    await stage.until(is_used, "the tree shows the call")
    (tree,) = await operator.answer("groups", "tree", name)
    assert [tree["usage"][0]["current_usage"], tree["children"][0]["usage"][0]["source_group"]] == [1, root["id"]]
    own = [
        item["prefix"] for item in (await operator.answer("keys", "list"))["items"] if item["name"] == "local commands"
    ]
    for prefix in own:
        await stage.operator.call("DELETE", f"/v1/api_keys/{prefix}")
    assert name in await operator.did("groups", "delete", name), "with a new key"
    assert (await operator.run("groups", "get", f"{name}-kid")).stderr.count("\n") == 1
