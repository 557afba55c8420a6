"""The room of each millisecond: how many items of one owner it may hold."""

from collections.abc import Awaitable, Callable, Collection, Mapping

from control.records.times import Millisecond

_STRETCH_MS = 100
"""Milliseconds that are looked at together for one that has room."""


class MillisecondRoom:
    """Gives items of an owner, which come in the order of time, milliseconds that hold fewer than `most`.

    A page can then hold all items of each millisecond that it shows. `count` says how many some milliseconds hold.
    """

    def __init__(
        self, most: int, count: Callable[[Collection[Millisecond]], Awaitable[Mapping[Millisecond, int]]]
    ) -> None:
        self._most = most
        self._count = count
        self._counts = dict[Millisecond, int]()
        self._latest = dict[str, int]()

    async def look_at(self, milliseconds: Collection[Millisecond]) -> None:
        """Count what these hold, in one look. Others are counted once they are needed."""
        self._counts.update(await self._count(milliseconds))

    async def assign(self, id: str, ms: int) -> int:
        """The first millisecond from `ms` on that has room and is not before the owner's last one."""
        ms = max(ms, self._latest.get(id, ms))
        while await self._held(id, ms) >= self._most:
            ms += 1
        self._counts[id, ms] += 1
        self._latest[id] = ms
        return ms

    async def _held(self, id: str, ms: int) -> int:
        if (id, ms) not in self._counts:
            stretch = [(id, later) for later in range(ms, ms + _STRETCH_MS) if (id, later) not in self._counts]
            await self.look_at(stretch)
        return self._counts[id, ms]
