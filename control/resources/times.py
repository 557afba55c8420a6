"""Times as the API and the webhooks write them: ISO 8601 in UTC, with milliseconds. The room of each millisecond."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
"""The latest time that `time_text` can write."""
Millisecond = tuple[str, int]
"""(owner's id, milliseconds since the epoch)."""
_STRETCH_MS = 100
"""Milliseconds that are looked at together for one that has room."""


def time_text(epoch_ms: int) -> str:
    second, ms = divmod(epoch_ms, 1000)  # not by way of a float, which is not exact in all years
    return f"{_text_of(second)}.{ms:03}Z"


@lru_cache(1024)
def _text_of(second: int) -> str:
    """Cached: events come a thousand to a page, and many to a second."""
    return (EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


def optional_time_text(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else time_text(epoch_ms)


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

    async def look_at(self, wanted: Collection[Millisecond]) -> None:
        """Count what these hold, in one look. Others are counted once they are needed."""
        self._counts.update(await self._count(wanted))

    async def take(self, id: str, ms: int) -> int:
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
