"""Tells control which incarnations of this machine's workers may still give events: those that run, and those whose
journals are on disk. Control releases what others have reserved of spend limits, and after a loss of Redis waits for
each machine that has told of itself. So a worker reserves by HARD limits once control has taken a report that names it.

See docs/reference/management-api.md#internal-api.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from proxy.edges.journal.supervisor.delivery import in_thread
from proxy.edges.journal.supervisor.spend_rebuilds import Committed, ProxyWorker, SpendRebuilds
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError, ReportRejectedError
from runtime.background import is_set_within
from runtime.log_lines import cause_of
from runtime.private_files import replace_file

INTERVAL_S = 2.0
GATHER_S = 0.05
"""Time between a change and its report, so that changes which come together are told together."""
REBUILT_AT_ONCE = 2_000
"""The most trees that a report confirms, of the ten thousand that control takes. The next report has more."""
MAX_NAME_CHARS = 255
WORD_FILE = ".machine"
"""A file in the directory of journals, which ignores names with a dot."""
log = logging.getLogger(__name__)


class MachineReports:
    """Reports of one machine. Call `changed` and `started` at any time; reports leave while `run` runs.

    `rebuilds.run` has to run, too.
    """

    def __init__(
        self,
        reports: ControlReports,
        directory: Path,
        workers: Callable[[], Sequence[ProxyWorker]],
        committed: Committed,
    ) -> None:
        """`directory`: of the journals. `workers`: the places for workers, of which some may be empty."""
        self.name = machine_name(directory)
        self.rebuilds = SpendRebuilds(workers, committed, self.changed)
        self._reports = reports
        self._directory = directory
        self._workers = workers
        self._change = asyncio.Event()
        self._sending = asyncio.Lock()
        self._is_over = False
        self._logged_rejection = ""

    def changed(self) -> None:
        """Note that a worker died, a journal was removed, or a rebuild is done."""
        self._change.set()

    def started(self, incarnation: str) -> None:
        """Note that a worker was started. It is told what waits once control has taken a report that names it."""
        self.rebuilds.started(incarnation)
        self.changed()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ReportNotTakenError):  # the client logs it
                await self.send()
            if await is_set_within(self._change, INTERVAL_S):
                await asyncio.sleep(GATHER_S)

    async def send(self) -> None:
        """Send the report once. Raises `ReportNotTakenError`.

        Nothing is sent while there is no incarnation to tell of: control would forget the machine.
        """
        async with self._sending:
            self._change.clear()
            incarnations = await self._incarnations()
            if self._is_over or not incarnations:
                return
            rebuilt = dict(islice(self.rebuilds.confirmed.items(), REBUILT_AT_ONCE))
            answer = await self._post(incarnations, rebuilt)
            if answer is not None:
                self.rebuilds.tell(incarnations, _waiting(answer), rebuilt)
                if self.rebuilds.confirmed:
                    self.changed()

    async def finish(self, within_s: float) -> None:
        """Tell control, in at most `within_s`, that this machine gives no more events. It is told nothing afterwards.

        Call this when all workers have ended, and all journals are committed and removed.
        """
        self._is_over = True
        try:
            async with asyncio.timeout(within_s), self._sending:
                if not await self._incarnations():
                    await self._post(set(), {})
        except (TimeoutError, ReportNotTakenError) as error:
            log.warning(
                "Control could not be told that this machine has ended (%s). If Redis loses its data before the machine"
                " starts again, calls that HARD spend limits or balances bind are answered 503 on all machines: start"
                " it again, or run `tollgate spend release --machine %s`.",
                cause_of(error),
                self.name,
            )

    async def _incarnations(self) -> set[str]:
        # Before the disk: a worker that dies meanwhile has its journal there.
        live = {worker.incarnation for worker in self._workers() if worker.incarnation}
        return live | await in_thread(journals_in, self._directory)

    async def _post(self, incarnations: set[str], rebuilt: dict[str, str]) -> dict[str, Any] | None:
        """The answer; None if control has not kept the report."""
        report = {"machine": self.name, "incarnations": sorted(incarnations), "rebuilt": rebuilt}
        try:
            answer = await self._reports.post("machines", report)
        except ReportRejectedError as error:
            if (cause := cause_of(error)) != self._logged_rejection:  # once per cause, not every two seconds
                self._logged_rejection = cause
                log.error("Control rejected a report of workers as malformed (%s). Please report this bug.", cause)
            return None
        self._logged_rejection = ""
        return answer


def machine_name(directory: Path) -> str:
    """The machine's name to control, the same after a restart: its host, a random word, the directory of its journals.

    The word is kept in that directory. So machines that are set up alike have names of their own.
    """
    return f"{socket.gethostname()}:{_word_in(directory)}:{directory.absolute()}"[:MAX_NAME_CHARS]


def _word_in(directory: Path) -> str:
    """The word that the directory holds; "" if the disk refuses it, as it refuses the journals then."""
    path = directory / WORD_FILE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            replace_file(path, secrets.token_hex(4))
        return path.read_text("ascii")
    except OSError as error:
        log.error(
            "The machine's name cannot be kept in %s (%s): another machine of the same host name and directory would be"
            " taken for this one. See to the disk of TOLLGATE_JOURNAL_DIR.",
            *(directory, cause_of(error)),
        )
        return ""


def journals_in(directory: Path) -> set[str]:
    """The incarnations whose journals are there. A name with a dot is being created or removed, or is none."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}
    except FileNotFoundError:
        return set()


def _waiting(answer: Mapping[str, Any]) -> dict[str, str]:
    """The state of each tree that waits for this machine, by hash key. Controls of before HARD limits name none."""
    states = answer.get("waiting", {})
    return {str(key): str(state) for key, state in states.items()} if isinstance(states, dict) else {}
