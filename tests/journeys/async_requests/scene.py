"""A customer of asynchronous requests: submits, looks, cancels, and receives results."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.journeys.async_requests.model import ModelServer
from tests.journeys.conftest import Stage
from tests.journeys.receivers import ReceivedMessage, Receiver

ENDED = frozenset(("SUCCEEDED", "FAILED", "EXPIRED", "CANCELED", "WEBHOOK_FAILED"))


@dataclass
class AsyncScene:
    """A model with one deployment in production, its server, and a receiver of results."""

    stage: Stage
    model: ModelServer
    receiver: Receiver
    model_id: str
    deployment_id: str
    secret: str
    submitted: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"/models/{self.model_id}"

    @property
    def deployment_path(self) -> str:
        return f"/v1/models/{self.model_id}/deployments/{self.deployment_id}"

    async def ask(self, method: str, path: str, body: Any = None, key: str = "", **more: Any) -> tuple[int, Any]:
        """Call the proxy, again after a rate limit. Return status and JSON."""
        headers = {"authorization": f"Bearer {key or self.stage.operator.api_key}"}
        url = self.stage.product.proxy + path
        while True:
            async with self.stage.session.request(method, url, json=body, headers=headers, **more) as answer:
                content = await answer.json()
            if content.get("error_code") != "RATE_LIMITED":
                return answer.status, content
            await asyncio.sleep(float(answer.headers["retry-after"]))

    async def submit(self, input: Any, *, hook: bool = False, where: str = "production", **more: Any) -> str:
        """Submit a request that must be accepted. Return its id."""
        body = {"model_input": input, **more}
        if hook:
            body["webhook_endpoint"] = self.receiver.url
        status, answer = await self.ask("POST", f"{self.path}/{where}/async_predict", body)
        assert status == 201, answer
        assert list(answer) == ["request_id"]
        self.submitted.append(answer["request_id"])
        return str(answer["request_id"])

    async def state(self, id: str) -> Any:
        status, state = await self.ask("GET", f"/async_request/{id}")
        assert status == 200, state
        return state

    async def cancel(self, id: str) -> Any:
        status, answer = await self.ask("DELETE", f"/async_request/{id}")
        assert status == 200, answer
        return answer

    async def until_status(self, id: str, *statuses: str) -> Any:
        async def look() -> Any:
            state = await self.state(id)
            return state if state["status"] in statuses else None

        return await self.stage.until(look, f"{id} is {statuses}")

    async def until_ended(self, id: str) -> Any:
        return await self.until_status(id, *ENDED)

    async def until_running(self, count: int) -> None:
        async def look() -> bool:
            return self.model.running >= count

        await self.stage.until(look, f"{count} requests run")

    async def until_received(self, id: str, count: int = 1) -> list[ReceivedMessage]:
        async def look() -> Any:
            messages = self.receiver.by_id().get(id, [])
            return messages if len(messages) >= count else None

        return list(await self.stage.until(look, f"{count} messages of {id}"))

    async def figures(self, where: str = "production") -> Any:
        status, answer = await self.ask("GET", f"{self.path}/{where}/async_queue_status")
        assert status == 200, answer
        return answer

    async def fill(self, count: int) -> list[str]:
        """Submit as many requests as the deployment's bound allows; they run until the model's `release`."""
        ids = [await self.submit({"wait": True}) for _ in range(count)]
        await self.until_running(count)
        return ids

    async def replicas(self, *urls: str) -> None:
        await self.stage.operator.call("PUT", f"{self.deployment_path}/replicas", {"replicas": list(urls)})

    async def ended(self) -> list[Any]:
        """The final states of all that were submitted."""
        return [await self.until_ended(id) for id in self.submitted]
