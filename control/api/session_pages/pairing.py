"""The terminals that browsers have open at this process: which of them wait for a trainer, and who belongs together.

In memory: with several control processes, a browser and the trainer must reach the same one.

See docs/reference/training.md#interactive-sessions.
"""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiohttp import web

from control.records.training import SessionRecord
from policy.training.reports import WantedTerminal
from runtime.shares.places import NoPlaceError, Places

MAX_PER_SESSION = 4
MAX_OPEN = 64
"""The most open terminals of this process. Each takes two of its connections."""


class TooManyTerminalsError(Exception):
    """No further terminal may be opened now. The message says why, for the person at the browser."""


class Terminal:
    """One browser's shell. `node` is the trainer's connection, once it is there."""

    def __init__(self, workspace_id: str, session: SessionRecord, browser: web.WebSocketResponse) -> None:
        self.id = secrets.token_hex(32)
        self.workspace_id = workspace_id
        self.session = session
        self.browser = browser
        self.node: asyncio.Future[web.WebSocketResponse] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    @property
    def wanted(self) -> WantedTerminal:
        session = self.session
        return WantedTerminal(self.id, session.job_id, session.attempt, session.rank, self.workspace_id)


class Terminals:
    """The open terminals of one control process."""

    def __init__(self) -> None:
        self._open: dict[str, Terminal] = {}
        self._places = Places(MAX_OPEN, "shells")

    @contextmanager
    def opened(self, workspace_id: str, session: SessionRecord, browser: web.WebSocketResponse) -> Iterator[Terminal]:
        """A terminal that waits for its trainer from now on, and has ended with the block. TooManyTerminalsError."""
        if sum(one.session.id == session.id for one in self._open.values()) >= MAX_PER_SESSION:
            raise TooManyTerminalsError(f"This session has {MAX_PER_SESSION} shells open. Close one of them first.")
        with self._place(workspace_id):
            terminal = Terminal(workspace_id, session, browser)
            self._open[terminal.id] = terminal
            try:
                yield terminal
            finally:
                del self._open[terminal.id]
                terminal.node.cancel()
                terminal.ended.set()

    @contextmanager
    def _place(self, workspace_id: str) -> Iterator[None]:
        try:
            self._places.acquire(workspace_id)
        except NoPlaceError:
            raise TooManyTerminalsError(
                "Too many shells of this workspace are open. Close one of them, or try again later."
            ) from None
        try:
            yield
        finally:
            self._places.leave(workspace_id)

    def wanted(self) -> tuple[WantedTerminal, ...]:
        """The terminals that no trainer has joined yet, for a trainer to connect."""
        return tuple(one.wanted for one in self._open.values() if not one.node.done())

    def waiting(self, terminal_id: str) -> Terminal | None:
        """The terminal that a trainer may join. Each is joined once."""
        terminal = self._open.get(terminal_id)
        return terminal if terminal is not None and not terminal.node.done() else None

    def browsers(self) -> Sequence[web.WebSocketResponse]:
        return [one.browser for one in self._open.values()]


TERMINALS = web.AppKey("terminals", Terminals)
