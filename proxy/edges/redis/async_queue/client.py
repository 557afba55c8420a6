"""A process' part of the queue in Redis: its commands, and what it repeats after a crash."""

from proxy.edges.redis.async_queue.commands import QueueCommands, QueueOptions
from proxy.edges.redis.async_queue.holdings import Holdings
from proxy.edges.redis.async_queue.inputs import Inputs
from proxy.edges.redis.async_queue.pace import Pace
from proxy.edges.redis.async_queue.repeats import Repeats
from proxy.edges.redis.async_queue.workspaces import WorkspaceIndex

PACE_BYTES_PER_S = 32_000_000
"""The rate at which a process moves large texts to and from Redis: they take about a tenth of Redis' time."""


class QueueClient:
    """One per process; its parts share it. Connects on use."""

    def __init__(self, url: str, options: QueueOptions | None = None) -> None:
        options = options or QueueOptions()
        self.commands = QueueCommands(url, options)
        self.pace = Pace(PACE_BYTES_PER_S)
        """The pace of answers. Inputs have their own, so that neither waits for the other."""
        self.inputs = Inputs(self.commands, Pace(PACE_BYTES_PER_S), options.piece_bytes)
        self.index = WorkspaceIndex(self.commands)
        self.repeats = Repeats(self.commands, self.index)
        self.holdings = Holdings(self.commands)

    @property
    def trouble(self) -> str:
        """The fault of the last command; "" if it had none."""
        return self.commands.trouble

    async def close(self) -> None:
        await self.repeats.close()
        await self.commands.close()


def keys_of(workspace_id: str) -> str:
    """The prefix of all keys of a workspace. The braces put them into one slot of a Redis cluster."""
    return f"tga:{{{workspace_id}}}:"
