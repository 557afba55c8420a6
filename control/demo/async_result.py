"""The demo's step on asynchronous requests: submitted in a moment, answered later, its result sent to a webhook.

A step like those of `steps.py`.
"""

import time
from typing import Any

import aiohttp

from control.demo.product import ProductError
from control.demo.scene import Scene, expect, ms_since, until

SLOW_S = 1.0


async def result_delivered(scene: Scene) -> list[str]:
    """submit a slow prediction: accepted in a moment, its signed result reaches the customer's webhook"""
    receiver = scene.receiver
    operator = scene.operator
    await receiver.start()
    try:
        secret = (await operator.call("GET", "/v1/async/webhook_secret"))["secrets"][0]
        began = time.monotonic()
        body = {"model_input": {"pages": 300, "takes_s": SLOW_S}, "webhook_endpoint": receiver.url}
        path = f"/models/{scene.models[1]}/production/async_predict"
        id = (await _ask(scene, "POST", path, body))["request_id"]
        lines = [f"{ms_since(began)} accepted: {id}"]
        state = await _ask(scene, "GET", f"/async_request/{id}")
        expect(state["status"] in ("QUEUED", "IN_PROGRESS"), f"the request is {state}")
        await until(_received(scene), "the webhook got nothing")
        result = receiver.verified(secret)
        lines.append(f"{ms_since(began)} received: {result['data']}, signature valid")
        expect(result["request_id"] == id and result["errors"] == [], f"the result was {result}")
        await until(_succeeded(scene, id), "the request did not end")
        return [*lines, f"the request is SUCCEEDED, its webhook too; {scene.upstreams[1].name} was asked once"]
    finally:
        await receiver.stop()


def _received(scene: Scene) -> Any:
    async def look() -> bool:
        return bool(scene.receiver.messages)

    return look


def _succeeded(scene: Scene, id: str) -> Any:
    async def look() -> bool:
        state = await _ask(scene, "GET", f"/async_request/{id}")
        return bool(state["status"] == state["webhook_status"] == "SUCCEEDED")

    return look


async def _ask(scene: Scene, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": f"Bearer {scene.operator.api_key}"}
    url = scene.product.proxy + path
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, headers=headers) as answer:
        if answer.status not in (200, 201):
            raise ProductError(f"{method} {path} answered {answer.status}: {await answer.text()}")
        return await answer.json()
