"""The epoch of a server: its `master_replid`, another one after each start and each promotion.

What was written in another epoch may be lost, or come back. See docs/reference/money.md#how-spend-is-counted.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from proxy.edges.redis.nodes.connection import RedisCommand, encode
from proxy.edges.redis.nodes.pipelined_client import RedisClient

FRESH_S = 1.0
"""The time after which it is read again on the same connection: a replica that is promoted keeps its connections."""
_INFO = encode(b"INFO", b"replication")
_EPOCH = re.compile(rb"^master_replid:([0-9a-f]+)", re.MULTILINE)


class ServerEpoch:
    """The epoch of one server, as the connection that stands has told it. Commands that are enqueued after `read` are
    answered after it."""

    __slots__ = ("_client", "_connection", "_read_at", "_text")

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._text = ""
        self._connection = 0
        self._read_at = -FRESH_S

    @property
    def text(self) -> str:
        """The epoch; '' if it is not known of this connection."""
        return self._text if self._connection == self._client.connections else ""

    @property
    def is_fresh(self) -> bool:
        """True if no reading is due: one was answered, or is on its way, within `FRESH_S` on this connection."""
        return (
            self._client.connected
            and self._connection == self._client.connections
            and time.monotonic() - self._read_at < FRESH_S
        )

    def forget(self) -> None:
        """Have it read again: the server has refused a command."""
        self._text = ""
        self._read_at = -FRESH_S

    def read(self, then: Callable[[], None] = lambda: None) -> None:
        """Ask the server. `then`: called when `text` is what it has said, or '' if it has not."""

        def on_reply(_command: RedisCommand, reply: Any) -> None:
            match = _EPOCH.search(reply) if isinstance(reply, bytes) else None
            self._text = match[1].decode() if match else ""
            self._connection = self._client.connections
            if not match:
                self._read_at = -FRESH_S
            then()

        self._read_at = time.monotonic()
        if self._connection != self._client.connections:
            self._text = ""
            self._connection = self._client.connections
        self._client.enqueue(RedisCommand(_INFO, on_reply))
