"""Sends settlements to Redis in batches, in order, until Redis confirms them.

One batch per key and worker incarnation is in flight. It starts with the oldest unconfirmed settlement, so sending it
twice, or a late copy, changes nothing: settle.lua skips numbers that it has applied. Settlements that come meanwhile
make the next batch; no timer delays one.

See docs/reference/limits.md#settlement.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import hiredis

from policy.limits.settlement import Buckets, Reservation, Settlement
from proxy.edges.redis.admission_requests import CompiledPlan
from proxy.edges.redis.nodes.connection import NEVER, RedisCommand, encode
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes, execute
from proxy.edges.redis.scripts import (
    BATCH_MAX,
    GIVEN_BACK,
    WITHOUT_REDIS,
    Script,
    batch_arguments,
    batch_size,
    marker_field,
    number_of,
    pack_settlement,
    settle_arguments,
)
from proxy.errors import CountersUnavailableError
from runtime.redis.slots import slot_of

_log = logging.getLogger(__name__)
_RETRY_S = 0.25
_QUEUES_KEPT = 10_000


class _Queue:
    """The unconfirmed settlements of one key and incarnation, oldest first."""

    __slots__ = ("awaits_retry", "buckets", "in_flight", "incarnation", "key", "marker", "settlements", "slot",
                 "waiters")  # fmt: skip

    def __init__(self, key: str, incarnation: str) -> None:
        self.key = key
        self.slot = slot_of(key.encode())
        self.incarnation = incarnation
        self.marker = marker_field(incarnation)
        self.settlements: list[bytes] = []  # packed
        self.buckets: list[Buckets] = []  # of each of them
        self.in_flight = False
        self.awaits_retry = False  # the last batch failed; the retry timer sends it again
        self.waiters: list[asyncio.Future[None]] = []

    def wake_waiters(self) -> None:
        """Wake the waiters: Redis has confirmed everything."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class _Batch(RedisCommand):
    """One EVALSHA or EVAL of settle.lua: the first `count` settlements of a queue."""

    __slots__ = ("count", "node", "queue")

    node: RedisNode

    def __init__(self, encoded: bytes, queue: _Queue, count: int, on_reply: "Callable[[_Batch, Any], None]") -> None:
        self.encoded = encoded
        self.on_reply = on_reply
        self.queue = queue
        self.count = count
        self.expires_at = NEVER  # the other attributes of a command are set when it is sent


class SettlementSender:
    """Queues settlements synchronously, and keeps each until Redis has confirmed it.

    `soft_refusals`: by key, the plans that refuse from memory until a settlement may have made room.
    """

    def __init__(
        self,
        nodes: RedisNodes,
        script: Script,
        lease_ms: int,
        before_sending: Callable[[], None],
        soft_refusals: dict[str, list[CompiledPlan]],
    ) -> None:
        self._nodes = nodes
        self._before_sending = before_sending
        self._soft_refusals = soft_refusals
        self._script = script
        self._lease_ms = lease_ms
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._sweep_at = _QUEUES_KEPT
        self.ready: list[_Queue] = []
        """The queues that `send_ready` will send from."""
        self.last_number = 0
        """The highest number that was queued, except of what is given back."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._logged_error = ""

    @property
    def pending(self) -> int:
        """The number of unconfirmed settlements."""
        return sum(len(queue.settlements) for queue in self._queues.values())

    def oldest_pending(self, incarnation: str) -> int | None:
        """The lowest unconfirmed number of this incarnation. None if all are confirmed."""
        queues = [queue for queue in self._queues.values() if queue.incarnation == incarnation and queue.settlements]
        return min((number_of(queue.settlements[0]) for queue in queues), default=None)

    def add(
        self, incarnation: str, reservation: Reservation, *, number: int, actual_tokens: int, given_back: bool = False
    ) -> None:
        """Queue a settlement for this tick's write. Numbers of one (key, incarnation) must rise.

        A caller that has read its answer may call again at once. It must not be refused for tokens that it did not use,
        so the settlement does not wait for a later tick.
        """
        key, buckets, admitted_at_ms, reserved_tokens, local, margin_tokens, _ = reservation
        queue = self._queues.get((key, incarnation))
        if queue is None:
            queue = self._add_queue(key, incarnation)
        if not queue.settlements:
            self.ready.append(queue)
            self._nodes.schedule_flush()
        flags = WITHOUT_REDIS if local else 0
        if given_back:
            flags |= GIVEN_BACK
        else:
            self.last_number = number
        queue.settlements.append(
            pack_settlement(number, admitted_at_ms, reserved_tokens, margin_tokens, actual_tokens, flags, len(buckets))
        )
        queue.buckets.append(buckets)
        if self._soft_refusals:  # it may have made room: ask Redis again
            for compiled in self._soft_refusals.pop(key, ()):
                compiled.refused_until = 0.0

    def send_ready(self) -> None:
        """Enqueue this tick's batches at the client, just before it writes."""
        queues = self.ready.copy()
        self.ready.clear()
        for queue in queues:
            if queue.settlements and not queue.in_flight and not queue.awaits_retry:
                self._send(queue)

    async def replay(self, incarnation: str, settlements: Iterable[Settlement]) -> None:
        """Send the settlements of a dead incarnation under its own numbers. Returns when Redis has confirmed them.

        Raises `CountersUnavailableError` if Redis is unreachable. Trying again is safe.
        """
        by_key: dict[str, list[Settlement]] = {}
        for settlement in sorted(settlements, key=lambda one: one.number):
            by_key.setdefault(settlement.reservation.key, []).append(settlement)
        for key, rest in by_key.items():
            while rest:
                count = batch_size([settlement.reservation.buckets for settlement in rest[:BATCH_MAX]])
                batch = rest[:count]
                rest = rest[count:]
                await self._replay_batch(key, settle_arguments(batch, incarnation, self._lease_ms))

    async def _replay_batch(self, key: str, arguments: list[bytes]) -> None:
        for command, script in ((b"EVALSHA", self._script.sha), (b"EVAL", self._script.text)):
            reply = await execute(self._nodes, key.encode(), command, script, b"1", key.encode(), *arguments)
            if isinstance(reply, int):
                return
            if not _is_noscript(reply):
                break
        raise CountersUnavailableError

    async def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s`. The journal keeps what Redis does not confirm."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        busy = [queue for queue in self._queues.values() if queue.settlements]
        while busy and (remaining_s := deadline - asyncio.get_running_loop().time()) > 0:
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            busy[0].waiters.append(confirmed)
            self._retry()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await confirmed
            busy = [queue for queue in self._queues.values() if queue.settlements]
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _add_queue(self, key: str, incarnation: str) -> _Queue:
        """Add a queue. Empty ones are kept for the next settlement, and removed when there are many."""
        if len(self._queues) >= self._sweep_at:
            self._queues = {pair: queue for pair, queue in self._queues.items() if queue.settlements}
            self._sweep_at = max(_QUEUES_KEPT, 2 * len(self._queues))
        queue = self._queues[key, incarnation] = _Queue(key, incarnation)
        return queue

    def _retry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in list(self._queues.values()):
            queue.awaits_retry = False
            if not queue.in_flight and queue.settlements:
                self._send(queue)

    def _send(self, queue: _Queue) -> None:
        """Send the script itself to a server that is not known to have it: the retry after a NOSCRIPT could be
        overtaken by later commands."""
        self._before_sending()
        node = self._nodes.of(queue.slot)
        count = batch_size(queue.buckets)
        batch = _Batch(self._encoded(queue, count, with_text=not node.has_settle), queue, count, self._on_reply)
        batch.node = node
        queue.in_flight = True
        node.client.enqueue(batch)

    def _encoded(self, queue: _Queue, count: int, *, with_text: bool) -> bytes:
        """The command for a batch. `with_text`: for a server that is not known to have the script."""
        buckets = queue.buckets[:count]
        arguments = batch_arguments(queue.settlements[:count], buckets, queue.marker, self._lease_ms)
        command, script = (b"EVAL", self._script.text) if with_text else (b"EVALSHA", self._script.sha)
        return encode(command, script, b"1", queue.key, *arguments)

    def _on_reply(self, batch: _Batch, reply: Any) -> None:
        queue = batch.queue
        queue.in_flight = False
        if isinstance(reply, int):
            batch.node.has_settle = True
            self._logged_error = ""
            del queue.settlements[: batch.count], queue.buckets[: batch.count]
            if queue.settlements:  # send them with the flush, together with what this tick still adds
                self.ready.append(queue)
                self._nodes.schedule_flush()
            elif queue.waiters:
                queue.wake_waiters()
        elif not (isinstance(reply, hiredis.ReplyError) and self._sent_elsewhere(batch, str(reply))):
            queue.awaits_retry = True
            if self._timer is None and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(_RETRY_S, self._retry)

    def _sent_elsewhere(self, batch: _Batch, error: str) -> bool:
        """Send the batch to the right server, with its script. False: the error is another one."""
        if error.startswith("NOSCRIPT"):
            batch.node.has_settle = False
            self._send(batch.queue)
            return True
        node = self._nodes.redirected(batch.queue.slot, error)
        if node is None:
            self._log_once(error)
            return False
        # With its script: ASKING holds for one command, so a NOSCRIPT could not be answered.
        batch.encoded = self._encoded(batch.queue, batch.count, with_text=True)
        batch.queue.in_flight = True
        batch.node = node
        node.client.enqueue(batch)
        return True

    def _log_once(self, error: str) -> None:
        """Log an error once per cause, not once per attempt."""
        if error != self._logged_error:
            self._logged_error = error
            _log.error(
                "Redis refuses settlements (%s); they are kept and sent again every %d ms. Check the permissions of "
                "the Redis user and the server's memory.", error, round(1000 * _RETRY_S),
            )  # fmt: skip


def _is_noscript(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")
