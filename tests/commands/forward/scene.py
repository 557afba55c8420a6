"""A forwarder over a list in memory, with its real state file, that can die at any step."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands.edges.forwarding.forwarder_state import ForwarderState, opened
from commands.forward.event_batches import EventList
from commands.forward.forwarder import DeadLetters, Forwarder, Options
from commands.forward.retries import Retries
from commands.records.billing_events import Event
from commands.records.progress import Progress
from commands.records.receiver import Receiver, Recovery, RefusedEvent
from tests.fakes.listed_events import START_MS, ListedEvents, time_text

START = time_text(START_MS)


class DiedError(Exception):
    """The process is killed here."""


@dataclass
class Steps:
    """Counts the steps of a forwarder that reach the world; kills it before step `dies_before`."""

    dies_before: int | None = None
    count: int = 0

    def step(self) -> None:
        if self.count == self.dies_before:
            raise DiedError
        self.count += 1


class MortalState:
    """The real state. Each save is a step before it and a step after it."""

    def __init__(self, state: ForwarderState, steps: Steps) -> None:
        self._state = state
        self._steps = steps

    @property
    def progress(self) -> Progress:
        return self._state.progress

    def known(self, keys: Sequence[str]) -> set[str]:
        return self._state.known(keys)

    def save(self, progress: Progress, delivered: Iterable[str] = ()) -> None:
        self._steps.step()
        self._state.save(progress, delivered)
        self._steps.step()

    def note_doubt(self, since_s: float | None) -> None:
        self._steps.step()
        self._state.note_doubt(since_s)


class MortalReceiver:
    """A receiver whose `deliver` is followed by a step."""

    def __init__(self, receiver: Receiver, steps: Steps) -> None:
        self._receiver = receiver
        self._steps = steps
        self.batch_events = receiver.batch_events
        self.remembers_s = receiver.remembers_s

    def recover(self, mark: int | None) -> Recovery | None:
        return self._receiver.recover(mark)

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        result = await self._receiver.deliver(events)
        self._steps.step()
        return result

    async def close(self) -> None:
        await self._receiver.close()


@dataclass
class Scene:
    """A list, a state file, and runs of forwarders over them. `receiver` makes the receiver of a run."""

    folder: Path
    client: ListedEvents
    receiver: Callable[[], Receiver]
    purpose: dict[str, Any] = field(default_factory=lambda: {"to": "test"})
    dead_letters: Callable[[], DeadLetters] | None = None
    messages: list[str] = field(default_factory=list)
    retry_for_s: float = 30.0
    details: bool = False

    @property
    def state_path(self) -> Path:
        return self.folder / "forward.state"

    @contextmanager
    def opened(self) -> Any:
        with opened(self.state_path, self.purpose, START) as state:
            yield state

    async def run(self, steps: Steps | None = None, end: str | None = None, resends: bool = False) -> Progress:
        """One run to the end of what is final. DiedError if `steps` killed it."""
        steps = steps or Steps()
        retries = Retries(self.retry_for_s, self.messages.append, first_delay_s=0.001)
        receiver = self.receiver()
        dead_letters = None if self.dead_letters is None else self.dead_letters()
        options = Options(retries, lambda progress: None, None, dead_letters, resends)
        with self.opened() as state:
            mortal = MortalState(state, steps)
            events = EventList(self.client, retries, end, details=self.details)
            try:
                await Forwarder(events, MortalReceiver(receiver, steps), mortal, options).run()
            finally:
                await receiver.close()
            return mortal.progress

    async def run_dying_everywhere(self) -> int:
        """Run again and again, killed one step later each time, until a run ends. Return how many were killed."""
        for deaths in range(1000):
            try:
                await self.run(Steps(dies_before=deaths % 7))
            except DiedError:
                continue
            return deaths
        raise AssertionError("it never ended")
