"""The calls in flight of one worker that limits of CONCURRENT_REQUEST count, and the worker's word on them to Redis.

A take counts in Redis what it admits. When calls end, and every few seconds, the worker says how many it has in flight
(`places.lua`). Such a word is absolute and numbered: one that is lost, late or repeated does no harm.

See docs/reference/limits.md#calls-in-flight.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import hiredis

from policy.limits.in_flight.places import RENEWAL_S, Says, Word
from proxy.edges.redis.admission_requests import CompiledPlan, PlanPlace
from proxy.edges.redis.nodes.connection import RedisCommand, encode
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes, execute
from proxy.edges.redis.scripts import Script, places_arguments
from runtime.redis.slots import slot_of

_log = logging.getLogger(__name__)


class _KeyPlaces:
    """The calls in flight of one hash, by group. `answered`: the highest number of a take that they include.

    `is_due`: the next flush says how many they are. `is_idle`: there were none at the last renewal.
    """

    __slots__ = ("answered", "calls", "is_due", "is_idle", "slot")

    def __init__(self, key: str) -> None:
        self.slot = slot_of(key.encode())
        self.calls: dict[str, int] = {}
        self.answered = 0
        self.is_due = False
        self.is_idle = False


class _Word(RedisCommand):
    """One call of places.lua."""

    __slots__ = ("arguments", "key", "node")

    node: RedisNode

    def __init__(self, key: str, arguments: list[bytes], on_reply: "Callable[[_Word, Any], None]") -> None:
        super().__init__(b"", on_reply)
        self.key = key
        self.arguments = arguments


class HeldPlaces:
    """Counts synchronously. `soft_refusals`: by key, the plans that refuse from memory until a place may be free.

    `announce`: tells the supervisor in which groups of a hash this worker has places, before it takes one; none any
    more if empty. `oldest_lost`: the lowest number of a take of a key that was lost with its connection.
    """

    def __init__(
        self, nodes: RedisNodes, script: Script, incarnation: str, soft_refusals: dict[str, list[CompiledPlan]]
    ) -> None:
        self._nodes = nodes
        self._script = script
        self._incarnation = incarnation
        self._soft_refusals = soft_refusals
        self._keys: dict[str, _KeyPlaces] = {}
        self._due: list[str] = []
        self._versions = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._logged_error = ""
        self.announce: Callable[[str, Sequence[str]], None] = lambda key, groups: None
        self.oldest_lost: Callable[[str], int | None] = lambda key: None

    def held(self, key: str, group: str) -> int:
        """The calls in flight of this worker, whether Redis or it alone has admitted them."""
        own = self._keys.get(key)
        return 0 if own is None else own.calls.get(group, 0)

    def place(self, key: str, groups: Sequence[str]) -> PlanPlace:
        """The place of a plan's calls."""
        return PlanPlace(key, groups, self._free)

    def expect(self, place: PlanPlace) -> None:
        """Prepare for a take that is about to leave."""
        own = self._keys.get(place.key)
        if own is None:
            own = self._keys[place.key] = _KeyPlaces(place.key)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(RENEWAL_S, self._renew)
        own.is_idle = False
        if not all(group in own.calls for group in place.groups):
            own.calls = dict.fromkeys(place.groups, 0) | own.calls
            self.announce(place.key, tuple(own.calls))

    def taken(self, place: PlanPlace, number: int, admitted: int) -> None:
        """Count what a take has admitted; 0 as its number if this worker has decided alone."""
        self.expect(place)
        own = self._keys[place.key]
        own.answered = max(own.answered, number)
        for group in place.groups:
            own.calls[group] += admitted

    def resolved(self, key: str, through: int) -> None:
        """Note that what became of the lost takes up to this number is known, and counted."""
        own = self._keys.get(key)
        if own is not None:
            own.answered = max(own.answered, through)
            self._say_soon(key, own)

    def redis_is_back(self) -> None:
        """Say everything again, before any take: it may be another server, or have lost data."""
        for key, own in self._keys.items():
            self._say_soon(key, own)
        self._flush()

    async def close(self) -> None:
        """Say that this worker has ended."""
        if self._timer is not None:
            self._timer.cancel()
        words = [self.tell(self._incarnation, key, own.calls, Says.GONE) for key, own in self._keys.items()]
        await asyncio.gather(*words)

    async def tell(self, incarnation: str, key: str, groups: Iterable[str], says: Says) -> bool:
        """Say that an incarnation lives, or has ended. Returns whether Redis has heard it."""
        arguments = places_arguments(incarnation, Word(says), dict.fromkeys(groups, 0))
        name = key.encode()
        for command, script in ((b"EVALSHA", self._script.sha), (b"EVAL", self._script.text)):
            reply = await execute(self._nodes, name, command, script, b"1", name, *arguments)
            if not (isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")):
                break
        return isinstance(reply, int)

    def _free(self, place: PlanPlace) -> None:
        """Count the end of a call."""
        own = self._keys[place.key]
        for group in place.groups:
            own.calls[group] -= 1
        self._say_soon(place.key, own)
        if place.key in self._soft_refusals:
            for compiled in self._soft_refusals.pop(place.key):
                compiled.refused_until = 0.0

    def _flush(self) -> None:
        """Enqueue the words of this tick at the client. A caller calls again in a later one."""
        due = self._due
        self._due = []
        for key in due:
            own = self._keys.get(key)
            if own is not None and own.is_due:
                own.is_due = False
                self._send(key, Says.HOLDS, own)

    def _say_soon(self, key: str, own: _KeyPlaces) -> None:
        if not own.is_due:
            own.is_due = True
            if not self._due:
                asyncio.get_running_loop().call_soon(self._flush)
            self._due.append(key)

    def _renew(self) -> None:
        """Say again what is in flight, also what an earlier word that was lost has said. Forget what is idle."""
        self._timer = None
        for key, own in list(self._keys.items()):
            if own.is_idle:
                del self._keys[key]
                self._send(key, Says.GONE, own)
                self.announce(key, ())
            else:
                own.is_idle = not any(own.calls.values())
                self._say_soon(key, own)
        if self._keys:
            self._timer = asyncio.get_running_loop().call_later(RENEWAL_S, self._renew)

    def _send(self, key: str, says: Says, own: _KeyPlaces) -> None:
        node = self._nodes.of(own.slot)
        lost_take = self.oldest_lost(key)
        answered = own.answered if lost_take is None else min(own.answered, lost_take - 1)
        word = Word(says, next(self._versions), answered)
        arguments = places_arguments(self._incarnation, word, own.calls)
        self._enqueue(_Word(key, arguments, self._on_reply), node, with_text=not node.has_places)

    def _enqueue(self, word: _Word, node: RedisNode, *, with_text: bool) -> None:
        command, script = (b"EVAL", self._script.text) if with_text else (b"EVALSHA", self._script.sha)
        word.encoded = encode(command, script, b"1", word.key, *word.arguments)
        word.node = node
        node.client.enqueue(word)

    def _on_reply(self, word: _Word, reply: Any) -> None:
        """Send the word again where it was not run. One that got no reply is said again by the next renewal."""
        if isinstance(reply, int):
            word.node.has_places = True
            self._logged_error = ""
        elif isinstance(reply, hiredis.ReplyError):
            error = str(reply)
            if error.startswith("NOSCRIPT"):
                word.node.has_places = False
                self._enqueue(word, word.node, with_text=True)
            elif (node := self._nodes.redirected(slot_of(word.key.encode()), error)) is not None:
                self._enqueue(word, node, with_text=True)
            elif error != self._logged_error:  # once per cause, not once per word
                self._logged_error = error
                _log.error(
                    "Redis refuses what this worker says of its calls in flight (%s); places of calls that have ended"
                    " stay taken. Check the permissions of the Redis user and the server's memory.", error,
                )  # fmt: skip
