"""Connects the shells that browsers wait for: each between its node, by the backend, and control.

Knows nothing of what is typed and shown, and logs none of it.

See docs/reference/training.md#interactive-sessions.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from policy.training.reports import WantedTerminal
from runtime.shares.places import NoPlaceError, Places
from trainer.backend import Backend, BackendAwayError, NoTerminalError, Terminal
from trainer.control import ControlLostError, ControlSocket, Dialler, Size

MAX_TYPED_BYTES = 2_097_152
"""The bytes that were typed and that the shell has not read. Control bounds them, too."""
MAX_OPEN = 64
_MAX_MESSAGE_BYTES = 65_536
log = logging.getLogger(__name__)


class Terminals:
    """The open terminals of one trainer."""

    def __init__(self, backend: Backend, dialler: Dialler) -> None:
        self._backend = backend
        self._dialler = dialler
        self._places = Places(MAX_OPEN, "shells")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._terminal_ids: set[str] = set()

    def connect(self, terminals: Sequence[WantedTerminal]) -> None:
        """Connect those that were not asked for before. Returns at once. Control repeats what it waits for."""
        ids = {one.terminal_id for one in terminals}
        self._terminal_ids &= ids | self._tasks.keys()
        for one in terminals:
            if one.terminal_id not in self._terminal_ids:
                with suppress(NoPlaceError):  # control repeats it, or its browser gives up
                    self._places.acquire(one.workspace_id)
                    self._begin(one)

    async def close(self) -> None:
        """End all shells."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, terminal: WantedTerminal) -> None:
        self._terminal_ids.add(terminal.terminal_id)
        task = asyncio.create_task(self._serve(terminal))
        self._tasks[terminal.terminal_id] = task
        task.add_done_callback(partial(self._forget, terminal))

    def _forget(self, terminal: WantedTerminal, _task: asyncio.Task[None]) -> None:
        del self._tasks[terminal.terminal_id]
        self._places.leave(terminal.workspace_id)

    async def _serve(self, terminal: WantedTerminal) -> None:
        try:
            async with self._dialler.dial(terminal.terminal_id) as control:
                await self._run(terminal, control)
        except ControlLostError:
            return
        except Exception:  # a bug must not end the trainer
            log.exception("A shell on node %d of %s ended by a bug. Please report it.", terminal.rank, terminal.job_id)

    async def _run(self, terminal: WantedTerminal, control: ControlSocket) -> None:
        try:
            shell = await self._backend.terminal(terminal.job_id, terminal.attempt, terminal.rank)
        except (NoTerminalError, BackendAwayError) as error:
            await control.close(str(error) or "There is no shell on this node.")
            return
        log.info("Opened a shell on node %d of %s.", terminal.rank, terminal.job_id)
        try:
            await _carry(shell, control)
        finally:
            await shell.close()
        log.info("Closed a shell on node %d of %s.", terminal.rank, terminal.job_id)


async def _carry(shell: Terminal, control: ControlSocket) -> None:
    """Carry until one side ends. Closes control's connection; the caller closes the shell."""
    typed = _Typed()
    tasks = [
        asyncio.create_task(part) for part in (_show(shell, control), _receive(control, typed), _type(shell, typed))
    ]
    try:
        over, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        reason = next(task for task in tasks if task in over).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await control.close(reason)


class _Typed:
    """The typed input that waits for the shell. Reading from control goes on meanwhile, to notice its end."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Size] = asyncio.Queue()
        self.bytes = 0

    def add(self, one: bytes | Size) -> bool:
        """Add input; return whether there was room."""
        self.bytes += _size_of(one)
        self.queue.put_nowait(one)
        return self.bytes <= MAX_TYPED_BYTES


def _size_of(one: bytes | Size) -> int:
    return len(one) if isinstance(one, bytes) else 64


async def _show(shell: Terminal, control: ControlSocket) -> None:
    while output := await shell.read():
        for start in range(0, len(output), _MAX_MESSAGE_BYTES):
            await control.send(output[start : start + _MAX_MESSAGE_BYTES])


async def _receive(control: ControlSocket, typed: _Typed) -> str | None:
    while (one := await control.receive()) is not None:
        if not typed.add(one):
            return "More was typed than the shell reads."
    return None


async def _type(shell: Terminal, typed: _Typed) -> None:
    while True:
        one = await typed.queue.get()
        await (shell.resize(one.columns, one.rows) if isinstance(one, Size) else shell.write(one))
        typed.bytes -= _size_of(one)
