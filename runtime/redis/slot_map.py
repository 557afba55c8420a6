"""The map from the hash slots of a Redis to the servers that own them. No I/O.

A primary that sentinels watch is a map with one owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ClusterDownError

from runtime.redis.slots import SLOTS, Place, slot_of, slot_ranges

ONLY = Place("", 0)
"""The server of a URL that names one."""


@dataclass(slots=True)
class SlotMap:
    """`owners`: the primary of each slot. `nodes`: all servers that were named, replicas too."""

    owners: list[Place | None]
    nodes: frozenset[Place]

    @classmethod
    def of_primary(cls, primary: Place) -> "SlotMap":
        return cls([primary] * SLOTS, frozenset((primary,)))

    @classmethod
    def of_cluster(cls, reply: Sequence[Any], source: Place) -> "SlotMap":
        """`reply`: of CLUSTER SLOTS, from the node `source`, whose host it leaves out if the node does not know it."""
        owners: list[Place | None] = [None] * SLOTS
        nodes = set[Place]()
        for first, last, servers in slot_ranges(reply, source):
            owners[first : last + 1] = [servers[0]] * (last + 1 - first)
            nodes.update(servers)
        return cls(owners, frozenset(nodes))

    @property
    def primaries(self) -> list[Place]:
        """Return the primaries in the order of their slots."""
        return list(dict.fromkeys(owner for owner in self.owners if owner is not None))

    @property
    def uncovered(self) -> int:
        """Slots that nobody serves."""
        return self.owners.count(None)

    def owner(self, key: str) -> Place:
        """Raises `ClusterDownError`, as a node answers. redis-py's `SlotNotCoveredError` is no `RedisError`."""
        slot = slot_of(key.encode())
        owner = self.owners[slot]
        if owner is None:
            raise ClusterDownError(f"no node of the cluster serves slot {slot}")
        return owner

    def move(self, slot: int, owner: Place) -> None:
        """A node said so."""
        self.owners[slot] = owner
        self.nodes |= {owner}
