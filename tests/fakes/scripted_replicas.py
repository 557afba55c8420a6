"""Replicas whose every answer a test scripts. `replicas.py` has the real rules of assignment."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.capacity.call_load import Load
from proxy.replicas.replica_calls import BackgroundCall, CallEnded, Wanted

Step = str | Exception | asyncio.Event


@dataclass
class ScriptedCall:
    replicas: "ScriptedReplicas"
    request: Wanted
    events: list[str] = field(default_factory=list)
    waited_s: float = 0.0
    ends: list[CallEnded] = field(default_factory=list)

    async def assigned(self) -> str:
        while True:
            step = self.replicas.script.popleft()
            if isinstance(step, asyncio.Event):
                self.replicas.wait_start.set()
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                return step

    def answered(self) -> None:
        self.events.append("answered")

    def unreachable(self) -> None:
        self.events.append("unreachable")

    def reset(self) -> None:
        self.events.append("reset")

    def end(self, ended: CallEnded) -> None:
        self.ends.append(ended)


@dataclass
class ScriptedReplicas:
    """`script`: what calls are told, in order: a base URL, a refusal, or an event to wait for."""

    script: deque[Step] = field(default_factory=deque)
    calls: list[ScriptedCall] = field(default_factory=list)
    woken: list[Wanted] = field(default_factory=list)
    wake_failure: Exception | None = None
    wait_start: asyncio.Event = field(default_factory=asyncio.Event)

    def will(self, *steps: Step) -> None:
        self.script.extend(steps)

    def begin(self, request: Wanted, load: Load) -> ScriptedCall:
        self.calls.append(ScriptedCall(self, request))
        return self.calls[-1]

    def begin_background(self, request: Wanted, listener: Callable[[bool], None]) -> BackgroundCall:
        raise AssertionError("only the async worker begins one")

    async def wake(self, request: Wanted) -> None:
        if self.wake_failure is not None:
            raise self.wake_failure
        self.woken.append(request)
