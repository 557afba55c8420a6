"""Takes that Redis has not answered yet: their numbers and deadlines, and what to do when their connection is lost.

A lost take may have run, or may still be in the server's socket buffer. After the reconnect its number is revoked
(`revoke.lua`): it cannot run any more, and the reply lists the takes that did. Their reservations are returned, once.

See docs/reference/limits.md#returned-reservations.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from policy.limits.settlement import Estimate, Reservation
from policy.limits.take_numbers import NO_DEADLINE_MS
from proxy.edges.redis.admission_requests import CompiledPlan, Take
from proxy.edges.redis.nodes.connection import RedisCommand, encode
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes
from proxy.edges.redis.scripts import Script, pack_stamp, takes_field
from runtime.redis.slots import slot_of

_log = logging.getLogger(__name__)


class _LostTake(NamedTuple):
    number: int
    compiled: CompiledPlan
    estimates: Sequence[Estimate]


class _Revocation(RedisCommand):
    """One call of revoke.lua, for the takes of a key up to a number. It is sent again after each reconnect until it is
    answered, however late."""

    __slots__ = ("key", "through")

    def __init__(self, encoded: bytes, key: str, through: int, on_reply: "Callable[[_Revocation, Any], None]") -> None:
        super().__init__(encoded, on_reply)
        self.key = key
        self.through = through

    def on_late_reply(self, reply: Any) -> None:
        self.on_reply(self, reply)


class PendingTakes:
    """The unanswered takes of one worker. `give_back`: called with each reservation that no call will use."""

    def __init__(
        self, nodes: RedisNodes, script: Script, incarnation: str, give_back: Callable[[Reservation], None]
    ) -> None:
        self._nodes = nodes
        self._script = script
        self._field = takes_field(incarnation)
        self._give_back = give_back
        self._number = 0
        self._lost_takes: dict[str, list[_LostTake]] = {}
        self.on_resolved: Callable[[str, int], None] = lambda key, through: None
        """Called with a key and the number up to which it is known what became of its lost takes."""

    def stamp(self, take: Take, node: RedisNode, deadline_ms: int = NO_DEADLINE_MS) -> bytes:
        """Number a take, in the order of sending. The numbers rise over all servers, so that they rise for a key that
        moves to another one.

        `deadline_ms`: by the server's clock; never earlier than ours, so it has passed here when Redis refuses.
        """
        take.node = node
        self._number = take.number = self._number + 1
        return pack_stamp(deadline_ms, self._number, node.answered_through)

    def answered(self, take: Take) -> None:
        """Note that a take was answered, in time or late. A server replies in order: all earlier takes that it got were
        answered or lost."""
        if not self._lost_takes:
            take.node.answered_through = take.number

    def connection_lost(self, take: Take) -> None:
        """Remember a take whose connection was lost before it was answered."""
        lost_take = _LostTake(take.number, take.compiled, list(take.estimates))
        self._lost_takes.setdefault(take.compiled.plan.key, []).append(lost_take)

    def oldest_lost(self, key: str) -> int | None:
        """The lowest number of a lost take of this key. None if there is none."""
        takes = self._lost_takes.get(key)
        return takes[0].number if takes else None

    def redis_is_back(self) -> None:
        """Revoke the lost takes. Call it when a new connection stands, or a key has another server. Calling it more
        often does no harm."""
        for key, takes in self._lost_takes.items():
            name = key.encode()
            through = takes[-1].number
            encoded = encode(b"EVAL", self._script.text, b"1", name, self._field, b"%d" % through)
            self._nodes.of(slot_of(name)).client.enqueue(_Revocation(encoded, key, through, self._revoked))

    def _revoked(self, revocation: _Revocation, reply: Any) -> None:
        if reply is None:
            return  # the reply may still come late; otherwise the next reconnect sends the revocation again
        if isinstance(reply, hiredis.ReplyError):
            node = self._nodes.redirected(slot_of(revocation.key.encode()), str(reply))
            if node is not None:
                node.client.enqueue(revocation)
                return
        takes = self._taken_out(revocation)
        self.on_resolved(revocation.key, revocation.through)
        if isinstance(reply, hiredis.ReplyError):
            error = str(reply).split(" ", 1)[0]
            _log.error(
                "Redis refuses to revoke takes (%s): up to %d admissions of calls that were refused stay counted until "
                "their windows end. Check the permissions of the Redis user.", error, len(takes),
            )  # fmt: skip
            return
        ran = {number: (at_ms, admitted) for at_ms, number, admitted in zip(*[iter(reply)] * 3, strict=True)}
        for number, compiled, estimates in takes:
            at_ms, admitted = ran.get(number, (0, 0))
            for estimate in estimates[:admitted]:
                for reservation in compiled.reservations(at_ms, estimate):
                    self._give_back(reservation)

    def _taken_out(self, revocation: _Revocation) -> list[_LostTake]:
        """Remove and return the lost takes that the revocation covers. Later ones wait for the next revocation."""
        takes = self._lost_takes.pop(revocation.key, [])
        later = [take for take in takes if take.number > revocation.through]
        if later:
            self._lost_takes[revocation.key] = later
        return takes[: len(takes) - len(later)]
