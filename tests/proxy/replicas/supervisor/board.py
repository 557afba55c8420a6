"""A switchboard with its policy, its clock and what it said, for conversations in tests."""

from collections.abc import Sequence

from policy.deployments import Deployment, Where
from policy.snapshot import ModelRow
from proxy.errors import PolicyUnavailableError
from proxy.replicas.replica_calls import CallEnded, Wanted
from proxy.replicas.supervisor.platform_call import CallId, WaitsFor, Why
from proxy.replicas.supervisor.switchboard import Clocks, Switchboard

Said = tuple[str, ...]
ENDED = CallEnded(ended_at_ms=1, request_id="r", method="POST", path="/p", status=200, duration_s=0.1)


class Board:
    """The switchboard of a machine; `m1` is its model. Calls of worker 0 are named by their number."""

    def __init__(self) -> None:
        self.models: dict[str, ModelRow] = {}
        self.unreadable = False
        self.now = 100.0
        self.wakes_at: float | None = None
        self.answers: list[tuple[CallId, Said]] = []
        self.loads_changed: list[str] = []
        self.ended_calls: list[tuple[str, str | None]] = []
        self.switchboard = Switchboard(self, self, Clocks(lambda: self.now, lambda: 1000), lambda below: 0)
        self.switchboard.on_load = self.loads_changed.append
        self.switchboard.on_ended = lambda deployment, replica, ended: self.ended_calls.append((deployment, replica))

    # Policy.

    def get(self, model_id: str) -> ModelRow | None:
        if self.unreadable:
            raise PolicyUnavailableError
        return self.models.get(model_id)

    def deploy(self, *deployments: Deployment, **environments: str) -> None:
        """Model `m1` of workspace `w1`. By default `production` points to the first deployment."""
        rows = {one.id: one for one in deployments}
        self.models["m1"] = ModelRow("m1", "w1", rows, environments or {"production": deployments[0].id})
        self.switchboard.policy_changed(["m1"])

    def delete(self) -> None:
        self.models.clear()
        self.switchboard.policy_changed(["m1"])

    # Workers.

    def ask(self, number: int, turn: str = "g1", **more: str) -> Said | None:
        """Ask for a replica as a call of worker 0; return the immediate answer."""
        where = Where(more.get("environment"), more.get("deployment"))
        want = Wanted(more.get("workspace", "w1"), more.get("model", "m1"), where, turn)
        return self._after(number, lambda id: self.switchboard.ask(id, want))

    def ask_again(self, number: int, *avoid: str, turn: str = "g1") -> Said | None:
        want = Wanted("w1", "m1", Where(), turn)
        return self._after(number, lambda id: self.switchboard.ask(id, want, frozenset(avoid)))

    def unreachable(self, number: int) -> None:
        self.switchboard.unreachable((0, number))

    def answered(self, number: int) -> None:
        self.switchboard.answered((0, number))

    def reset(self, number: int) -> None:
        self.switchboard.reset((0, number))

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.switchboard.ended((0, number), ENDED)

    def _after(self, number: int, act: object) -> Said | None:
        before = len(self.answers)
        act((0, number))  # type: ignore[operator] # one of the two functions above
        messages = [message for id, message in self.answers[before:] if id == (0, number)]
        return messages[-1] if messages else None

    # Answers.

    def assigned(self, id: CallId, url: str) -> None:
        self.answers.append((id, ("replica", url)))

    def waits(self, id: CallId, what: WaitsFor) -> None:
        self.answers.append((id, ("waits", what.value)))

    def refused(self, id: CallId, why: Why) -> None:
        self.answers.append((id, ("refused", why.value)))

    def wake_at(self, at: float | None) -> None:
        self.wakes_at = at

    # The clock, and what was said.

    def wait(self, seconds: float) -> None:
        """Time passes; the timer fires when it is due."""
        until = self.now + seconds
        while self.wakes_at is not None and self.wakes_at <= until:
            self.now = max(self.now, self.wakes_at)
            self.switchboard.woke_up()
        self.now = until

    def last(self, number: int) -> Said:
        """Return the last message to this call."""
        return [message for id, message in self.answers if id == (0, number)][-1]

    def started(self, numbers: Sequence[int]) -> list[int]:
        """Return the calls that were assigned a replica, in the order of their assignment."""
        return [id[1] for id, message in self.answers if message[0] == "replica" and id[1] in numbers]

    def figures(self, deployment_id: str = "d1") -> tuple[int, int, int]:
        """Return how many calls are in flight, queued and parked."""
        [load] = [load for load in self.switchboard.loads() if load.deployment_id == deployment_id]
        return load.in_flight, load.queued, load.parked

    def healthy(self, deployment_id: str = "d1") -> tuple[str, ...]:
        [load] = [load for load in self.switchboard.loads() if load.deployment_id == deployment_id]
        return load.healthy
