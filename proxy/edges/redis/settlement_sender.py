"""Settlements on their way to Redis: batched per key, in order, until Redis has said that they are in.

One batch per key and worker incarnation is in flight, and it starts with the oldest that is not known to be applied: so
sending it again, or Redis seeing an old copy late, changes nothing (settle.lua skips what is not above its mark). What
comes meanwhile makes the next batch: it is the traffic that sets the batch's size, and nobody waits for a timer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import hiredis

from policy.limits.settlement import Settlement
from proxy.edges.redis.connection import NEVER, RedisCommand, encode
from proxy.edges.redis.pipelined_client import RedisClient
from proxy.edges.redis.scripts import SETTLE_VALUES_MAX, Script, SettleTemplate, settle_arguments, settle_values
from proxy.exchange import CountersUnavailableError

_log = logging.getLogger(__name__)
_RETRY_S = 0.25
_LANES_KEPT = 10_000


class _Lane:
    """What is still to be settled in one key for one incarnation, oldest first."""

    __slots__ = ("buckets", "form", "in_flight", "incarnation", "key", "queue", "resting", "waiters")

    def __init__(self, key: str, incarnation: str) -> None:
        self.key = key
        self.incarnation = incarnation
        self.queue: list[Settlement] = []
        self.in_flight = False
        self.resting = False  # Redis did not take the last batch; the timer tries again
        self.waiters: list[asyncio.Future[None]] = []
        self.buckets: tuple[tuple[str, int], ...] | None = None
        self.form: SettleTemplate | None = None  # of a batch that holds just these buckets, as the last one did

    def wake(self) -> None:
        """Who waits until all is in."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class _Batch(RedisCommand):
    """One EVALSHA, or EVAL, of settle.lua."""

    __slots__ = ("count", "lane")

    def __init__(self, request: bytes, lane: _Lane, count: int, done: "Callable[[_Batch, Any], None]") -> None:
        self.request = request
        self.done = done
        self.lane = lane
        self.count = count
        self.expires_at = NEVER  # the rest of a call is set when it is sent


class SettlementSender:
    """Takes settlements synchronously and never loses one that is not too old to matter."""

    def __init__(self, client: RedisClient, script: Script, lease_ms: int) -> None:
        self._client = client
        self._script = script
        self._lease_ms = lease_ms
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._sweep_at = _LANES_KEPT
        self.ready: list[_Lane] = []
        """What `send_ready` is there for."""
        self._script_known = False  # to this Redis; the first batch brings it, for a detour would let others pass
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._logged_refusal = ""

    @property
    def pending(self) -> int:
        """How many settlements are not known to be applied."""
        return sum(len(lane.queue) for lane in self._lanes.values())

    def oldest_pending(self, incarnation: str) -> int | None:
        """The lowest number of this incarnation that is not known to be applied; None: all are."""
        lanes = self._lanes.values()
        return min(
            (lane.queue[0].number for lane in lanes if lane.incarnation == incarnation and lane.queue), default=None
        )

    def add(self, incarnation: str, settlement: Settlement) -> None:
        """Enqueue for this tick's write. Numbers of one (key, incarnation) must rise.

        No later: a caller who has read the answer may call again at once, and must not be refused for tokens that it
        did not use.
        """
        key = settlement.reservation.key
        lane = self._lanes.get((key, incarnation))
        if lane is None:
            lane = self._open_lane(key, incarnation)
        lane.queue.append(settlement)
        if len(lane.queue) == 1:
            self.ready.append(lane)
            self._client.schedule_flush()

    def send_ready(self) -> None:
        """Hand the wire what this tick has to settle; to be called right before it writes."""
        lanes, self.ready = self.ready, []
        for lane in lanes:
            if lane.queue and not lane.in_flight and not lane.resting:
                self._send(lane)

    async def replay(self, incarnation: str, settlements: Iterable[Settlement]) -> None:
        """Settle what a dead incarnation left, with its numbers; returns once Redis has all of it.

        Raises `CountersUnavailableError` when Redis cannot be reached: nothing is lost, and trying again is harmless.
        """
        by_key: dict[str, list[Settlement]] = {}
        for settlement in sorted(settlements, key=lambda one: one.number):
            by_key.setdefault(settlement.reservation.key, []).append(settlement)
        for key, left in by_key.items():
            while left:
                batch = _first_batch(left)
                left = left[len(batch) :]
                await self._replay_batch(key, settle_arguments(batch, incarnation, self._lease_ms))

    async def _replay_batch(self, key: str, arguments: list[bytes]) -> None:
        for command, script in ((b"EVALSHA", self._script.sha), (b"EVAL", self._script.text)):
            reply = await self._client.ask(command, script, b"1", key.encode(), *arguments)
            if isinstance(reply, int):
                return
            if not _is_noscript(reply):
                break
        raise CountersUnavailableError

    async def close(self, timeout_s: float) -> None:
        """Send what is left, for at most so long; the journal keeps what does not get through."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        busy = [lane for lane in self._lanes.values() if lane.queue]
        while busy and (left := deadline - asyncio.get_running_loop().time()) > 0:
            applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            busy[0].waiters.append(applied)
            self._try_again()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(applied, left)
            busy = [lane for lane in self._lanes.values() if lane.queue]
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _open_lane(self, key: str, incarnation: str) -> _Lane:
        """Lanes stay when they are empty, for the next settlement; many of them are swept now and then."""
        if len(self._lanes) >= self._sweep_at:
            self._lanes = {place: lane for place, lane in self._lanes.items() if lane.queue}
            self._sweep_at = max(_LANES_KEPT, 2 * len(self._lanes))
        lane = self._lanes[key, incarnation] = _Lane(key, incarnation)
        return lane

    def _try_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for lane in list(self._lanes.values()):
            lane.resting = False
            if not lane.in_flight and lane.queue:
                self._send(lane)

    def _send(self, lane: _Lane) -> None:
        batch = lane.queue if len(lane.queue) == 1 else _first_batch(lane.queue)
        buckets = batch[0].reservation.buckets
        if not self._script_known or (len(batch) > 1 and any(one.reservation.buckets != buckets for one in batch)):
            request = self._odd_request(lane, batch)
        else:
            if lane.form is None or lane.buckets != buckets:
                lane.buckets = buckets
                lane.form = SettleTemplate(self._script, lane.key, lane.incarnation, buckets, self._lease_ms)
            request = lane.form.request(batch)
        lane.in_flight = True
        self._client.call(_Batch(request, lane, len(batch), self._sent))

    def _odd_request(self, lane: _Lane, batch: list[Settlement]) -> bytes:
        script = (b"EVALSHA", self._script.sha) if self._script_known else (b"EVAL", self._script.text)
        return encode(*script, b"1", lane.key.encode(), *settle_arguments(batch, lane.incarnation, self._lease_ms))

    def _sent(self, batch: _Batch, reply: Any) -> None:
        lane = batch.lane
        lane.in_flight = False
        if isinstance(reply, int):
            self._script_known, self._logged_refusal = True, ""
            del lane.queue[: batch.count]
            if lane.queue:  # with the flush, so that what this tick still adds goes along
                self.ready.append(lane)
                self._client.schedule_flush()
            elif lane.waiters:
                lane.wake()
        elif _is_noscript(reply):
            self._script_known = False
            self._send(lane)
        else:
            if isinstance(reply, hiredis.ReplyError):
                self._log_refusal(str(reply))
            lane.resting = True
            if self._timer is None and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _log_refusal(self, text: str) -> None:
        """Once per cause, not once per try."""
        if text != self._logged_refusal:
            self._logged_refusal = text
            _log.error(
                "Redis refuses settlements (%s); they are kept and tried again. Check its user's permissions", text
            )


def _first_batch(settlements: Iterable[Settlement]) -> list[Settlement]:
    """As many, from the oldest on, as one call of the script may carry."""
    batch: list[Settlement] = []
    values = 0
    for settlement in settlements:
        values += settle_values(settlement)
        if values > SETTLE_VALUES_MAX and batch:
            break
        batch.append(settlement)
    return batch


def _is_noscript(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")
