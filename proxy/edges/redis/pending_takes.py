"""Takes on their way: numbers and deadlines for them, and what became of those whose connection was lost.

A lost take may have run, or may still run out of the server's socket. After the reconnect its number is revoked in its
hash (`revoke.lua`): it cannot run any more, and the reply tells which ones did, and when. Those are given back, once.
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


class _Lost(NamedTuple):
    number: int
    checks: Sequence[AdmissionRequest]


class _Revocation(RedisCommand):
    """One call of revoke.lua. It is asked again after each reconnect until it is answered, however late."""

    __slots__ = ("key",)

    def __init__(self, request: bytes, key: str, done: "Callable[[_Revocation, Any], None]") -> None:
        super().__init__(request, done)
        self.key = key

    def late(self, reply: Any) -> None:
        self.done(self, reply)


class PendingTakes:
    """Those of one worker. `give_back`: told of each reservation that nobody will ever use."""

    def __init__(
        self, client: RedisClient, script: Script, incarnation: str, give_back: Callable[[Reservation], None]
    ) -> None:
        self._client = client
        self._script = script
        self._field = takes_field(incarnation)
        self._give_back = give_back
        self._clock = RedisClock()
        self._number = 0
        self._answered = 0
        self._lost: dict[str, list[_Lost]] = {}

    def deadline_ms(self, local_s: float) -> int:
        """By Redis' clock, when `local_s` has passed for certain."""
        return self._clock.at_most(local_s)

    def stamp(self, take: Take, deadline_ms: int = NO_DEADLINE_MS) -> bytes:
        """Number a take, in the order of sending."""
        self._number = take.number = self._number + 1
        return stamp_bytes(self._number, self._answered, deadline_ms)

    def heard(self, number: int) -> None:
        """A take was answered, in time or late. Answers come in order, so all before it are known, or lost."""
        if not self._lost:
            self._answered = number

    def learn_clock(self, redis_ms: int, asked_at_s: float) -> None:
        self._clock.learn(redis_ms, asked_at_s)

    def lose(self, number: int, checks: Sequence[AdmissionRequest]) -> None:
        """The connection went before the answer came."""
        self._lost.setdefault(checks[0].compiled.plan.key, []).append(_Lost(number, checks))

    def redis_is_back(self) -> None:
        """Revoke what was lost. To be called when a new connection stands; calling it more often does no harm."""
        self._clock.forget()
        for key, lost in self._lost.items():
            through = b"%d" % lost[-1].number
            request = encode(b"EVAL", self._script.text, b"1", key.encode(), self._field, through)
            self._client.call(_Revocation(request, key, self._revoked))

    def _revoked(self, revocation: _Revocation, reply: Any) -> None:
        if reply is None:
            return  # asked again after the next reconnect, unless its answer is only late
        lost = self._lost.pop(revocation.key, [])
        if isinstance(reply, hiredis.ReplyError):
            error = str(reply).split(" ", 1)[0]
            _log.error(
                "Redis refuses to revoke takes (%s): up to %d admissions of calls that were refused stay counted until "
                "their windows end. Check the permissions of the Redis user.", error, len(lost),
            )  # fmt: skip
            return
        ran = {number: (at_ms, admitted) for at_ms, number, admitted in zip(*[iter(reply)] * 3, strict=True)}
        for number, checks in lost:
            at_ms, admitted = ran.get(number, (0, 0))
            for check in checks[:admitted]:
                self._give_back(check.compiled.reservation(at_ms, check.estimate))
