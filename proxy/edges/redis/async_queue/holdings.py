"""Gives back what this process holds without knowing it: something has begun in Redis, and the reply was lost.

Otherwise nobody would run it until its lease ends. Nothing begins in such a workspace until that is done.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from proxy.edges.redis.async_queue.commands import QueueCommands

GIVE_BACK_MOST = 100
"""Requests that one call deals with: about 2 ms of Redis' time."""


class Holdings:
    """One per process, which is one holder."""

    def __init__(self, commands: QueueCommands) -> None:
        self._commands = commands
        self._request_ids: defaultdict[str, set[str]] = defaultdict(set)
        """The requests that are held, by workspace."""
        self._beginning: Counter[str] = Counter()
        self._doubtful: dict[str, str] = {}
        """Workspaces in which something may have begun, and the holder."""

    def may_begin(self, workspace_id: str) -> bool:
        return workspace_id not in self._doubtful

    @asynccontextmanager
    async def beginning(self, workspace_id: str, holder: str) -> AsyncIterator[None]:
        """Mark that Redis is asked to begin something. If the question fails, it may have begun."""
        self._beginning[workspace_id] += 1
        try:
            yield
        except BaseException:
            self._doubtful[workspace_id] = holder
            raise
        finally:
            self._beginning[workspace_id] -= 1

    def hold(self, workspace_id: str, request_id: str) -> None:
        """Note that the request has begun."""
        self._request_ids[workspace_id].add(request_id)

    def release(self, workspace_id: str, request_ids: Iterable[str]) -> None:
        """Note that the requests have ended, or are lost."""
        request_ids_held = self._request_ids[workspace_id]
        request_ids_held.difference_update(request_ids)
        if not request_ids_held:
            del self._request_ids[workspace_id]

    async def give_back_doubtful(self, workspace_id: str, prefix: str) -> None:
        """Give back what is not known to be held, once Redis answers and no question is under way.

        `prefix`: of the workspace's keys.
        """
        holder = self._doubtful.get(workspace_id)
        if holder is None or self._beginning[workspace_id]:
            return
        request_ids = self._request_ids.get(workspace_id, ())
        count = GIVE_BACK_MOST
        while count == GIVE_BACK_MOST:
            count = await self._commands.run("give_back", prefix, holder, GIVE_BACK_MOST, 1, *request_ids)
        self._doubtful.pop(workspace_id, None)  # another sweep may have settled it
