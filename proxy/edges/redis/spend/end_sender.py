"""Sends the ends of calls to Redis, a batch per tree, until Redis confirms them.

One batch of a tree is in flight. Ends that come meanwhile make the next one; no timer delays a batch. An end that comes
twice, or late, changes nothing.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from proxy.edges.redis.nodes.connection import NEVER, RedisCommand, encode_argument
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes
from proxy.edges.redis.scripts import Script
from proxy.edges.redis.spend.scripts import Arguments, encoded
from runtime.redis.slots import slot_of

_log = logging.getLogger(__name__)
_RETRY_S = 0.25
_TREES_KEPT = 1_000
BATCH_MOST = 250
"""The most ends of a batch: 2 ms of Redis' time in trees of five levels."""
PENDING_MOST = 100_000
"""The most unconfirmed ends, 20 MB. More calls than a worker can have in flight when Redis goes away."""


class _Tree:
    """The unconfirmed ends of one tree, oldest first."""

    __slots__ = ("arguments", "awaits_retry", "confirmed", "ends", "in_flight", "slot")

    def __init__(self, key: str) -> None:
        name = key.encode()
        self.slot = slot_of(name)
        self.arguments = encode_argument(b"1") + encode_argument(name)
        self.ends: list[Arguments] = []
        self.confirmed = 0  # the number of ends that are confirmed and not in `ends` any more
        self.in_flight = False
        self.awaits_retry = False  # the last batch failed; the retry timer sends it again


class _Batch(RedisCommand):
    """One call of end.lua: the first `count` ends of a tree."""

    __slots__ = ("count", "node", "tree")

    node: RedisNode

    def __init__(self, tree: _Tree, count: int, on_reply: "Callable[[_Batch, Any], None]") -> None:
        self.tree = tree
        self.count = count
        self.on_reply = on_reply
        self.expires_at = NEVER  # the other attributes of a command are set when it is sent


class EndSender:
    """Queues ends synchronously, and keeps each until Redis has confirmed it; `PENDING_MOST` of them."""

    def __init__(self, nodes: RedisNodes, script: Script, schedule_flush: Callable[[], None]) -> None:
        """`schedule_flush`: called when `send_ready` has something to send in this tick."""
        self._nodes = nodes
        self._schedule_flush = schedule_flush
        self._by_sha = encode_argument(b"EVALSHA") + encode_argument(script.sha)
        self._by_text = encode_argument(b"EVAL") + encode_argument(script.text)
        self._trees: dict[str, _Tree] = {}
        self._sweep_at = _TREES_KEPT
        self.ready: list[_Tree] = []
        """The trees that `send_ready` will send from."""
        self.pending = 0
        """The number of unconfirmed ends."""
        self._confirmed_all: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._is_full = False
        self._logged_error = ""

    def add(self, key: str, end: Arguments) -> None:
        """Queue an end for this tick's write."""
        tree = self._trees.get(key)
        if tree is None:
            tree = self._add_tree(key)
        if self.pending >= PENDING_MOST:
            self._log_full()
            return
        ends = tree.ends
        if not ends:
            self._make_ready(tree)
        ends.append(end)
        self.pending += 1

    def put(self, key: str, reservations: Sequence[Arguments]) -> Callable[[], bool]:
        """Queue reservations behind the ends of their tree.

        None is dropped: there are as many as calls in flight. Returns what tells if all are confirmed.
        """
        tree = self._trees.get(key) or self._add_tree(key)
        if reservations and not tree.ends:
            self._make_ready(tree)
        tree.ends += reservations
        self.pending += len(reservations)
        through = tree.confirmed + len(tree.ends)
        return lambda: tree.confirmed >= through

    def _make_ready(self, tree: _Tree) -> None:
        self.ready.append(tree)
        self._schedule_flush()

    def send_ready(self) -> None:
        """Enqueue this tick's batches at the client, just before it writes."""
        trees = self.ready.copy()
        self.ready.clear()
        for tree in trees:
            if tree.ends and not tree.in_flight and not tree.awaits_retry:
                self._send(tree)

    def retry(self) -> None:
        """Send again what failed, and is not in flight, to servers that reply."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for tree in list(self._trees.values()):
            if tree.ends and not tree.in_flight:
                if self._nodes.of(tree.slot).serves:
                    tree.awaits_retry = False
                    self._send(tree)
                else:
                    self._retry_later(tree)

    async def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s`. What Redis does not confirm ends with the incarnation."""
        if self.pending and timeout_s > 0:
            self._confirmed_all = asyncio.get_running_loop().create_future()
            self.retry()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._confirmed_all
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _add_tree(self, key: str) -> _Tree:
        """Add a tree. Those without ends are kept for the next one, and removed when there are many."""
        if len(self._trees) >= self._sweep_at:
            self._trees = {name: tree for name, tree in self._trees.items() if tree.ends or tree.in_flight}
            self._sweep_at = max(_TREES_KEPT, 2 * len(self._trees))
        tree = self._trees[key] = _Tree(key)
        return tree

    def _send(self, tree: _Tree) -> None:
        """Send the script itself to a server that is not known to have it: the retry after a NOSCRIPT could be
        overtaken by later calls, which need the room."""
        node = self._nodes.of(tree.slot)
        batch = _Batch(tree, min(len(tree.ends), BATCH_MOST), self._on_reply)
        self._send_to(node, batch, self._by_sha if node.has_end else self._by_text)

    def _send_to(self, node: RedisNode, batch: _Batch, script: bytes) -> None:
        tree = batch.tree
        batch.encoded = b"*%d\r\n%b%b%b" % (
            4 + 2 * batch.count,
            script,
            tree.arguments,
            encoded(tree.ends[: batch.count]),
        )
        batch.node = node
        tree.in_flight = True
        node.client.enqueue(batch)

    def _on_reply(self, batch: _Batch, reply: Any) -> None:
        tree = batch.tree
        tree.in_flight = False
        if isinstance(reply, int):
            batch.node.has_end = True
            self._confirm(tree, batch.count)
            return
        if isinstance(reply, hiredis.ReplyError):
            batch.node.epoch.forget()
            if self._sent_elsewhere(batch, str(reply)):
                return
        self._retry_later(tree)

    def _confirm(self, tree: _Tree, count: int) -> None:
        self._logged_error = ""
        self._is_full = False
        del tree.ends[:count]
        tree.confirmed += count
        self.pending -= count
        if tree.ends:  # send them with the flush, together with what this tick still adds
            self._make_ready(tree)
        elif not self.pending and self._confirmed_all is not None and not self._confirmed_all.done():
            self._confirmed_all.set_result(None)

    def _retry_later(self, tree: _Tree) -> None:
        tree.awaits_retry = True
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_RETRY_S, self.retry)

    def _sent_elsewhere(self, batch: _Batch, error: str) -> bool:
        """Send the batch with its script, to the server that has the key. False: the error is another one."""
        is_unknown = error.startswith("NOSCRIPT")
        if is_unknown:
            batch.node.has_end = False
        node = batch.node if is_unknown else self._nodes.redirected(batch.tree.slot, error)
        if node is None:
            self._log_once(error)
            return False
        # With its script: ASKING holds for one command, so a NOSCRIPT could not be answered.
        self._send_to(node, batch, self._by_text)
        return True

    def _log_once(self, error: str) -> None:
        """Log an error once per cause, not once per attempt."""
        if error != self._logged_error:
            self._logged_error = error
            _log.error(
                "Redis refuses the ends of calls with spend limits (%s); they are kept and sent again every %d ms. "
                "Check the permissions of the Redis user and the server's memory.", error, round(1000 * _RETRY_S),
            )  # fmt: skip

    def _log_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            _log.error(
                "Redis has not confirmed the ends of %d calls with spend limits; those of more calls are dropped, and "
                "what they reserve counts until control counts their events. Check Redis.", PENDING_MOST,
            )  # fmt: skip
