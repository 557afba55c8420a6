"""The requests of a trainer to control, and how these may fail.

`edges/control_client.py` sends them over HTTP, `edges/terminal_socket.py` connects terminals by WebSocket.

See docs/reference/training.md#internal-api.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from policy.training.caches import CacheSummary
from policy.training.reports import BackendReport, CheckpointReport, Claimed, OutputBatch, WantedState
from trainer.backend import JobEnvironment


class ControlAwayError(Exception):
    """Control cannot be reached, or cannot answer now. The message says how that showed."""


class ControlRefusedError(Exception):
    """Control does not take what it was told about a job: the job is gone, or it is at another attempt."""


class AnotherTrainerError(Exception):
    """Control has heard from another trainer a moment ago."""


class Control(Protocol):
    """Control's internal API for trainers. Every method may raise ControlAwayError, and may be repeated."""

    async def sync(self, report: BackendReport) -> WantedState:
        """Tell what is observed; what control wants. AnotherTrainerError: it listens to another one."""
        ...

    async def claim(self, job_id: str, attempt: int) -> Claimed | None:
        """The attempt after `attempt`, to be started now. None: the job may not start now."""
        ...

    async def environment(self, token: str) -> JobEnvironment:
        """Spend an environment token. Waits while control is away. EnvironmentRefusedError if control refuses."""
        ...

    async def output(self, job_id: str, batch: OutputBatch) -> int:
        """Deliver output; the offset up to which control has it now. ControlRefusedError."""
        ...

    async def checkpoints(self, job_id: str, attempt: int, reports: Sequence[CheckpointReport]) -> None:
        """Deliver all checkpoints of an attempt. ControlRefusedError."""
        ...

    async def cache(self, summary: CacheSummary) -> None:
        """Deliver the summary of a project's cache. ControlRefusedError."""
        ...

    async def cache_removed(self, project_id: str) -> None:
        """Tell that nothing is left of a deleted project's cache. ControlRefusedError."""
        ...


class ControlLostError(Exception):
    """Control is away, or nobody waits for the terminal any more."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal, in characters."""

    columns: int
    rows: int


class ControlSocket(Protocol):
    """The connection of one terminal to control."""

    async def receive(self) -> bytes | Size | None:
        """Return what was typed, or the terminal's new size. None: control closed the connection."""
        ...

    async def send(self, output: bytes) -> None:
        """Returns when control can take more. Raises ControlLostError."""
        ...

    async def close(self, reason: str | None) -> None:
        """`reason`: for the person at the browser. None: the shell has ended by itself."""
        ...


class Dialler(Protocol):
    """Connects terminals to control."""

    def dial(self, terminal_id: str) -> AbstractAsyncContextManager[ControlSocket]:
        """The connection of a terminal. Raises ControlLostError on entry."""
        ...
