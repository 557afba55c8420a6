"""Bounds how many requests of each workspace, or with one idempotency key, are processed at a time in this process."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 3
"""Requests of one workspace that are processed at the same time, so that none fills the process's memory."""


class WorkspaceTurns:
    """Admits at most `at_once` requests of each workspace at a time; further ones of that workspace queue."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @property
    def is_idle(self) -> bool:
        """Return whether no request is being processed."""
        return not self._users

    @asynccontextmanager
    async def of(self, workspace_id: str) -> AsyncIterator[None]:
        semaphore = self._semaphores.setdefault(workspace_id, asyncio.Semaphore(self._at_once))
        self._users[workspace_id] += 1
        try:
            async with semaphore:
                yield
        finally:
            self._users[workspace_id] -= 1
            if not self._users[workspace_id]:
                del self._users[workspace_id], self._semaphores[workspace_id]
