"""Takes that Redis has not answered yet: their numbers and deadlines, and what to do when their connection is lost.

A lost take may have run, or may still be in the server's socket buffer. After the reconnect its number is revoked
(`revoke.lua`): it cannot run any more, and the reply lists the takes that did. Their reservations are returned, once.

See docs/reference/limits.md#returned-reservations.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from policy.limits.settlement import Reservation
from policy.limits.take_numbers import NO_DEADLINE_MS
from proxy.edges.redis.admission_requests import AdmissionRequest, Take
from proxy.edges.redis.clock import RedisClock
from proxy.edges.redis.connection import RedisCommand, encode
from proxy.edges.redis.pipelined_client import RedisClient
from proxy.edges.redis.scripts import Script, stamp_bytes, takes_field

_log = logging.getLogger(__name__)


class _LostTake(NamedTuple):
    number: int
    requests: Sequence[AdmissionRequest]


class _Revocation(RedisCommand):
    """One call of revoke.lua. It is sent again after each reconnect until it is answered, however late."""

    __slots__ = ("key",)

    def __init__(self, encoded: bytes, key: str, on_reply: "Callable[[_Revocation, Any], None]") -> None:
        super().__init__(encoded, on_reply)
        self.key = key

    def on_late_reply(self, reply: Any) -> None:
        self.on_reply(self, reply)


class PendingTakes:
    """The unanswered takes of one worker. `give_back`: called with each reservation that no call will use."""

    def __init__(
        self, client: RedisClient, script: Script, incarnation: str, give_back: Callable[[Reservation], None]
    ) -> None:
        self._client = client
        self._script = script
        self._field = takes_field(incarnation)
        self._give_back = give_back
        self._clock = RedisClock()
        self._number = 0
        self._answered_through = 0
        self._lost: dict[str, list[_LostTake]] = {}

    def deadline_ms(self, local_s: float) -> int:
        """The deadline in Redis' time for a local deadline: never earlier, so it has passed here when Redis refuses."""
        return self._clock.at_most(local_s)

    def stamp(self, take: Take, deadline_ms: int = NO_DEADLINE_MS) -> bytes:
        """Number a take, in the order of sending."""
        self._number = take.number = self._number + 1
        return stamp_bytes(self._number, self._answered_through, deadline_ms)

    def answered(self, number: int) -> None:
        """A take was answered, in time or late. Replies come in order: all takes before it were answered or lost."""
        if not self._lost:
            self._answered_through = number

    def learn_clock(self, redis_ms: int, sent_at_s: float) -> None:
        self._clock.learn(redis_ms, sent_at_s)

    def connection_lost(self, number: int, requests: Sequence[AdmissionRequest]) -> None:
        """The connection was lost before this take was answered."""
        self._lost.setdefault(requests[0].compiled.plan.key, []).append(_LostTake(number, requests))

    def redis_is_back(self) -> None:
        """Revoke the lost takes. To be called when a new connection stands; calling it more often does no harm."""
        self._clock.forget()
        for key, lost in self._lost.items():
            through = b"%d" % lost[-1].number
            encoded = encode(b"EVAL", self._script.text, b"1", key.encode(), self._field, through)
            self._client.enqueue(_Revocation(encoded, key, self._revoked))

    def _revoked(self, revocation: _Revocation, reply: Any) -> None:
        if reply is None:
            return  # the reply may still come late; otherwise the next reconnect sends the revocation again
        lost = self._lost.pop(revocation.key, [])
        if isinstance(reply, hiredis.ReplyError):
            error = str(reply).split(" ", 1)[0]
            _log.error(
                "Redis refuses to revoke takes (%s): up to %d admissions of calls that were refused stay counted until "
                "their windows end. Check the permissions of the Redis user.", error, len(lost),
            )  # fmt: skip
            return
        ran = {number: (at_ms, admitted) for at_ms, number, admitted in zip(*[iter(reply)] * 3, strict=True)}
        for number, requests in lost:
            at_ms, admitted = ran.get(number, (0, 0))
            for request in requests[:admitted]:
                self._give_back(request.compiled.reservation(at_ms, request.estimate))
