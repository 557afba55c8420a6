"""Callers that make asynchronous requests of every kind, look them up until they end, and record all they are told."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.journeys.async_requests.chaos_faults import FINAL, MISSING, Request, Seen
from tests.journeys.product import Product

CALLERS = 4
LOOK_EVERY_S = 1.2
"""A workspace may look up 100 times a second."""
DONE_AFTER = 2
"""A request is looked up no more when it was seen to have ended so often."""
BAD = ("500", "502", "503", "504", "hang up", "cut short")
FINAL_ANSWERS = ("400", "404", "422", "501")


@dataclass(frozen=True, slots=True)
class Lane:
    """A deployment to ask: "wide", "narrow" or "parked". `path` of its environment."""

    name: str
    path: str


@dataclass
class AsyncCallers:
    """Each makes one request after the other until `stop`."""

    session: aiohttp.ClientSession
    product: Product
    key: str
    webhook: str
    lanes: Sequence[Lane]
    rng: random.Random
    requests: list[Request] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _looking: set[asyncio.Task[None]] = field(default_factory=set)
    _is_stopping: bool = False

    def start(self) -> None:
        self._tasks = {asyncio.create_task(self._ask_until_stopped()) for _ in range(CALLERS)}

    async def stop(self) -> None:
        """Return when the last request is answered. They are looked up further."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    @property
    def open(self) -> list[Request]:
        return [request for request in self.requests if request.accepted and not request.final]

    async def all_ended(self) -> bool:
        for task in [task for task in self._looking if task.done()]:
            self._looking.discard(task)
            task.result()
        return not self.open

    async def look_once_more(self) -> None:
        """Look up every request again: an end is for ever."""
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        for request in self.requests:
            if request.accepted:
                count = len(request.states)
                while len(request.states) == count:
                    await self._look(request)
                    await asyncio.sleep(0.012)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Call the proxy. The status is 0 without an answer."""
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            async with self.session.request(method, self.product.proxy + path, json=body, headers=headers) as answer:
                return answer.status, await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, None

    async def _ask_until_stopped(self) -> None:
        while not self._is_stopping:
            status = await self._make_one()
            await asyncio.sleep(self.rng.uniform(0.2, 0.7) if status else self.rng.uniform(0.5, 1.5))

    async def _make_one(self) -> int:
        (lane,) = self.rng.choices(self.lanes, (75, 20, 5))
        request, body = self._new(lane.name)
        self.requests.append(request)
        status, answer = await self.ask("POST", lane.path + "/async_predict", body)
        request.answered = status
        if request.accepted:
            request.id = answer["request_id"]
            self._looking.add(asyncio.create_task(self._look_until_ended(request)))
            if self.rng.random() < 0.1:
                self._looking.add(asyncio.create_task(self._cancel(request, self.rng.uniform(0, 1.5))))
        return status

    def _new(self, lane: str) -> tuple[Request, dict[str, Any]]:
        rng = self.rng
        attempts = self.rng.choice((1, 2, 3, 3, 4))
        do = [rng.choice(BAD) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 4)))]
        do.append(rng.choice(("ok", "ok", "ok", "ok", "text", rng.choice(FINAL_ANSWERS))))
        seconds = rng.choice((0.0, 0.0, 0.05, 0.5, 1.0, 3.0)) if lane == "wide" else rng.uniform(0.2, 0.6)
        model_input = {"n": len(self.requests), "do": do, "s": seconds, "bytes": rng.choice((0, 10, 1000, 700_000))}
        body: dict[str, Any] = {"model_input": model_input, "priority": rng.choice((0, 1, 2))}
        body["max_time_in_queue_seconds"] = rng.choice((10, 300)) if lane == "wide" else rng.choice((10, 15))
        body["inference_retry_config"] = {
            "max_attempts": attempts,
            "initial_delay_ms": rng.choice((0, 50, 400)),
            "max_delay_ms": rng.choice((0, 500)),
        }
        webhook = rng.random() < 0.6
        if webhook:
            body["webhook_endpoint"] = self.webhook
        return Request(model_input, attempts, webhook, time.time()), body

    async def _cancel(self, request: Request, after_s: float) -> None:
        await asyncio.sleep(after_s)
        status, answer = await self.ask("DELETE", f"/async_request/{request.id}")
        if status == 200:
            request.canceled = answer["canceled"]

    async def _look_until_ended(self, request: Request) -> None:
        while sum(one.status in FINAL for one in request.states) < DONE_AFTER:
            await asyncio.sleep(LOOK_EVERY_S * self.rng.uniform(0.5, 1.5))
            with contextlib.suppress(KeyError):
                await self._look(request)

    async def _look(self, request: Request) -> None:
        status, answer = await self.ask("GET", f"/async_request/{request.id}")
        if status == 200:
            errors = tuple(error["code"] for error in answer["errors"])
            request.states.append(Seen(time.time(), answer["status"], errors))
        elif status == 404:
            request.states.append(Seen(time.time(), MISSING))
