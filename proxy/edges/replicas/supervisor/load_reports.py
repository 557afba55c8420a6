"""Reports to control this machine's load of each deployment, and which replicas are healthy.

At once when a figure leaves 0 or returns to it or health changes, twice a second while a figure is not 0, and now and
then otherwise. Only the newest figures count: while control is away, nothing is queued but the deployments' names.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from policy.deployment_load import DeploymentLoad
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError, ReportRejectedError
from runtime.backoff import pause_s
from runtime.log_lines import cause_of

GATHER_S = 0.04
"""Time between two posts, so that changes which come together are sent together."""
BUSY_INTERVAL_S = 0.5
REFRESH_INTERVAL_S = 10.0
"""Time between two posts that report idle deployments again: control may have lost what it knew."""
LONGEST_PAUSE_S = 5.0
MAX_LOADS = 1000
MAX_URL_CHARS = 4_000_000
"""Most deployments, and about the most characters of replicas' base URLs, in one post."""
SLICE = 100
"""The number of deployments that are read in one turn of the event loop, which calls share."""
log = logging.getLogger(__name__)


class Loads(Protocol):
    """The load that this machine carries: the switchboard."""

    def deployment_ids(self) -> Iterable[str]: ...

    def load_of(self, deployment_id: str) -> DeploymentLoad | None: ...


class LoadReports:
    """Reports of loads. Call `changed` at any time; reports leave while `run` runs. `machine`: its name to control."""

    def __init__(self, reports: ControlReports, loads: Loads, machine: str) -> None:
        self._reports = reports
        self._loads = loads
        self._machine = machine
        self._changed: dict[str, None] = {}
        self._busy: dict[str, None] = {}
        """Deployments to report in the next round: a figure is not 0, or was not 0 a moment ago."""
        self._outlines: dict[str, object] = {}
        self._to_refresh: list[str] = []
        self._busy_at_s = self._refresh_at_s = 0.0
        self._wake = asyncio.Event()
        self._sending = asyncio.Lock()
        self._failures = 0

    def changed(self, deployment_id: str) -> None:
        """Note that a figure of a deployment left 0 or returned to it, or the health of a replica changed."""
        self._changed[deployment_id] = None
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wait()
            try:
                await self._send(self._due(asyncio.get_running_loop().time()))
            except ReportNotTakenError:
                self._failures += 1
            else:
                self._failures = 0
            await asyncio.sleep(self._pause_s())

    async def finish(self) -> None:
        """Report what has changed, for the last time. Raises `ReportNotTakenError`."""
        await self._send(self._busy | self._changed)

    async def _wait(self) -> None:
        """Return when there may be something to report."""
        if self._failures:
            return  # it has paused
        at_s = min(self._refresh_at_s, self._busy_at_s) if self._busy else self._refresh_at_s
        try:
            async with asyncio.timeout_at(at_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _due(self, now_s: float) -> dict[str, None]:
        """The deployments to report now. Calls so short that nothing looks different afterwards wait for the round."""
        self._wake.clear()
        due: dict[str, None] = {}
        if now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + REFRESH_INTERVAL_S
            due |= self._next_to_refresh()
        if now_s >= self._busy_at_s:
            self._busy_at_s = now_s + BUSY_INTERVAL_S
            due |= self._busy
        for id in self._changed:
            if self._outlines.get(id) == _outline(self._loads.load_of(id)):
                self._busy[id] = None
            else:
                due[id] = None
        self._changed = {}
        return due

    async def _send(self, due: dict[str, None]) -> None:
        ids = list(due)
        async with self._sending:
            while ids:
                try:
                    loads, count = await self._next_loads(ids)
                    await self._post(loads)
                except BaseException:
                    for id in ids:
                        self._changed[id] = None
                        self._outlines.pop(id, None)
                    raise
                del ids[:count]

    async def _next_loads(self, ids: list[str]) -> tuple[list[dict[str, Any]], int]:
        """The newest figures of the first deployments, as many as fit into a post, and their number."""
        loads: list[dict[str, Any]] = []
        count = url_chars = 0
        while count < min(len(ids), MAX_LOADS) and url_chars < MAX_URL_CHARS:
            id = ids[count]
            count += 1
            if count % SLICE == 0:
                await asyncio.sleep(0)
            load = self._loads.load_of(id)
            self._changed.pop(id, None)
            self._busy.pop(id, None)
            if load is None:
                self._outlines.pop(id, None)
                continue
            loads.append(load.to_wire())
            url_chars += sum(map(len, (*load.healthy, *load.unhealthy)))
            self._outlines[id] = _outline(load)
            if load.has_calls:
                self._busy[id] = None
        return loads, count

    async def _post(self, loads: list[dict[str, Any]]) -> None:
        try:
            await self._reports.post("loads", {"machine": self._machine, "loads": loads})
        except ReportRejectedError as error:
            log.error("Control rejected a report of loads as malformed (%s). Please report this bug.", cause_of(error))

    def _next_to_refresh(self) -> dict[str, None]:
        """All deployments in turn: so many at a time as fit into a post."""
        if not self._to_refresh:
            self._to_refresh = list(self._loads.deployment_ids())
        ids = self._to_refresh[:MAX_LOADS]
        self._to_refresh = self._to_refresh[MAX_LOADS:]
        return dict.fromkeys(ids)

    def _pause_s(self) -> float:
        """Time to the next post, at least."""
        return pause_s(self._failures, BUSY_INTERVAL_S, LONGEST_PAUSE_S) if self._failures else GATHER_S


def _outline(load: DeploymentLoad | None) -> object:
    """The part of a load whose change is reported at once."""
    return load and (load.in_flight > 0, load.queued > 0, load.parked > 0, load.healthy, load.unhealthy)
