"""The queue in memory with scripted failures, for tests of those who ask it."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from time import time
from typing import Any, TypeVar

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Cancellation, DeploymentRef, NewRequest, QueueFigures, RequestState
from tests.fakes.async_queue import FakeAsyncQueue

Step = Exception | asyncio.Event
Result = TypeVar("Result")


class FailingAsyncQueue(FakeAsyncQueue):
    """Each step of `will` is for one call: an exception is raised, an event keeps the call waiting until it is set.

    After the script, calls succeed. `takes_effect`: calls that fail were executed all the same.
    """

    def __init__(self, takes_effect: bool = False) -> None:
        super().__init__(lambda: int(time() * 1000))
        self.takes_effect = takes_effect
        self.calls: list[str] = []
        self.accepted: dict[str, NewRequest] = {}
        """The accepted requests by id."""
        self.parks: list[bool] = []
        self.asked_for: list[DeploymentRef] = []
        self.wait_start = asyncio.Event()
        self._script: deque[Step] = deque()

    def will(self, *steps: Step) -> None:
        self._script.extend(steps)

    async def submit(self, request: NewRequest, parks: bool) -> None:
        self.parks.append(parks)
        await self._called("submit", super().submit(request, parks))
        self.accepted[request.id] = request

    async def state(self, workspace_id: str, request_id: str) -> RequestState | None:
        return await self._called("state", super().state(workspace_id, request_id))

    async def cancel(self, workspace_id: str, request_id: str) -> Cancellation | None:
        return await self._called("cancel", super().cancel(workspace_id, request_id))

    async def figures(self, deployment: DeploymentRef) -> QueueFigures:
        self.asked_for.append(deployment)
        return await self._called("figures", super().figures(deployment))

    async def _called(self, name: str, call: Coroutine[Any, Any, Result]) -> Result:
        self.calls.append(name)
        step = self._script.popleft() if self._script else None
        if step is None or self.takes_effect:
            answer = await call
        else:
            call.close()
        if step is None:
            return answer
        if isinstance(step, Exception):
            raise step
        self.wait_start.set()
        await step.wait()
        raise QueueUnavailableError
