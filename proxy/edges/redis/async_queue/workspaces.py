"""The index of workspaces that have requests which have not ended: `tga:workspaces`, a zset.

A workspace is added before a request of it is queued, so none is ever missing. Its score rises whenever it is added. It
is removed when sweeps find nothing and its score has stayed the same for `GRACE_S`, by this process' monotonic clock.
"""

from collections.abc import Sequence

from proxy.edges.redis.async_queue.commands import QueueCommands

INDEX = "tga:workspaces"
ADDED_FOR_S = 20.0
"""The time for which a process relies on having added a workspace."""
GRACE_S = 60.0
"""The time for which a workspace stays once added: longer than `ADDED_FOR_S` and the deadline of a submission."""


class WorkspaceIndex:
    """One per process."""

    def __init__(self, commands: QueueCommands) -> None:
        self._commands = commands
        self._added: dict[str, float] = {}
        self._scores: dict[str, tuple[bytes, float]] = {}
        """Scores of workspaces in which nothing was left, and since when they have had them."""

    async def add(self, workspace_id: str) -> None:
        now = self._commands.clock()
        if now - self._added.get(workspace_id, float("-inf")) < ADDED_FOR_S:
            return
        await self._commands.run("add_workspace", INDEX, workspace_id)
        if len(self._added) >= 10_000:
            self._added.clear()
        self._added[workspace_id] = now

    async def add_again(self, workspace_id: str) -> None:
        """Add the workspace even if this process has added it lately: Redis may have lost it."""
        self._added.pop(workspace_id, None)
        await self.add(workspace_id)

    async def forget(self, workspace_id: str) -> None:
        """Remove a workspace that was empty a moment ago, once its score has stayed the same for `GRACE_S`."""
        now = self._commands.clock()
        score, since = self._scores.pop(workspace_id, (b"", now))
        old = score if now - since >= GRACE_S else b""
        current = await self._commands.run("forget_workspace", INDEX, workspace_id, old)
        if current is not None:
            self._scores[workspace_id] = current, since if current == score else now

    async def all(self) -> Sequence[str]:
        members = await self._commands.call(INDEX, lambda redis: redis.zrange(INDEX, 0, -1))
        return [workspace.decode() for workspace in members]
