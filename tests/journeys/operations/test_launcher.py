"""The whole product with `tollgate launcher` and real model servers: cold starts, idleness, crashes, failed starts.

Every call goes through a slug, with the stock SDK.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import ended, kill, ready_line, spawn
from tests.processes import is_running
from tests.waiting import eventually

SERVER = (sys.executable, "-m", "tests.model_server", "--port", "{port}")
PROBES = {"path": "/health", "interval_s": 0.3, "timeout_s": 0.5}
PID = "answered by pid "


class LaunchedModel:
    """A platform model whose deployment a launcher serves, an endpoint for it, and a key."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._launcher: subprocess.Popen[str] | None = None
        self.log = stage.product.log.parent / f"{stage.name}-launcher.log"
        self.key = self.model_id = self.path = ""

    async def register(self, **settings: Any) -> None:
        operator = self._stage.operator
        name = self._stage.name
        self.model_id = (await operator.call("POST", "/v1/models", {"name": name}))["id"]
        deployments = f"/v1/models/{self.model_id}/deployments"
        deployment = (await operator.call("POST", deployments, {"name": "d"} | settings))["id"]
        self.path = f"{deployments}/{deployment}"
        where = f"/v1/models/{self.model_id}/environments/production"
        await operator.call("PUT", where, {"deployment_id": deployment})
        await operator.endpoint(self._stage.slug, self.model_id)
        self.key = await operator.key(await operator.group(name, [{"slug": self._stage.slug}]))

    def launch(self, *flags: str, server: tuple[str, ...] = SERVER) -> None:
        """Start the launcher without waiting."""
        product = self._stage.product
        ids = ("--model", self.model_id, "--deployment", self.path.rpartition("/")[2])
        words = ("launcher", "--url", product.control, *ids, *flags, "--", *server)
        environment = product.environment | {"TOLLGATE_API_KEY": self._stage.operator.api_key}
        self._launcher = spawn(words, environment, self.log)

    def started(self, *flags: str, server: tuple[str, ...] = SERVER) -> None:
        """Start the launcher and wait until it is ready."""
        self.launch(*flags, server=server)
        assert ready_line(self.launcher).startswith("ready hook="), self.said()

    @property
    def launcher(self) -> subprocess.Popen[str]:
        assert self._launcher is not None, "not started"
        return self._launcher

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
            ended(self._launcher)

    async def ask(self, content: str = "Hello") -> str:
        """One call; returns the answer's text, which names the replica's pid."""
        answer = await self._stage.ask(self.key, messages=[{"role": "user", "content": content}])
        return str(answer.choices[0].message.content)

    async def status_of_call(self, content: str) -> int:
        """One call that fails; returns its status."""
        with pytest.raises(openai.APIStatusError) as refusal:
            await self.ask(content)
        return refusal.value.status_code

    async def ask_once_it_serves(self) -> str:
        """One call that is answered. Until the proxies know of a change, at most a second, others may be 503."""
        while True:
            try:
                return await self.ask()
            except openai.APIStatusError as error:
                if error.status_code != 503:
                    raise
                await asyncio.sleep(0.05)

    async def refuses(self) -> bool:
        try:
            await self.ask()
        except openai.APIStatusError as error:
            return error.status_code == 503
        return False

    async def deployment(self) -> Any:
        return await self._stage.operator.call("GET", self.path)

    async def until_status(self, status: str) -> Any:
        async def look() -> Any:
            deployment = await self.deployment()
            return deployment if deployment["status"] == status else None

        return await self._stage.until(look, f"the deployment is {status}\n{self.said()}")

    async def until_logged(self, text: str) -> Any:
        """The first line of the deployment's log that contains `text`."""

        async def look() -> Any:
            logs = (await self._stage.operator.call("POST", self.path + "/logs", {"includes": [text]}))["logs"]
            return logs[-1] if logs else None

        return await self._stage.until(look, f"{text!r} is in the log")

    async def until_said(self, text: str) -> None:
        async def look() -> bool:
            return text in self.said()

        await self._stage.until(look, f"the launcher says {text!r}")


async def until_process_ended(answer: str) -> None:
    """Wait for the end of the replica that gave this answer.

    A process that has just broken off its calls may accept others until it has ended; those are 502, too.
    """
    await eventually(lambda: not is_running(int(answer.removeprefix("pid "))), f"the replica with {answer} has ended")


@pytest.fixture
def launched(stage: Stage) -> Iterator[LaunchedModel]:
    model = LaunchedModel(stage)
    try:
        yield model
    finally:
        model.end()


async def test_cold_call_is_parked_woken_and_answered_and_again_after_idleness(launched: LaunchedModel) -> None:
    await launched.register()
    launched.started("--idle-timeout-s", "3", "--health", "/health", server=(*SERVER, "--slow-start-s", "1"))
    first = await launched.ask()
    await launched.until_status("ACTIVE")
    answers = await asyncio.gather(*(launched.ask() for _ in range(20)))
    assert set(answers) == {first}
    deployment = await launched.until_status("SCALED_TO_ZERO")
    assert deployment["replicas"] == []
    await launched.until_said("stopped")
    assert not is_running(int(first.removeprefix("pid ")))
    assert await launched.ask() != first
    launched.launcher.terminate()
    assert ended(launched.launcher) == 0
    assert (await launched.deployment())["wake_url"] is None


async def test_wake_without_a_call_starts_a_replica_that_a_direct_call_reaches(
    launched: LaunchedModel, stage: Stage
) -> None:
    await launched.register()
    launched.started()
    headers = {"Authorization": f"Bearer {stage.operator.api_key}"}
    path = f"/models/{launched.model_id}/production"
    assert (await stage.post(headers, b"", path + "/wake"))[0] == 202
    (replica,) = (await launched.until_status("ACTIVE"))["replicas"]
    status, answer = await stage.post(headers, b'{"prompt": "Hello"}', path + "/predict")
    assert (status, answer["model"]) == (200, "m")
    assert (await launched.until_logged(PID))["replica"] == replica


async def test_deactivated_deployment_keeps_its_replica_until_it_is_idle(launched: LaunchedModel, stage: Stage) -> None:
    await launched.register(health=PROBES)
    launched.started("--idle-timeout-s", "4")
    first = await launched.ask()
    await stage.operator.call("POST", launched.path + "/deactivate")
    await stage.until(launched.refuses, "calls are refused")
    await stage.operator.call("POST", launched.path + "/activate")
    assert await launched.ask_once_it_serves() == first
    await stage.operator.call("POST", launched.path + "/deactivate")
    await launched.until_said("stopped")
    assert (await launched.deployment())["status"] == "INACTIVE"
    await stage.operator.call("POST", launched.path + "/activate")
    assert await launched.ask_once_it_serves() != first


async def test_many_cold_calls_wake_one_replica(launched: LaunchedModel) -> None:
    await launched.register(max_concurrency=4)
    launched.started("--health", "/health", server=(*SERVER, "--slow-start-s", "1"))
    answers = await asyncio.gather(*(launched.ask() for _ in range(40)))
    assert len(set(answers)) == 1
    assert launched.said().count(": started") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("crash", "ended with status 3", marks=pytest.mark.soak),
        ("killed", "was killed (signal 9); possibly out of memory"),
        pytest.param("memory", "ended with status 1", marks=pytest.mark.soak),
    ],
)
async def test_crash_in_mid_request_is_a_502_and_the_next_call_is_answered(
    launched: LaunchedModel, content: str, reason: str
) -> None:
    await launched.register(health=PROBES)
    launched.started()
    first = await launched.ask()
    assert await launched.status_of_call(content) == 502
    await until_process_ended(first)
    assert await launched.ask_once_it_serves() != first
    line = await launched.until_logged(reason)
    assert line["level"] == "ERROR"
    assert (await launched.until_logged(first.replace("pid ", PID)))["replica"] == line["replica"]


@pytest.mark.soak
async def test_hanging_replica_is_replaced(launched: LaunchedModel) -> None:
    await launched.register(health=PROBES)
    launched.started()
    first = await launched.ask()
    assert await launched.status_of_call("hang") == 502
    await until_process_ended(first)
    assert await launched.ask_once_it_serves() != first
    await launched.until_logged("failed 3 health checks in a row")


@pytest.mark.soak
async def test_server_that_cannot_start_fails_the_deployment_with_its_reason(
    launched: LaunchedModel, stage: Stage
) -> None:
    await launched.register()
    launched.started(server=(*SERVER, "--exit-at-once"))
    assert await launched.status_of_call("Hello") == 500
    deployment = await launched.until_status("FAILED")
    assert "5 starts in a row failed; the last replica ended with status 7" in deployment["error_message"]
    assert "model file not found: /models/none.gguf" in deployment["error_message"]
    assert (await launched.until_logged("ERROR: model file not found"))["level"] == "ERROR"
    assert await launched.status_of_call("Hello") == 503
    retried = await stage.operator.call("POST", launched.path + "/retry")
    assert retried["retried"]
    await launched.until_status("LOADING_MODEL")


async def test_killed_launcher_leaves_nothing_and_the_next_one_serves_waiting_calls(launched: LaunchedModel) -> None:
    await launched.register(health=PROBES)
    launched.started()
    first = await launched.ask()
    launched.end()
    await until_process_ended(first)
    launched.started()
    assert await launched.ask_once_it_serves() != first


@pytest.mark.soak
async def test_replica_serves_on_while_control_restarts(killable_stage: Stage) -> None:
    launched = LaunchedModel(killable_stage)
    try:
        await launched.register()
        launched.started()
        first = await launched.ask()
        (control,) = killable_stage.product.processes("-m control --")
        kill(control)
        await launched.until_said("Control is unreachable")
        assert await launched.ask() == first
        await killable_stage.control_is_back()
        await launched.until_said("Control answers again")
        assert await launched.ask() == first
    finally:
        launched.end()


@pytest.mark.soak
async def test_address_that_control_refuses_ends_the_launcher_with_the_remedy(killable_stage: Stage) -> None:
    product = killable_stage.product
    assert product.stop() == 0
    product.environment = product.environment | {"TOLLGATE_EGRESS_ALLOW": ""}
    product.start()
    launched = LaunchedModel(killable_stage)
    await launched.register()
    launched.launch()
    assert ended(launched.launcher) == 1
    assert "add the address or its network to TOLLGATE_EGRESS_ALLOW" in launched.said()
