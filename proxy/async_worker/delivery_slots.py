"""Slots for deliveries. A receiver that hangs delays its own deliveries and hardly any others.

A workspace may have a quarter as many under way as there are free slots, and a receiver half as many as its workspace
has left. So one alone gets a fair number, and however many hang, the next one finds a slot.
"""

from collections import Counter, deque
from collections.abc import Iterator
from urllib.parse import urlsplit

from proxy.async_requests.requests import Delivery

SLOTS = 128
MAX_HELD = 512
"""Most deliveries of a workspace that may wait here for their receiver, while others of the workspace pass them."""
_PART_OF_FREE = 4
_PART_OF_WORKSPACE = 2

Receiver = tuple[str, str]
"""A workspace and the host that it has told. Another workspace that names the same host has its own lane."""


class DeliverySlots:
    """The deliveries that this process has taken from the queue. They are under way, or wait for their receiver."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._workspaces: Counter[str] = Counter()
        self._receivers: Counter[Receiver] = Counter()
        self._queues: dict[str, deque[Delivery]] = {}

    def may_take(self, workspace_id: str) -> bool:
        """Return whether another delivery of the workspace may be taken from the queue."""
        return self._room(workspace_id) > 0 and len(self._queues.get(workspace_id, ())) < MAX_HELD

    def begin(self, delivery: Delivery) -> bool:
        """Give a delivery from the queue a slot. Returns False if there is none: then it waits here."""
        if self._try(delivery):
            return True
        self._queues.setdefault(delivery.deployment.workspace_id, deque()).append(delivery)
        return False

    def end(self, delivery: Delivery) -> None:
        """Free the slot of a delivery."""
        workspace_id = delivery.deployment.workspace_id
        receiver = receiver_of(delivery)
        self._workspaces[workspace_id] -= 1
        self._receivers[receiver] -= 1
        if not self._workspaces[workspace_id]:
            del self._workspaces[workspace_id]
        if not self._receivers[receiver]:
            del self._receivers[receiver]

    def drop(self, delivery: Delivery) -> None:
        """Remove a waiting delivery: another process has it."""
        workspace_id = delivery.deployment.workspace_id
        queue = self._queues[workspace_id]
        queue.remove(delivery)
        if not queue:
            del self._queues[workspace_id]

    def released(self) -> Iterator[Delivery]:
        """Deliveries that waited and have begun now, the oldest of each workspace first."""
        for workspace_id in list(self._queues):
            for delivery in list(self._queues[workspace_id]):
                if self._room(workspace_id) <= 0:
                    break
                if self._try(delivery):
                    self.drop(delivery)
                    yield delivery

    def held(self) -> list[Delivery]:
        """Return the deliveries that wait."""
        return [delivery for queue in self._queues.values() for delivery in queue]

    def _try(self, delivery: Delivery) -> bool:
        workspace_id = delivery.deployment.workspace_id
        receiver = receiver_of(delivery)
        room = self._room(workspace_id)
        if room <= 0 or self._receivers[receiver] >= max(1.0, room / _PART_OF_WORKSPACE):
            return False
        self._workspaces[workspace_id] += 1
        self._receivers[receiver] += 1
        return True

    def _room(self, workspace_id: str) -> float:
        """Return how many more deliveries of the workspace may begin; the first one needs only a free slot."""
        free = self._slots - self._workspaces.total()
        if free <= 0:
            return 0
        under_way = self._workspaces[workspace_id]
        return max(free / _PART_OF_FREE - under_way, 0 if under_way else 1)


def receiver_of(delivery: Delivery) -> Receiver:
    return delivery.deployment.workspace_id, urlsplit(delivery.webhook_endpoint).netloc.lower()
