"""The places of this machine's workers in limits of calls in flight. Runs in the supervisor.

It returns those of a worker that has died, and says of a living one that it lives: its calls go on though it may not
reach Redis itself. See docs/reference/limits.md#calls-in-flight.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from policy.limits.in_flight.places import SILENT_MS, Says
from proxy.edges.process.channel import Message

LIVES_INTERVAL_S = 15.0
"""The time between two words on a living worker: several in the time after which it would be silent."""
LATE_COMMANDS_S = 2.0
"""Seconds until a dead worker's last command has run. What that command took is returned then."""
RETRY_S = 0.5
"""The time between two tries while Redis does not answer."""
AT_ONCE = 100
"""The most words that wait for Redis at once."""
Groups = Mapping[str, Sequence[str]]
"""The groups in which a worker may have places, by the key of their hash."""
Tell = Callable[[str, str, Iterable[str], Says], Awaitable[bool]]
"""Says a word of an incarnation, of a key's groups. Returns whether Redis has heard it."""
log = logging.getLogger(__name__)


class WorkerPlaces:
    """Knows where each worker may have places: workers say so before they take any."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._live: dict[str, dict[str, dict[str, None]]] = {}
        self._dead: asyncio.Queue[tuple[str, Groups]] = asyncio.Queue()

    def received(self, incarnation: str, message: Message) -> None:
        """Take a worker's message: a key, and groups of its hash in which it may have places, or has none any more."""
        keys = self._live.setdefault(incarnation, {})
        groups = keys.setdefault(message["key"], {})
        if not message["ended"]:
            groups |= dict.fromkeys(message["groups"])
            return
        for group in message["groups"]:
            groups.pop(group, None)
        if not groups:
            del keys[message["key"]]

    def died(self, incarnation: str) -> None:
        """Note that this worker has ended."""
        keys = self._live.pop(incarnation, None)
        if keys:
            self._dead.put_nowait((incarnation, {key: list(groups) for key, groups in keys.items()}))

    async def run(self) -> None:
        """Return the places of workers that died, and renew those of the others, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            while True:
                group.create_task(self._return(*await self._dead.get()))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LIVES_INTERVAL_S)
            for incarnation, keys in list(self._live.items()):
                await self._said(incarnation, {key: list(groups) for key, groups in keys.items()}, Says.LIVES)

    async def _return(self, incarnation: str, keys: Groups) -> None:
        """Return everything, and again what a last command has taken."""
        await self._return_once(incarnation, keys)
        await asyncio.sleep(LATE_COMMANDS_S)
        await self._return_once(incarnation, keys)

    async def _return_once(self, incarnation: str, keys: Groups) -> None:
        give_up_at = time.monotonic() + SILENT_MS / 1000
        rest = keys
        while rest := await self._said(incarnation, rest, Says.GONE):
            if time.monotonic() >= give_up_at:
                log.warning("Redis was away for %d s; it counts the calls of the dead worker %s until that has been"
                            " silent for as long. Check Redis.", SILENT_MS // 1000, incarnation)  # fmt: skip
                return
            await asyncio.sleep(RETRY_S)

    async def _said(self, incarnation: str, keys: Groups, says: Says) -> Groups:
        """Say a word for each key. Returns what Redis has not heard."""
        rest: dict[str, Sequence[str]] = {}
        for some in _some_at_once(keys):
            answers = await asyncio.gather(*(self._tell(incarnation, key, keys[key], says) for key in some))
            rest |= {key: keys[key] for key, is_heard in zip(some, answers, strict=True) if not is_heard}
        return rest


def _some_at_once(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while some := list(islice(rest, AT_ONCE)):
        yield some
