"""The parts of an attempt, as its driver sees it: nodes, checkpoints and the room that Ray reserved for them.

`trainer/edges/ray/driver/placement.py` has the real ones, which are actors on the machines of the cluster.
See docs/reference/training.md#ray.
"""

from dataclasses import dataclass
from typing import Protocol

from policy.training.reports import CheckpointReport, Restore
from trainer.backend import JobEnvironment
from trainer.runner.state import Exit


class LostError(Exception):
    """A part of the attempt is gone, or could not begin. The message says which part, where and why."""


class NoRoomError(Exception):
    """The Ray cluster has no room for the nodes now. The message says how long the driver waited."""


@dataclass(frozen=True, slots=True)
class NodeStart:
    """The values that a node needs and that are known only when all nodes have their machines."""

    environment: JobEnvironment
    leader_address: str


@dataclass(frozen=True, slots=True)
class Progress:
    """`content`: whole lines of output from the asked offset on. `is_end`: the node has ended and printed no more."""

    content: bytes
    is_end: bool = False
    exit: Exit | None = None
    """The end of the node; None at its end: its runner was killed."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The checkpoints after a look at them. `is_syncing`: one that is complete on disk is not in the store yet."""

    reports: tuple[CheckpointReport, ...]
    is_syncing: bool
    refusal: str | None = None
    """The checkpoint that is not stored, and why."""


class Node(Protocol):
    """A node on its machine. Every method may raise LostError."""

    async def prepare(self) -> str:
        """Make the node's directories. Returns the machine's address."""
        ...

    async def load(self) -> None:
        """Put the checkpoints that the job loads on the node's machine."""
        ...

    async def unpack(self) -> None:
        """Unpack the job's artifacts in the node's own directory."""
        ...

    async def fetch(self, environment: JobEnvironment) -> None:
        """Put the job's weights on the node's machine. What it tells is in `progress` meanwhile."""
        ...

    async def start(self, start: NodeStart) -> None: ...

    async def progress(self, offset: int) -> Progress: ...

    async def stop(self) -> None:
        """SIGTERM now, SIGKILL after the grace period."""
        ...

    async def clean(self) -> None:
        """Remove the node's files."""
        ...


class Checkpoints(Protocol):
    """The checkpoint directory on node 0's machine. Every method may raise LostError."""

    async def restore(self, restore: Restore) -> None: ...

    async def look(self) -> Synced:
        """Send what is complete."""
        ...

    async def finish(self) -> Synced:
        """Send what is left after the end of the nodes."""
        ...

    async def clean(self) -> None:
        """Remove the directory, and all that is left of the attempt on that machine."""
        ...


class Placement(Protocol):
    """The attempt's room in the cluster."""

    async def reserve(self) -> None:
        """Reserve room for all nodes. Raises NoRoomError."""
        ...

    def node(self, rank: int) -> Node: ...

    def checkpoints(self) -> Checkpoints: ...

    def release(self) -> None:
        """Give the room of the nodes back. The checkpoints need none."""
        ...
