"""The demo's steps on a cold start: a launcher with nothing running, a call that waits, a model server that starts.

Steps like those of `steps.py`.
"""

import asyncio
import sys
import time
from typing import Any

from control.demo.caller import ask
from control.demo.scene import PATIENCE_S, Scene, expect, ms_since, until
from policy.endpoints import PLATFORM

SLUG = "acme/sleeper"
SERVER = (sys.executable, "-P", "-m", "control.demo.upstream", "sleeper", "{port}")
"""The command line that the launcher runs when it is woken."""


async def launcher_started(scene: Scene) -> list[str]:
    """register a model without a server, and start a launcher for it: nothing runs"""
    operator = scene.operator
    model = (await operator.call("POST", "/v1/models", {"name": "sleeper"}))["id"]
    deployments = f"/v1/models/{model}/deployments"
    deployment = (await operator.call("POST", deployments, {"name": "first"}))["id"]
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": deployment})
    target = {"provider": PLATFORM, "model_id": model, "target_model": "sleeper-1b"}
    await operator.call("POST", "/v1/gateway/endpoints", {"slug": SLUG, "targets": [target]})
    flags = ("--model", model, "--deployment", deployment, "--health", "/health")
    line = await scene.product.launch(operator.api_key, *flags, "--", *SERVER)
    scene.sleeper = f"{deployments}/{deployment}"
    status = await _status(scene)
    expect(status == "SCALED_TO_ZERO", f"with a launcher and no replica the deployment is {status}")
    return [line, f"{SLUG} leads to a deployment that is {status}"]


async def cold_start(scene: Scene) -> list[str]:
    """call it: the call is parked, the launcher is woken, the model server loads, the call is answered"""
    operator = scene.operator
    began = time.monotonic()
    new_group = {"metadata": {"external_entity_id": "acme-night"}, "models": [{"slug": SLUG}]}
    group = (await operator.call("POST", "/v1/gateway/groups", new_group))["id"]
    key = (await operator.call("POST", f"/v1/gateway/groups/{group}/api_keys", {}))["api_key"]
    call = asyncio.create_task(ask(scene.product.proxy, key, SLUG, "Are you awake?"))
    report = []
    try:

        async def parked() -> bool:
            return call.done() or bool((await operator.call("GET", scene.sleeper))["load"]["parked"])

        await until(parked, "the call was never parked")
        expect(not call.done(), "the call was answered although no replica was listed")
        report.append(f"{ms_since(began)} parked; the deployment is {await _status(scene)}")
        async with asyncio.timeout(PATIENCE_S):
            answer = await call
    finally:
        call.cancel()
    text = answer["choices"][0]["message"]["content"]
    expect(text == "This is sleeper.", f"the answer was {text!r}")
    report.append(f"{ms_since(began)} answered: {text!r}")

    async def active() -> bool:
        return await _status(scene) == "ACTIVE"

    await until(active, f"the deployment is {await _status(scene)}")
    lines = await _until_logged(scene)
    scene.product.stop_launcher()
    return [*report, *(f"log: {line['message']}" for line in lines)]


async def _until_logged(scene: Scene) -> list[Any]:
    """The deployment's log, once it has the call's line and a line that the server printed."""

    async def look() -> list[Any] | None:
        lines = (await scene.operator.call("POST", scene.sleeper + "/logs", {}))["logs"]
        texts = [line["message"] for line in lines]
        whole = any("loads its weights" in text for text in texts) and any(" 200 " in text for text in texts)
        return list(lines) if whole else None

    return list(await until(look, "the deployment's log lacks the call, or what the server printed"))


async def _status(scene: Scene) -> str:
    return str((await scene.operator.call("GET", scene.sleeper))["status"])
