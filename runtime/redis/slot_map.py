"""Which server of a Redis serves which hash slot. No I/O.

A primary that sentinels watch is a map with one owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot
from redis.exceptions import SlotNotCoveredError

SLOTS = 16_384
Host = tuple[str, int]
"""Name or address, and port."""
ONLY: Host = ("", 0)
"""The server of a URL that names one."""


@dataclass(slots=True)
class SlotMap:
    """`owners`: the primary of each slot. `nodes`: all servers that were named, replicas too."""

    owners: list[Host | None]
    nodes: frozenset[Host]

    @classmethod
    def of_primary(cls, primary: Host) -> "SlotMap":
        return cls([primary] * SLOTS, frozenset((primary,)))

    @classmethod
    def of_cluster(cls, reply: Sequence[Any], asked: Host) -> "SlotMap":
        """`reply`: of CLUSTER SLOTS, from the node `asked`, whose host it leaves out if the node does not know it."""
        owners: list[Host | None] = [None] * SLOTS
        nodes = set()
        for first, last, *servers in reply:
            hosts = [(_text(host) or asked[0], int(port)) for host, port, *_ in servers]
            owners[first : last + 1] = [hosts[0]] * (last + 1 - first)
            nodes.update(hosts)
        return cls(owners, frozenset(nodes))

    @property
    def primaries(self) -> list[Host]:
        """In the order of their slots."""
        return list(dict.fromkeys(owner for owner in self.owners if owner is not None))

    @property
    def uncovered(self) -> int:
        """Slots that nobody serves."""
        return self.owners.count(None)

    def owner(self, key: str) -> Host:
        """Raises redis-py's `SlotNotCoveredError`."""
        slot = key_slot(key.encode())
        owner = self.owners[slot]
        if owner is None:
            raise SlotNotCoveredError(f"no node of the cluster serves slot {slot}")
        return owner

    def move(self, slot: int, owner: Host) -> None:
        """A node said so."""
        self.owners[slot] = owner
        self.nodes |= {owner}


def _text(name: bytes | str | None) -> str:
    """ "" also for the name that a cluster gives to a host which it does not know."""
    text = name.decode() if isinstance(name, bytes) else name or ""
    return "" if text == "?" else text
