"""Puts the workers' questions for replicas to the switchboard, and sends its answers: the supervisor's end.

Arms the switchboard's timer. Waking goes to control through `waker`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Protocol

from policy.deployments import Where
from proxy.edges.policy.supervisor.model_rows import ModelChange
from proxy.edges.process.channel import Message
from proxy.errors import PolicyUnavailableError
from proxy.replicas.replica_calls import CallEnded, Wanted
from proxy.replicas.supervisor.platform_call import CallId, WaitsFor, Why
from proxy.replicas.supervisor.switchboard import Clocks, Models, Switchboard

log = logging.getLogger(__name__)


class Waker(Protocol):
    """Tells control that a deployment is wanted."""

    async def wake(self, model_id: str, deployment_id: str) -> bool:
        """Return whether control has taken it on. Does not raise."""
        ...


class NoWaker:
    """A `Waker` without a way to control: nothing can be woken."""

    async def wake(self, model_id: str, deployment_id: str) -> bool:
        return False


class ReplicaAnswers:
    """`send(slot, message)` reaches the worker in that slot. `switchboard` is the one of this machine."""

    def __init__(self, models: Models, send: Callable[[int, Message], None]) -> None:
        self.waker: Waker = NoWaker()
        self._send = send
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakes: dict[str, asyncio.Task[bool]] = {}
        """Wakes that control is being told of, by deployment. Callers share one: a flood of them is one report."""
        clocks = Clocks(time.monotonic, lambda: time.time_ns() // 1_000_000)
        self.switchboard = Switchboard(models, self, clocks, SystemRandom().randrange)

    def models_changed(self, changes: Sequence[ModelChange]) -> None:
        """A `Listener` of `ModelRows`: parked calls start within this call."""
        self.switchboard.policy_changed([change.id for change in changes])

    def received(self, slot: int, message: Message) -> None:
        """Take a worker's message about replicas. A bug of ours fails one call, not the whole channel."""
        try:
            self._handle(slot, message)
        except Exception:
            log.exception(
                "A message of worker %d about replicas failed; its call is refused. Please report this bug.", slot
            )
            self._send(slot, {"is": "refused", "number": message["number"], "why": "bug"})

    def _handle(self, slot: int, message: Message) -> None:
        id = (slot, message["number"])
        board = self.switchboard
        match message["is"]:
            case "ask":
                board.ask(id, _wanted(message), frozenset(message["avoid"]))
            case "outcome":
                {"answered": board.answered, "reset": board.reset, "unreachable": board.unreachable}[message["event"]](
                    id
                )
            case "ended":
                board.ended(id, CallEnded(**message["call"]) if message["call"] is not None else None)
            case "wake":
                task = asyncio.ensure_future(self._wake(id, _wanted(message)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    # The switchboard's answers.

    def assigned(self, id: CallId, url: str) -> None:
        self._send(id[0], {"is": "replica", "number": id[1], "url": url})

    def waits(self, id: CallId, what: WaitsFor) -> None:
        self._send(id[0], {"is": "waits", "number": id[1], "for": what.value})

    def refused(self, id: CallId, why: Why) -> None:
        self._send(id[0], {"is": "refused", "number": id[1], "why": why.value})

    def wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - time.monotonic()), self.switchboard.woke_up)

    async def _wake(self, id: CallId, request: Wanted) -> None:
        try:
            target = self.switchboard.find(request)
        except PolicyUnavailableError:
            self.refused(id, Why.NO_POLICY)
            return
        if target is None:
            self.refused(id, Why.NO_MODEL)
            return
        model, deployment = target
        telling = self._wakes.get(deployment.id)
        if telling is None:
            telling = asyncio.ensure_future(self.waker.wake(model.id, deployment.id))
            self._wakes[deployment.id] = telling
            telling.add_done_callback(lambda _: self._wakes.pop(deployment.id))
        ok = await telling
        self._send(id[0], {"is": "woken", "number": id[1], "ok": ok})


def _wanted(message: Message) -> Wanted:
    where = Where(message["environment"], message["deployment"])
    return Wanted(message["workspace"], message["model"], where, message["turn"], message["background"])
