"""Asks the supervisor for replicas over the worker's channel: the stages' `Replicas`.

A call that leaves while it waits frees its place at once: `end` tells the supervisor. Every wait for an answer has a
timer.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from time import perf_counter
from typing import Protocol

from proxy.capacity.call_load import Load
from proxy.edges.process.channel import Message
from proxy.errors import PolicyUnavailableError
from proxy.refusals import NoModelReplicaError, NoSuchModelError, NotRoutedError, ShedError
from proxy.replicas.replica_calls import CallEnded, Wanted

ANSWER_TIMEOUT_S = 5.0
"""Seconds in which the supervisor must say that a call has a replica, or waits for one. Then the answer is 503."""
ANSWERED_WITHIN_S = 0.01
"""The longest delay of the news of an answer. It only resets a circuit breaker; short calls end meanwhile."""


class SupervisorFailedError(Exception):
    """The supervisor failed to find a replica; its log has the traceback. A bug of ours (502)."""


REFUSALS: Mapping[str, type[Exception]] = {
    "no_model": NoSuchModelError,
    "no_replica": NoModelReplicaError,
    "not_routed": NotRoutedError,
    "full": ShedError,
    "no_policy": PolicyUnavailableError,
    "bug": SupervisorFailedError,
}


class Line(Protocol):
    """The channel to the supervisor. Satisfied by `SupervisorLink`."""

    on_replicas: Callable[[Message], None]
    """Takes each message about replicas."""

    def send(self, message: Message, within_s: float = 0.0) -> None:
        """Send a message. `within_s`: how long it may be held back, to leave with another one."""
        ...


@dataclass(frozen=True, slots=True)
class WaitingTimes:
    """The longest times for which a call may be parked (500 after that), and may wait for its turn (529)."""

    parked_s: float = 1200.0
    queued_s: float = 1200.0


class ReplicaRequests:
    """The worker's `Replicas`."""

    def __init__(self, line: Line, times: WaitingTimes) -> None:
        self.times = times
        self._line = line
        self._numbers = count(1)
        self._calls: dict[int, _RequestedReplica] = {}
        self._wakes: dict[int, asyncio.Future[bool]] = {}
        self.ends_waits = False
        """True once `end_waits` was called."""
        line.on_replicas = self._received

    def begin(self, request: Wanted, load: Load) -> "_RequestedReplica":
        return _RequestedReplica(self, next(self._numbers), request, load)

    def begin_background(self, request: Wanted, listener: Callable[[bool], None]) -> "_BackgroundReplica":
        """Begin a background call. `listener` gets whether a replica is healthy, each time that its wait changes.

        The call takes nothing of the worker's capacity, and waits for as long as its caller does.
        """
        return _BackgroundReplica(self, next(self._numbers), request, listener)

    async def wake(self, request: Wanted) -> None:
        number = next(self._numbers)
        self._wakes[number] = answer = asyncio.get_running_loop().create_future()
        self._line.send(_message("wake", number, request))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                woken = await answer
        except TimeoutError:
            woken = False
        finally:
            del self._wakes[number]
        if not woken:
            raise PolicyUnavailableError("control could not be told to wake the deployment")

    def end_waits(self) -> None:
        """Answer every call that waits for a replica, and each that would have to: this worker is about to stop."""
        self.ends_waits = True
        for call in self._calls.values():
            call.end_wait()

    def ask(self, call: "_RequestedReplica", number: int, message: Message) -> None:
        self._calls[number] = call
        self._line.send(message)

    def tell(self, message: Message, within_s: float = 0.0) -> None:
        self._line.send(message, within_s)

    def no_longer_waits(self, number: int) -> None:
        del self._calls[number]

    def _received(self, message: Message) -> None:
        number = message["number"]
        if (wake := self._wakes.get(number)) is not None:
            _answer_wake(wake, message)
        elif (call := self._calls.get(number)) is not None:  # else it has left meanwhile
            call.received(message)


class _RequestedReplica:
    """One call: the stages' `ReplicaCall`."""

    __slots__ = (
        *("_answer", "_avoid", "_ended", "_has_asked", "_load", "_number", "_parked", "_parked_until", "_queued_until"),
        *("_request", "_requests", "_timer", "_url", "_waits_since", "waited_s"),
    )

    def __init__(self, requests: ReplicaRequests, number: int, request: Wanted, load: Load | None) -> None:
        self._requests = requests
        self._number = number
        self._request = request
        self._load = load
        self._url: str | None = None
        self._avoid: list[str] = []
        self._has_asked = self._ended = self._parked = False
        self._parked_until = self._queued_until = 0.0
        self._waits_since: float | None = None
        self._answer: asyncio.Future[str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.waited_s = 0.0

    async def assigned(self) -> str:
        if self._url is not None:  # it has one already: the call is put to it in another form
            return self._url
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._timer = loop.call_later(ANSWER_TIMEOUT_S, self._give_up, NoModelReplicaError())
        self._has_asked = True
        self._requests.ask(self, self._number, _message("ask", self._number, self._request, avoid=self._avoid))
        try:
            self._url = await self._answer
        finally:
            self._stop_waiting()
        return self._url

    def answered(self) -> None:
        self._tell_outcome("answered", ANSWERED_WITHIN_S)

    def reset(self) -> None:
        self._tell_outcome("reset")

    def unreachable(self) -> None:
        if self._url is not None:
            self._avoid.append(self._url)
            self._url = None
        self._tell_outcome("unreachable")

    def end(self, ended: CallEnded) -> None:
        self._tell_end(asdict(ended))

    def _tell_end(self, call: Message | None) -> None:
        if self._has_asked and not self._ended:
            self._ended = True
            message = {"is": "ended", "number": self._number, "call": call}
            # A connection that was given up closes in the next turn of the loop: not before is the replica free.
            asyncio.get_running_loop().call_soon(self._requests.tell, message)

    def received(self, message: Message) -> None:
        """Take an answer of the supervisor, while the call waits for one."""
        assert self._answer is not None
        if self._answer.done():  # given up in this turn of the loop; `end` returns what was assigned
            return
        match message["is"]:
            case "replica":
                self._answer.set_result(message["url"])
            case "refused":
                self._answer.set_exception(REFUSALS[message["why"]]())
            case "waits":
                self._waits(message["for"])

    def _waits(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._waits_since is None:
            self._waits_since = perf_counter()
        if what == "replica":
            if not self._park():
                return
            self._parked_until = self._parked_until or now + self._requests.times.parked_s
            self._set_timer(self._parked_until, NotRoutedError())
        else:
            self._queued_until = self._queued_until or now + self._requests.times.queued_s
            self._set_timer(self._queued_until, ShedError())
        if self._requests.ends_waits:
            self.end_wait()

    def end_wait(self) -> None:
        """Give up as if the time to wait were over; later, if the supervisor has not yet said what this waits for."""
        if self._waits_since is not None:
            self._give_up(NotRoutedError() if self._parked else ShedError())

    def _park(self) -> bool:
        """Count the call as parked until it has a replica. If the worker has no room for it, give up."""
        if not self._parked and self._load is not None:
            try:
                self._load.park()
            except ShedError as error:
                self._give_up(error)
                return False
            self._parked = True
        return True

    def _set_timer(self, at: float, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._give_up, error)

    def _give_up(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _stop_waiting(self) -> None:
        self._requests.no_longer_waits(self._number)
        self._answer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._parked and self._load is not None:
            self._parked = False
            self._load.unpark()
        if self._waits_since is not None:
            self.waited_s += perf_counter() - self._waits_since
            self._waits_since = None

    def _tell_outcome(self, event: str, within_s: float = 0.0) -> None:
        self._requests.tell({"is": "outcome", "number": self._number, "event": event}, within_s)


class _BackgroundReplica(_RequestedReplica):
    """A background call. No timer ends its wait, and it needs no room in its worker."""

    __slots__ = ("_listener",)

    def __init__(
        self, requests: ReplicaRequests, number: int, request: Wanted, listener: Callable[[bool], None]
    ) -> None:
        super().__init__(requests, number, replace(request, background=True), None)
        self._listener = listener

    def withdraw(self) -> None:
        self._tell_end(None)

    def _waits(self, what: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._listener(what == "turn")


def _message(kind: str, number: int, request: Wanted, **more: object) -> Message:
    return {
        "is": kind,
        "number": number,
        "workspace": request.workspace_id,
        "model": request.model_id,
        "environment": request.where.environment,
        "deployment": request.where.deployment_id,
        "turn": request.turn,
        "background": request.background,
        **more,
    }


def _answer_wake(wake: asyncio.Future[bool], message: Message) -> None:
    if wake.done():
        return
    if message["is"] == "refused":
        wake.set_exception(REFUSALS[message["why"]]())
    else:
        wake.set_result(message["ok"])
