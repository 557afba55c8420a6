"""Slots of a Redis Cluster: of which slot a key is, which node serves which slots, where a redirect points.

Pure. The rules are those of the Redis Cluster specification.
"""

from binascii import crc_hqx
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

SLOTS = 16_384


class Place(NamedTuple):
    """The address at which a node listens."""

    host: str
    port: int


class SlotRange(NamedTuple):
    """Slots, both ends included, and who has them: the primary, then its replicas."""

    first: int
    last: int
    servers: tuple[Place, ...]


class Redirect(NamedTuple):
    """`lasts`: the slot has moved (MOVED). Otherwise only this key has, while its slot is moving (ASK)."""

    lasts: bool
    slot: int
    target: Place


@lru_cache(4096)
def slot_of(key: bytes) -> int:
    """Return the slot by the part in the first braces, if there is one and it is not empty, else by the whole key."""
    opened = key.find(b"{")
    if opened >= 0:
        closed = key.find(b"}", opened + 1)
        if closed > opened + 1:
            key = key[opened + 1 : closed]
    return crc_hqx(key, 0) % SLOTS


def slot_ranges(reply: Any, source: Place) -> Iterator[SlotRange]:
    """The reply to CLUSTER SLOTS. A node that does not know its own host leaves it out: then it is `source`."""
    for first, last, *servers in reply:
        yield SlotRange(first, last, tuple(Place(_host(host, source), int(port)) for host, port, *_ in servers))


def redirect(error: str, source: Place) -> Redirect | None:
    """The target of `MOVED 3999 10.0.0.2:6381` or `ASK …`. None if the error is another one."""
    kind, *rest = error.split(" ")
    if kind not in ("MOVED", "ASK") or len(rest) != 2:
        return None
    host, _, port = rest[1].rpartition(":")
    return Redirect(kind == "MOVED", int(rest[0]), Place(_host(host, source), int(port)))


def _host(host: bytes | str | None, source: Place) -> str:
    text = host.decode() if isinstance(host, bytes) else host
    return source.host if text in (None, "", "?") else text
