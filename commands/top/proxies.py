"""Follows proxies: looks at the metrics of each, and pairs each look with the one before.

A proxy that is away keeps its last look, so what it counted meanwhile is shown when it is back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from commands.errors import ManagementError
from commands.records.metrics_sample import Sample
from commands.top.rates import Rates, has_restarted, rates_of

Place = Callable[[], str]
"""Answers the URL of a proxy's metrics now; an `up` that starts anew may have other ports. Raises NoAccessError."""
Read = Callable[[str], Awaitable[Sample]]
"""One look at a URL. AwayError or RefusedError."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """The state of one proxy. `state`: `up`, `restarted` or `away`, which has a `reason`."""

    url: str
    state: str
    reason: str | None = None
    seconds: float | None = None
    """The time since the look that it is compared with."""

    def to_json(self) -> dict[str, str | float | None]:
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return {"url": self.url, "state": self.state, "reason": self.reason, "seconds": seconds}


@dataclass(frozen=True, slots=True)
class View:
    """The result of one look at all proxies."""

    rates: Rates
    proxies: Sequence[Proxy]

    @property
    def away(self) -> list[Proxy]:
        return [proxy for proxy in self.proxies if proxy.state == "away"]


class Follower:
    """Looks at proxies again and again."""

    def __init__(self, places: Sequence[Place], read: Read) -> None:
        self._places = places
        self._read = read
        self._urls = [""] * len(places)
        self._last: list[Sample | None] = [None] * len(places)

    async def look(self) -> View:
        """Look at all proxies at once. ManagementError if none of them answers for the first time."""
        looks = await asyncio.gather(*map(self._look_at, range(len(self._places))))
        errors = [result for result in looks if isinstance(result, ManagementError)]
        if len(errors) == len(looks) and not any(self._last):
            raise errors[0]
        befores = self._last
        self._last = list(self._last)
        pairs = []
        proxies = []
        for number, result in enumerate(looks):
            before = befores[number]
            proxies.append(_state(self._urls[number], before, result))
            if isinstance(result, Sample):
                pairs.append((before, result))
                self._last[number] = result
        return View(rates_of(pairs), proxies)

    async def _look_at(self, number: int) -> Sample | ManagementError:
        try:
            self._urls[number] = self._places[number]()
            return await self._read(self._urls[number])
        except ManagementError as error:
            return error


def _state(url: str, before: Sample | None, look: Sample | ManagementError) -> Proxy:
    if isinstance(look, ManagementError):
        return Proxy(url, "away", str(look))
    if before is None:
        return Proxy(url, "up")
    state = "restarted" if has_restarted(before, look) else "up"
    return Proxy(url, state, seconds=look.at_s - before.at_s)
