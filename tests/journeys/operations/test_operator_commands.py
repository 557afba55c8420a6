"""Commands over the management API as an operator runs them: on the machine of `up`, without a key."""

import asyncio
import csv
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai

from tests.journeys.conftest import Stage
from tests.journeys.product import COMMAND


class Operator:
    """Runs commands on the data directory of the stage's product."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(
        self, *words: str, stdin: str = "", settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        process = await self.start(*words, settings=settings)
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())

    async def start(self, *words: str, settings: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
        # Other journeys may have made more workspaces. A key is of one.
        which = () if words[0] == "top" or settings else ("--workspace", "acme")
        return await asyncio.create_subprocess_exec(
            *(*COMMAND, *words, *which, "--data", str(self._stage.product.data)),
            env=self._stage.product.environment | dict(settings or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def did(self, *words: str, stdin: str = "") -> str:
        result = await self.run(*words, stdin=stdin)
        assert result.returncode == 0, result.stderr
        return result.stdout

    async def answer(self, *words: str, stdin: str = "") -> Any:
        return json.loads(await self.did(*words, "--json", stdin=stdin))


async def test_export_goes_on_after_a_kill_and_has_each_event_once(stage: Stage, tmp_path: Path) -> None:
    operator = Operator(stage)
    file = tmp_path / "events.csv"
    key = await stage.key_without_limits()
    for _ in range(3):
        await stage.ask(key)
    await stage.events_of(stage.name, 3)
    words = ("events", "export", "--since", stage.began, "--entity", stage.name, "--output", str(file))
    killed = await operator.start(*words)

    async def has_begun() -> bool:
        return file.with_name("events.csv.state").exists() or killed.returncode is not None

    await stage.until(has_begun, "the export has begun")
    if killed.returncode is None:
        killed.send_signal(signal.SIGKILL)
    _, err = await killed.communicate()
    assert killed.returncode in (0, -signal.SIGKILL), err
    for _ in range(2):
        await stage.ask(key)
    tokens_by_key = {event["idempotencyKey"]: event["tokens"] for event in await stage.events_of(stage.name, 5)}
    assert "5 in all" in await operator.did(*words)
    assert "0 new events, 5 in all" in await operator.did(*words)
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 5
    assert {row["idempotency_key"]: int(row["input_tokens"]) for row in rows} == {
        key: tokens["inputTokens"] for key, tokens in tokens_by_key.items()
    }
    refusal = await operator.run(*words[:-2], "--format", "jsonl", "--output", str(file))
    assert refusal.returncode == 1
    assert "was begun with other values of --format" in refusal.stderr
    listed = await operator.did("events", "list", "--since", stage.began, "--entity", stage.name)
    assert len(listed.splitlines()) == 6
    everything = await operator.did("events", "export", "--since", stage.began, "--format", "jsonl")
    assert {json.loads(line)["idempotencyKey"] for line in everything.splitlines()} >= tokens_by_key.keys()


async def test_operator_sets_up_a_call_and_sees_its_usage_in_the_tree(stage: Stage) -> None:
    operator = Operator(stage)
    name = stage.name
    slug = stage.slug
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

    path = f"/v1/gateway/groups/{root['id']}/usage"

    async def is_used() -> bool:
        return bool((await stage.operator.call("GET", path))["items"][0]["current_usage"])

    await stage.until(is_used, "the call is counted")
    assert "25%  1 of 4 REQUEST today" in await operator.did("groups", "tree", name)
    (tree,) = await operator.answer("groups", "tree", name)
    assert [tree["usage"][0]["current_usage"], tree["children"][0]["usage"][0]["source_group"]] == [1, root["id"]]
    own = [
        item["prefix"] for item in (await operator.answer("keys", "list"))["items"] if item["name"] == "local commands"
    ]
    for prefix in own:
        await stage.operator.call("DELETE", f"/v1/api_keys/{prefix}")
    assert name in await operator.did("groups", "delete", name, "--yes"), "with a new key"
    assert (await operator.run("groups", "get", f"{name}-kid")).stderr.count("\n") == 1


async def test_operator_rotates_a_key_while_both_work(stage: Stage) -> None:
    operator = Operator(stage)
    await stage.key_without_limits()
    await operator.did("groups", "create", f"{stage.name}-keys", "--slug", stage.slug)
    spend = ("--spend-limit", "MONTH=5.00,EUR")
    rate = ("--rate-limit", "REQUEST/MINUTE=60")
    words = ("keys", "create", "--group", f"{stage.name}-keys", "--name", "ci", "--expires", "30d", "--only-key")
    old = (await operator.did(*words, "--slug", stage.slug, *rate)).strip()
    prefix = old.split(".")[0]
    answer = await operator.run("keys", "rotate", prefix, "--overlap", "2h")
    new = answer.stdout.strip()
    assert f"{prefix} ends in " in answer.stderr
    for key in (old, new):
        await stage.ask(key)
    rows = (await operator.did("keys", "list", "--group", f"{stage.name}-keys")).splitlines()
    assert [("rotated, ends in" in row, "active, expires in 29 d" in row) for row in rows[1:]] == [
        (True, False),
        (False, True),
    ]
    changed = await operator.answer("keys", "set", new.split(".")[0], "--expires", "never", *spend)
    assert (changed["expires_at"], changed["slugs"], changed["spend_limits"][0]["amount"]) == (
        None,
        [stage.slug],
        "5.00",
    )
    await operator.did("keys", "disable", prefix)
    assert (await operator.answer("keys", "get", prefix, "--group", f"{stage.name}-keys"))["state"] == "DISABLED"
    await stage.until(lambda: _is_refused(stage, old), "the disabled key is refused")
    await operator.did("keys", "enable", prefix)
    await stage.until(lambda: _is_served(stage, old), "the enabled key is served")
    await operator.did("keys", "revoke", prefix, "--group", f"{stage.name}-keys", "--yes")


async def _is_refused(stage: Stage, key: str) -> bool:
    try:
        await stage.ask(key)
    except openai.PermissionDeniedError:
        return True
    return False


async def _is_served(stage: Stage, key: str) -> bool:
    return not await _is_refused(stage, key)


async def test_top_shows_calls_while_they_happen(stage: Stage) -> None:
    operator = Operator(stage)
    key = await stage.key_without_limits()
    await stage.ask(key)
    words = ("top", "--once", "--json", "--interval-s", "2")
    watching = asyncio.create_task(operator.run(*words))
    call_count = 0
    async with asyncio.timeout(60):
        while not watching.done():
            await stage.ask(key)
            call_count += 1
            await asyncio.wait([watching], timeout=0.05)
    result = watching.result()
    assert result.returncode == 0, result.stderr
    view = json.loads(result.stdout)
    (proxy,) = view["proxies"]
    assert (proxy["state"], proxy["url"]) == ("up", stage.product.admin + "/metrics")
    (slug,) = [slug for slug in view["slugs"] if slug["model_slug"] == stage.slug]
    (group,) = [group for group in view["groups"] if group["external_entity_id"] == stage.name]
    assert 0 < round(slug["calls_per_second"] * proxy["seconds"]) <= call_count
    assert slug["tokens_per_second"] > 0
    assert group["calls_per_second"] == slug["calls_per_second"] <= view["calls_per_second"]
    stopped = await asyncio.create_subprocess_exec(
        *(*COMMAND, "top", "--interval-s", "0.2", "--data", str(stage.product.data)),
        env=stage.product.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert stopped.stdout is not None
    async with asyncio.timeout(30):
        assert b"calls/s" in await stopped.stdout.readline()
        stopped.send_signal(signal.SIGINT)
        _, err = await stopped.communicate()
    assert (stopped.returncode, err) == (0, b"")


async def test_closed_pipe_ends_a_command_quietly(stage: Stage) -> None:
    await stage.key_without_limits()
    listing = ("endpoints", "list", "--workspace", "acme")
    for words in (listing, (*listing, "--json"), ("top", "--interval-s", "0.2")):
        read, write = os.pipe()
        os.close(read)
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *words, "--data", str(stage.product.data)),
            env=stage.product.environment,
            stdout=write,
            stderr=subprocess.PIPE,
        )
        os.close(write)
        _, err = await process.communicate()
        assert err == b"", words


async def test_another_tenant_sees_nothing(stage: Stage) -> None:
    operator = Operator(stage)
    await stage.key_without_limits()
    created = stage.product.command("workspace", "create", stage.name, "--prefix", stage.name)
    theirs = {"TOLLGATE_API_KEY": created["api_key"], "TOLLGATE_URL": stage.product.control}
    lists = [("endpoints", "list"), ("groups", "tree"), ("models", "list")]
    for result in await asyncio.gather(*(operator.run(*words, "--json", settings=theirs) for words in lists)):
        assert (result.returncode, "acme" in result.stdout) == (0, False), result.args
    others = [
        ("endpoints", "get", stage.slug),
        ("endpoints", "delete", stage.slug, "--yes"),
        ("groups", "tree", stage.name),
        ("keys", "create", "--group", stage.name, "--only-key"),
    ]
    for refused in await asyncio.gather(*(operator.run(*words, settings=theirs) for words in others)):
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), refused
    assert stage.slug in await operator.did("endpoints", "list")


async def test_doctor_judges_the_running_product_and_not_its_own_shell(stage: Stage) -> None:
    shell = {"TOLLGATE_MAX_IN_FLIGHT": "not a number", "TOLLGATE_METRICS_TOKEN": "of-another-product"}
    result = await Operator(stage).run("doctor", "--json", settings=shell)
    settings = [one for one in json.loads(result.stdout)["findings"] if one["check"] == "settings"]
    assert [one["level"] for one in settings] == ["warning", "warning", "ok"], settings
    assert [one["text"].split()[0] for one in settings[:2]] == sorted(shell)
    assert "for the running product" in settings[2]["text"]
    assert "of-another-product" not in result.stdout
    record = json.loads((stage.product.data / "settings.json").read_text())
    assert record["plain"].keys() <= stage.product.environment.keys()
