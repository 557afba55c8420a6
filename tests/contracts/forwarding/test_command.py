"""The real command, killed with SIGKILL at random moments, and as its operators use it."""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from commands.errors import RefusedError
from runtime.child_process import tie_to_parent
from tests.contracts.forwarding.scripted_billing import ScriptedBilling, running
from tests.fakes.listed_events import DETAILS, START_MS, ListedEvents, keys, listed_event, time_text
from tests.ports import HOST, own_port
from tests.waiting import eventually

COMMAND = str(Path(sys.executable).parent / "tollgate")
START = time_text(START_MS)


@dataclass
class Setting:
    """A management API that lists events, and the forwarder's command."""

    listed: ListedEvents
    url: str
    folder: Path

    async def start(self, *words: str, **environment: str) -> asyncio.subprocess.Process:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        return await asyncio.create_subprocess_exec(
            *(COMMAND, "events", "forward", *words),
            env=ours | {"TOLLGATE_URL": self.url, "TOLLGATE_API_KEY": "tg_key"} | environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=tie_to_parent(),
        )

    async def run(self, *words: str, **environment: str) -> tuple[int | None, str, str]:
        process = await self.start(*words, **environment)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, out.decode(), err.decode()

    @property
    def state(self) -> str:
        return str(self.folder / "state")


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    listed = ListedEvents([listed_event(n, entity=f"c{n % 3}") for n in range(60)], page_items=7)

    async def answer(request: web.Request) -> web.Response:
        query: dict[str, Any] = {"end_time": None, **request.query}
        try:
            return web.json_response(await listed.call("GET", request.path, **query))
        except RefusedError as error:
            return web.json_response({"error": str(error)}, status=error.status)

    app = web.Application()
    app.router.add_get("/v1/gateway/events", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = own_port()
    await web.TCPSite(runner, HOST, port).start()
    yield Setting(listed, f"http://{HOST}:{port}", tmp_path)
    await runner.cleanup()


@pytest.fixture
async def stripe() -> AsyncIterator[ScriptedBilling]:
    async with running("stripe") as billing:
        yield billing


def has_asked(billing: ScriptedBilling, requests: int) -> bool:
    return len(billing.requests) >= requests


@pytest.mark.soak
async def test_sums_equal_the_events_over_sigkill_at_random_moments(setting: Setting, stripe: ScriptedBilling) -> None:
    rnd = random.Random(17)
    words: tuple[str, ...] = (
        "--to",
        "stripe",
        "--state",
        setting.state,
        "--start",
        START,
        "--batch",
        "5",
        "--receiver-url",
        stripe.url,
    )
    words += ("--meter", "out=output", "--customer", "cus_{external_entity_id}")
    for _ in range(3):
        request_count = len(stripe.requests) + rnd.randrange(1, 15)
        stripe.script = ["ok", "ok", "drop"]
        process = await setting.start(*words, STRIPE_API_KEY="sk_test")
        await eventually(partial(has_asked, stripe, request_count), "no request came", every_s=0.001)
        process.kill()
        await process.communicate()
    stripe.script = []
    status, out, err = await setting.run(*words, "--json", STRIPE_API_KEY="sk_test")
    assert status == 0, err
    assert "60 forwarded up to" in err
    assert json.loads(out)["forwarded"] == 60
    assert {form["identifier"]: int(form["payload[value]"]) for form in stripe.events.values()} == {
        event["idempotencyKey"]: event["tokens"]["outputTokens"] for event in setting.listed.events
    }
    assert len(stripe.requests) > 60
    assert "sk_test" not in Path(setting.state).read_text(errors="replace") + err


async def test_followed_events_are_in_the_file_and_the_status_tells_the_lag(setting: Setting) -> None:
    setting.listed.final = time_text(START_MS + 30)
    output = setting.folder / "events.jsonl"
    words = ("--to", "jsonl", "--state", setting.state, "--start", START, "--output", str(output))
    process = await setting.start(*words, "--follow", "--interval", "0.1")
    await eventually(lambda: output.exists() and len(output.read_text().splitlines()) == 30, "the first window")
    status, out, _ = await setting.run("--status", setting.state)
    assert (status, json.loads(out)["forwarded"]) == (0, 30)
    assert json.loads(out)["lag_s"] > 0
    status, _, err = await setting.run(*words)
    assert status == 1
    assert "another forwarder" in err
    setting.listed.final = time_text(START_MS + 1000)
    await eventually(lambda: len(output.read_text().splitlines()) == 60, "the second window")
    process.terminate()
    await process.communicate()
    assert keys([json.loads(line) for line in output.read_text().splitlines()]) == keys(setting.listed.events)
    assert output.stat().st_mode & 0o077 == 0


async def test_details_are_in_the_file_and_the_state_keeps_to_them(setting: Setting) -> None:
    output = setting.folder / "events.jsonl"
    words = ("--to", "jsonl", "--state", setting.state, "--start", START, "--output", str(output))
    status, _, _ = await setting.run(*words, "--details")
    assert status == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert lines == [{"details": DETAILS} | event for event in setting.listed.events]
    status, _, err = await setting.run(*words)
    assert (status, "a state of its own" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "jsonl"), "--output"),
        (("--to", "cloudevents"), "--receiver-url"),
        (("--to", "cloudevents", "--receiver-url", "http://billing.example.com/"), "use https"),
        (("--to", "cloudevents", "--receiver-url", "ftp://x"), "--receiver-url"),
        (("--to", "stripe", "--customer", "cus_1", "--meter", "a=output"), "{external_entity_id}"),
        (("--to", "stripe", "--customer", "{external_entity_id}"), "--meter"),
        (("--to", "stripe", "--customer", "{external_entity_id}", "--meter", "a=tokens"), "uncached_input"),
        (("--to", "jsonl", "--output", "x", "--start", "tomorrow"), "ISO 8601"),
        (("--to", "openmeter"), "OPENMETER_API_KEY has characters"),
    ],
)
def test_wrong_flags_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, message: str) -> None:
    from click.testing import CliRunner

    from commands.forward.command import forward

    for name in ("STRIPE_API_KEY", "TOLLGATE_FORWARD_KEY", "TOLLGATE_API_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("OPENMETER_API_KEY", "two\nlines")
    result = CliRunner().invoke(forward, [*words, "--state", str(tmp_path / "state")])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not list(tmp_path.iterdir())
