"""Gives back what this process holds without knowing it: something has begun in Redis, and the reply was lost.

Otherwise nobody would run it until its lease ends. Nothing begins in such a workspace until that is done.
"""

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from proxy.async_requests.queues import RENEW_INTERVAL_S
from proxy.edges.redis.async_queue.commands import QueueCommands

GIVE_BACK_MOST = 100
"""Requests that one call deals with: about 2 ms of Redis' time."""
KNOWN_FOR_S = 5 * RENEW_INTERVAL_S
"""What was not renewed for so long is not held."""


class Holdings:
    """One per process, which is one holder."""

    def __init__(self, commands: QueueCommands) -> None:
        self._commands = commands
        self._known: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By workspace, the requests that are held, and when that was last said."""
        self._beginning: Counter[str] = Counter()
        self._doubtful: dict[str, str] = {}
        """Workspaces in which something may have begun, and the holder."""

    def may_begin(self, workspace_id: str) -> bool:
        return workspace_id not in self._doubtful

    @asynccontextmanager
    async def beginning(self, workspace_id: str, holder: str) -> AsyncIterator[None]:
        """While Redis is asked to begin something. It may have done so though the question fails."""
        self._beginning[workspace_id] += 1
        try:
            yield
        except BaseException:
            self._doubtful[workspace_id] = holder
            raise
        finally:
            self._beginning[workspace_id] -= 1

    def hold(self, workspace_id: str, request_ids: Iterable[str]) -> None:
        """These have begun, or are to be renewed."""
        self._known[workspace_id].update(dict.fromkeys(request_ids, time.monotonic()))

    async def settle(self, workspace_id: str, prefix: str) -> None:
        """Give back what is not known to be held, once Redis answers and no question is under way.

        `prefix`: of the workspace's keys.
        """
        holder = self._doubtful.get(workspace_id)
        if holder is None or self._beginning[workspace_id]:
            return
        oldest = time.monotonic() - KNOWN_FOR_S
        known = {id: at for id, at in self._known.pop(workspace_id, {}).items() if at > oldest}
        self._known[workspace_id] = known
        given = GIVE_BACK_MOST
        while given == GIVE_BACK_MOST:
            given = await self._commands.run("give_back", prefix, holder, GIVE_BACK_MOST, 1, *known)
        del self._doubtful[workspace_id]
