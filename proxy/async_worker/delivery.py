"""Tells webhooks how asynchronous requests ended: takes due deliveries from the queue, keeps them, records the result.

At least once: a delivery whose process dies is taken by another one when its lease ends, with the same id.

See docs/reference/events-and-webhooks.md#results-of-asynchronous-requests.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Protocol

from proxy.async_requests.deliveries import without_answer
from proxy.async_requests.queues import DeliveryQueue, QueueUnavailableError
from proxy.async_requests.requests import Delivery
from proxy.async_requests.states import Status
from proxy.async_worker.delivery_slots import DeliverySlots
from proxy.async_worker.leases import Leases
from proxy.parts import AsyncMeters

RETRY_S = 0.25
"""Time between two attempts to record a result while the queue does not answer."""
log = logging.getLogger(__name__)


class AnswerLostError(Exception):
    """Part of the model's answer is not in the queue."""


class Teller(Protocol):
    """Makes one try."""

    async def tell(self, delivery: Delivery) -> str:
        """Send a delivery. Returns why the webhook has not accepted it, for the log; empty if it has.

        Raises `AnswerLostError`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryParts:
    """The parts that deliveries work with. `again_in_ms`: when to try again after a try that has
    failed now; None to give up.

    `lost_after_s`: what is missing of an answer for so long is lost. After a crash of Redis, whoever stored it just
    before stores it again.
    """

    queue: DeliveryQueue
    teller: Teller
    counts: AsyncMeters
    again_in_ms: Callable[[Delivery], int | None]
    clock: Callable[[], float] = monotonic
    lost_after_s: float = 15.0


class Deliveries:
    """One process's deliveries. `holder`: its incarnation. Whoever sweeps the queue calls `due`."""

    def __init__(self, parts: DeliveryParts, holder: str) -> None:
        self._parts = parts
        self._holder = holder
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._slots = DeliverySlots()
        self._under_way: dict[Delivery, asyncio.Task[None]] = {}
        self._leases: Leases[Delivery] = Leases(parts.queue.renew_deliveries, parts.clock)
        self._runs = self._drains = False

    def due(self, workspace_id: str) -> None:
        """The workspace has deliveries that are due, or may have."""
        self._due[workspace_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled. What is under way then is left to its lease: call `drain` before."""
        self._runs = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._leases.run())
                group.create_task(self._take_for_ever())
        finally:
            self._runs = False
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def drain(self, timeout_s: float) -> None:
        """Take no more, let what is under way end, and hand the rest back. `run` must still run."""
        self._drains = True
        unsent = self._slots.held()
        for delivery in unsent:
            self._slots.drop(delivery)
        await self._hand_back(unsent)
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=timeout_s)
        rest = dict(self._under_way)
        for task in rest.values():
            task.cancel()
        await asyncio.gather(*rest.values(), return_exceptions=True)
        await self._hand_back(rest)

    async def _hand_back(self, deliveries: Iterable[Delivery]) -> None:
        """Let another process try at once. This try is used up."""
        for delivery in deliveries:
            self._leases.release(delivery)
            with contextlib.suppress(QueueUnavailableError):  # it is taken back when its lease ends
                await self._parts.queue.undelivered(delivery, 0)

    # --- taking -------------------------------------------------------------------------------------------------------

    async def _take_for_ever(self) -> None:
        self._start_released()
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._claim()

    async def _claim(self) -> None:
        """Take deliveries while there is room, one of each workspace in turn."""
        try:
            while await self._take_round():
                pass
        except QueueUnavailableError:
            self._due.clear()  # the next sweep that succeeds tells again
        except Exception:  # a bug must not stop all deliveries
            self._due.clear()
            log.exception(
                "Taking deliveries failed unexpectedly; they continue with the next sweep. Please report this."
            )

    async def _take_round(self) -> bool:
        """Take at most one delivery of each workspace. Returns whether any was taken."""
        has_any = False
        for workspace_id in list(self._due):
            if self._drains or not self._slots.may_take(workspace_id):
                continue
            asked_at = self._parts.clock()
            delivery = await self._parts.queue.next_delivery(workspace_id, self._holder)
            if delivery is None:
                self._due.pop(workspace_id, None)
            else:
                self._leases.hold(delivery, asked_at, partial(self._lost, delivery))
                if self._slots.begin(delivery):
                    self._start(delivery)
                has_any = True
        return has_any

    def _lost(self, delivery: Delivery) -> None:
        """Stop a delivery that another process has, or may have."""
        if (task := self._under_way.get(delivery)) is not None:
            task.cancel()
        else:
            self._slots.drop(delivery)

    def _start(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._deliver(delivery))
        self._under_way[delivery] = task
        task.add_done_callback(partial(self._ended, delivery))

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        del self._under_way[delivery]
        self._slots.end(delivery)
        self._leases.release(delivery)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "A bug broke the delivery of %s; retrying. Please report this.", delivery.request_id, exc_info=error
            )
        if self._runs and not self._drains:
            self._start_released()
            self._wake.set()

    def _start_released(self) -> None:
        for waited in self._slots.released():
            self._start(waited)

    # --- delivering ---------------------------------------------------------------------------------------------------

    async def _deliver(self, delivery: Delivery) -> None:
        queue = self._parts.queue
        counts = self._parts.counts
        began = self._parts.clock()
        try:
            trouble = await self._tell_twice(delivery)
        except AnswerLostError:
            log.error(
                "Redis has lost the answer of %s; its webhook is told a failure. Use appendfsync always or replicas to"
                " avoid it.",
                delivery.request_id,
            )
            if not await _until_recorded(partial(queue.answer_lost, delivery)):
                return
            delivery = without_answer(delivery)
            trouble = await self._parts.teller.tell(delivery)
        aged = replace(delivery, age_ms=delivery.age_ms + int((self._parts.clock() - began) * 1000))
        again_in_ms = self._parts.again_in_ms(aged) if trouble else None
        if not await _until_recorded(
            partial(queue.undelivered, delivery, again_in_ms) if trouble else partial(queue.delivered, delivery)
        ):
            return
        if not trouble:
            counts.delivery("delivered")
            counts.request_ended(delivery.deployment, delivery.status)
        elif again_in_ms is not None:
            counts.delivery("failed")
        else:
            counts.delivery("given_up")
            counts.request_ended(delivery.deployment, Status.WEBHOOK_FAILED)
            log.info(
                "The webhook of %s was given up after %d tries (%s); the request is WEBHOOK_FAILED. Check its"
                " receiver.",
                *(delivery.request_id, delivery.attempt, trouble),
            )

    async def _tell_twice(self, delivery: Delivery) -> str:
        """Send a delivery; if a part of its answer is missing, wait and try once more."""
        try:
            return await self._parts.teller.tell(delivery)
        except AnswerLostError:
            await asyncio.sleep(self._parts.lost_after_s)
            return await self._parts.teller.tell(delivery)


async def _until_recorded(write: Callable[[], Awaitable[bool]]) -> bool:
    """Return whether this process still had the delivery. Retries until the queue answers or the lease ends."""
    while True:
        try:
            return await write()
        except QueueUnavailableError:
            await asyncio.sleep(RETRY_S)
