"""The calls in flight of one worker that limits of CONCURRENT_REQUEST count, and the worker's word on them to Redis.

A take counts in Redis what it admits. When calls end, and every few seconds, the worker says how many it has in flight
(`places.lua`). Such a word is absolute and numbered: one that is lost, late or repeated does no harm.

See docs/reference/limits.md#calls-in-flight.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import hiredis

from policy.limits.in_flight.places import RENEWAL_S, Says, Word
from proxy.edges.redis.admission_requests import CompiledPlan, PlanPlace
from proxy.edges.redis.nodes.connection import RedisCommand, encode
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes, execute
from proxy.edges.redis.scripts import Script, places_arguments
from runtime.redis.slots import slot_of

_log = logging.getLogger(__name__)

GROUPS_MAX = 200
"""The most groups of a word: a millisecond of Redis' time. From 4000 on a script would fail."""


class _KeyPlaces:
    """The calls in flight of one hash, by group. `answered`: the highest number of a take that they include.

    `due`: the groups of which the next flush says how many they are. `idle`: those that had none at the last renewal,
    and have been expected to have none since.
    """

    __slots__ = ("answered", "calls", "due", "idle", "slot")

    def __init__(self, key: str, answered: int) -> None:
        self.slot = slot_of(key.encode())
        self.calls: dict[str, int] = {}
        self.answered = answered
        self.due: set[str] = set()
        self.idle: set[str] = set()


class _Word(RedisCommand):
    """One call of places.lua. `farewell`: the groups where it says that this worker has no calls and expects none."""

    __slots__ = ("arguments", "farewell", "key", "node")

    node: RedisNode

    def __init__(
        self, key: str, arguments: list[bytes], farewell: Sequence[str], on_reply: "Callable[[_Word, Any], None]"
    ) -> None:
        super().__init__(b"", on_reply)
        self.key = key
        self.arguments = arguments
        self.farewell = farewell


class HeldPlaces:
    """Counts synchronously. `soft_refusals`: by key, the plans that refuse from memory until a place may be free.

    `announce`: tells the supervisor in which further groups of a hash this worker may have places, before it takes one.
    `withdraw`: in which groups it has none any more. `oldest_lost`: the lowest number of a take of a key that was lost
    with its connection.
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
        self._answered = 0
        """The highest number of a take that hashes which are forgotten include. A fail-over may bring it back."""
        self._timer: asyncio.TimerHandle | None = None
        self._logged_error = ""
        self.announce: Callable[[str, Sequence[str]], None] = lambda key, groups: None
        self.withdraw: Callable[[str, Sequence[str]], None] = lambda key, groups: None
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
            own = self._keys[place.key] = _KeyPlaces(place.key, self._answered)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(RENEWAL_S, self._renew)
        if own.idle:
            own.idle.difference_update(place.groups)
        if not all(group in own.calls for group in place.groups):
            further = [group for group in place.groups if group not in own.calls]
            own.calls |= dict.fromkeys(further, 0)
            self.announce(place.key, further)

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
            self._say_soon(key, own, own.calls)

    def redis_is_back(self) -> None:
        """Say everything again, before any take: it may be another server, or have lost data.

        Idle groups are not forgotten soon: an older word of theirs may be under way on the lost connection.
        """
        for key, own in self._keys.items():
            own.idle = set()
            self._nodes.of(own.slot).has_places = False
            self._say_soon(key, own, own.calls)
        self._flush()

    async def close(self) -> None:
        """Say that this worker has ended."""
        if self._timer is not None:
            self._timer.cancel()
        words = [self.tell(self._incarnation, key, own.calls, Says.GONE) for key, own in self._keys.items()]
        await asyncio.gather(*words)

    async def tell(self, incarnation: str, key: str, groups: Iterable[str], says: Says) -> bool:
        """Say that an incarnation lives, or has ended. Returns whether Redis has heard it."""
        name = key.encode()
        is_heard = True
        for some in _word_groups(groups):
            arguments = places_arguments(incarnation, Word(says), dict.fromkeys(some, 0))
            for command, script in ((b"EVALSHA", self._script.sha), (b"EVAL", self._script.text)):
                reply = await execute(self._nodes, name, command, script, b"1", name, *arguments)
                if not (isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")):
                    break
            is_heard = is_heard and isinstance(reply, int)
        return is_heard

    def _free(self, place: PlanPlace) -> None:
        """Count the end of a call."""
        own = self._keys[place.key]
        for group in place.groups:
            own.calls[group] -= 1
        self._say_soon(place.key, own, place.groups)
        if place.key in self._soft_refusals:
            for compiled in self._soft_refusals.pop(place.key):
                compiled.refused_until = 0.0

    def _flush(self) -> None:
        """Enqueue the words of this tick at the client. A caller calls again in a later one."""
        due = self._due
        self._due = []
        for key in due:
            own = self._keys.get(key)
            if own is not None:
                groups = own.due
                own.due = set()
                self._send(key, Says.HOLDS, own, groups)

    def _say_soon(self, key: str, own: _KeyPlaces, groups: Iterable[str]) -> None:
        if not own.due:
            if not self._due:
                asyncio.get_running_loop().call_soon(self._flush)
            self._due.append(key)
        own.due.update(groups)

    def _renew(self) -> None:
        """Say again what is in flight, also what an earlier word that was lost has said.

        Of groups that are idle since the last renewal, say that nothing is: they are forgotten when Redis has heard it.
        """
        self._timer = None
        for key, own in self._keys.items():
            farewell = own.idle if self.oldest_lost(key) is None else set()
            self._send(key, Says.GONE, own, farewell)
            own.idle = {group for group, calls in own.calls.items() if not calls}
            self._say_soon(key, own, own.calls.keys() - farewell)
        if self._keys:
            self._timer = asyncio.get_running_loop().call_later(RENEWAL_S, self._renew)

    def _forget(self, word: _Word) -> None:
        """Forget the groups of a word that Redis has heard, but those which calls were expected in meanwhile."""
        own = self._keys.get(word.key)
        if own is not None and self.oldest_lost(word.key) is None:
            over = [group for group in word.farewell if group in own.idle]
            own.idle.difference_update(over)
            own.due.difference_update(over)
            for group in over:
                del own.calls[group]
            if not own.calls:
                self._answered = max(self._answered, own.answered)
                del self._keys[word.key]
            if over:
                self.withdraw(word.key, over)

    def _send(self, key: str, says: Says, own: _KeyPlaces, groups: Iterable[str]) -> None:
        node = self._nodes.of(own.slot)
        lost_take = self.oldest_lost(key)
        answered = own.answered if lost_take is None else min(own.answered, lost_take - 1)
        for some in _word_groups(groups):
            word = Word(says, next(self._versions), answered)
            arguments = places_arguments(self._incarnation, word, {group: own.calls[group] for group in some})
            farewell = some if says is Says.GONE else ()
            self._enqueue(_Word(key, arguments, farewell, self._on_reply), node, with_text=not node.has_places)

    def _enqueue(self, word: _Word, node: RedisNode, *, with_text: bool) -> None:
        command, script = (b"EVAL", self._script.text) if with_text else (b"EVALSHA", self._script.sha)
        word.encoded = encode(command, script, b"1", word.key, *word.arguments)
        word.node = node
        node.has_places = True  # whatever follows on this connection
        node.client.enqueue(word)

    def _on_reply(self, word: _Word, reply: Any) -> None:
        """Send the word again where it was not run. One that got no reply is said again by the next renewal."""
        if isinstance(reply, int):
            self._logged_error = ""
            if word.farewell:
                self._forget(word)
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


def _word_groups(groups: Iterable[str]) -> Iterator[list[str]]:
    """Lists of groups, each as many as one word can tell of."""
    rest = iter(groups)
    while some := list(islice(rest, GROUPS_MAX)):
        yield some
