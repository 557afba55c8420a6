"""Tells control which incarnations of this machine's workers may still give events: those that run, and those whose
journals are on disk. Control releases what others have reserved of spend limits.

Every 30 s, and soon after a worker started or died, or a journal was committed whole and removed.

See docs/reference/management-api.md#internal-api.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from proxy.edges.journal.supervisor.delivery import in_thread
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError, ReportRejectedError
from runtime.background import is_set_within
from runtime.log_lines import cause_of

INTERVAL_S = 30.0
GATHER_S = 1.0
"""Time between a change and its report, so that changes which come together are told together."""
MAX_NAME_CHARS = 255
log = logging.getLogger(__name__)


class MachineReports:
    """Reports of one machine. Call `changed` at any time; reports leave while `run` runs."""

    def __init__(self, reports: ControlReports, directory: Path, live: Callable[[], Iterable[str]]) -> None:
        """`directory`: of the journals. `live`: the incarnations that run; "" where none does."""
        self.name = machine_name(directory)
        self._reports = reports
        self._directory = directory
        self._live = live
        self._change = asyncio.Event()

    def changed(self) -> None:
        """Note that a worker died, or that a journal was removed."""
        self._change.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ReportNotTakenError):  # the client logs it
                await self.send()
            # A worker that starts takes calls in a moment, and nothing else tells of it.
            is_starting = not all(self._live())
            if await is_set_within(self._change, GATHER_S if is_starting else INTERVAL_S):
                await asyncio.sleep(GATHER_S)

    async def send(self) -> None:
        """Send the report once. Raises `ReportNotTakenError`."""
        self._change.clear()
        live = set(filter(None, self._live()))  # before the disk: a worker that dies meanwhile has its journal there
        incarnations = live | await in_thread(journals_in, self._directory)
        try:
            await self._reports.post("machines", {"machine": self.name, "incarnations": sorted(incarnations)})
        except ReportRejectedError as error:
            log.error(
                "Control rejected a report of workers as malformed (%s). Please report this bug.", cause_of(error)
            )


def machine_name(directory: Path) -> str:
    """The machine's name to control, the same after a restart: its host, and the directory that holds its journals."""
    return f"{socket.gethostname()}:{directory.absolute()}"[:MAX_NAME_CHARS]


def journals_in(directory: Path) -> set[str]:
    """The incarnations whose journals are there. A name with a dot is being created or removed, or is none."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}
    except FileNotFoundError:
        return set()
