"""Replicas for unit tests: the real worker side and the real switchboard, joined by memory in place of a channel."""

import asyncio
from collections.abc import Callable

import orjson

from policy.snapshot import ModelRow
from proxy.edges.process.channel import Message
from proxy.edges.process.replica_requests import ReplicaRequests, WaitingTimes
from proxy.edges.process.supervisor.replica_answers import ReplicaAnswers
from proxy.replicas.supervisor.switchboard import Switchboard
from tests.fakes.directory import FakeDirectory

SLOT = 0


class FakeReplicas(ReplicaRequests):
    """`Replicas` over the models of `directory`. Tell it with `changed` when those change.

    `wait_start` is set once a call has been told that it waits. `messages` are all of them, in both directions.
    """

    def __init__(self, directory: FakeDirectory, times: WaitingTimes | None = None) -> None:
        self.wait_start = asyncio.Event()
        self.messages: list[Message] = []
        self.on_replicas: Callable[[Message], None] = lambda message: None
        self._directory = directory
        self.answers = ReplicaAnswers(self, self._from_supervisor)
        super().__init__(self, times or WaitingTimes())

    @property
    def switchboard(self) -> Switchboard:
        return self.answers.switchboard

    def get(self, model_id: str) -> ModelRow | None:
        """All models, for the switchboard."""
        return self._directory.model(model_id)

    def changed(self) -> None:
        """Policy has changed."""
        self.switchboard.policy_changed(self._directory.models)

    def in_flight(self) -> dict[str, int]:
        """Calls in flight, by deployment."""
        return {load.deployment_id: load.in_flight for load in self.switchboard.loads()}

    def send(self, message: Message, within_s: float = 0.0) -> None:
        asyncio.get_running_loop().call_soon(self.answers.received, SLOT, self._as_sent(message))

    def _from_supervisor(self, slot: int, message: Message) -> None:
        asyncio.get_running_loop().call_soon(self._arrived, self._as_sent(message))

    def _arrived(self, message: Message) -> None:
        self.on_replicas(message)
        if message["is"] == "waits":
            self.wait_start.set()

    def _as_sent(self, message: Message) -> Message:
        copy: Message = orjson.loads(orjson.dumps(message))
        self.messages.append(copy)
        return copy
