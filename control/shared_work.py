"""Runs that many callers share: many proxies ask for the same thing at the same moment, after each change.

A run serves only those who asked before it began. Whoever asks while one runs may know of a later commit, and waits for
the next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SharedWork(Generic[Key, Result]):
    """Runs `work(key)`, one run at a time per key. Keeps nothing once a run has ended."""

    def __init__(self, work: Callable[[Key], Awaitable[Result]]) -> None:
        self._work = work
        self._running: dict[Key, asyncio.Task[Result]] = {}
        self._next_runs: dict[Key, asyncio.Task[Result]] = {}

    async def of(self, key: Key) -> Result:
        """The result, or the error, of a run that begins after this call. It goes on if its askers are cancelled."""
        run = self._next_runs.get(key)
        if run is None:
            run = self._next_runs[key] = asyncio.create_task(self._after(key, self._running.get(key)))
        return await asyncio.shield(run)

    async def _after(self, key: Key, running: asyncio.Task[Result] | None) -> Result:
        if running is not None:
            await asyncio.wait([running])
        self._running[key] = task = self._next_runs.pop(key)
        try:
            return await self._work(key)
        finally:
            if self._running[key] is task:
                del self._running[key]
