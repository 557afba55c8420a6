"""Sends lines to the deployment's log in batches. While control is away they wait in the bounded buffer."""

import asyncio
import time
from collections.abc import Callable

from launcher.edges.control_client import ControlAwayError, ControlClient, ControlRefusedError
from launcher.output_lines import LineBuffer, LogLine, guess_level

GATHER_S = 0.5
"""The time that the first line of a batch waits for others."""
LONGEST_PAUSE_S = 15.0
Say = Callable[[str], None]


class LogSender:
    """Takes lines at any time and never waits. Sends them in order."""

    def __init__(self, control: ControlClient, say: Say, secrets: tuple[str, ...]) -> None:
        self._control = control
        self._say = say
        self._lines = LineBuffer(secrets)
        self._has_lines = asyncio.Event()
        self._refusal = ""
        self._told_dropped = 0

    def add(self, text: str, replica: str | None = None, level: str | None = None) -> None:
        self._lines.add(LogLine(time.time_ns(), level or guess_level(text), text, replica))
        self._has_lines.set()

    async def run(self) -> None:
        """Send for ever."""
        pause_s = GATHER_S
        while True:
            await self._has_lines.wait()
            await asyncio.sleep(pause_s)
            pause_s = GATHER_S if await self._send() else min(pause_s * 2, LONGEST_PAUSE_S)

    async def flush(self) -> None:
        """Send what is left, until control fails to answer."""
        while len(self._lines) and await self._send():
            pass

    async def _send(self) -> bool:
        """Send one batch. Returns whether control took or refused it; otherwise it stays."""
        batch = self._lines.first()
        try:
            await self._control.append([line.to_json() for line in batch])
            self._refusal = ""
        except ControlAwayError:
            return False  # the registration reports the outage
        except ControlRefusedError as refused:
            self._tell_once(refused)
        self._lines.remove(batch)
        self._tell_dropped()
        if not len(self._lines):
            self._has_lines.clear()
        return True

    def _tell_once(self, refused: ControlRefusedError) -> None:
        if str(refused) != self._refusal:
            self._refusal = str(refused)
            self._say(f"Control refused log lines ({refused}); they are left out. Serving goes on.")

    def _tell_dropped(self) -> None:
        if self._lines.dropped > self._told_dropped:
            count = self._lines.dropped - self._told_dropped
            self._told_dropped = self._lines.dropped
            self.add(f"{count} log lines were dropped while control was away", level="WARNING")
