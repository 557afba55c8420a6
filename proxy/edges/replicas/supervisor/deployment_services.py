"""The supervisor's work for deployments beside assigning calls: probes, reports to control, logs, wakes, gauges.

Connects them to the switchboard, which reports loads and ended calls, and gets the replicas' health.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

from proxy.edges.policy.supervisor.model_rows import ModelChange
from proxy.edges.replicas.supervisor.call_log import CallLog
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportNotTakenError
from proxy.edges.replicas.supervisor.load_reports import LoadReports
from proxy.edges.replicas.supervisor.prober import Prober
from proxy.edges.telemetry.supervisor.deployment_metrics import DeploymentMetrics
from proxy.parts import UpstreamClient
from proxy.replicas.supervisor.switchboard import Switchboard

log = logging.getLogger(__name__)


class DeploymentServices:
    """The services of one machine. Give it changes of models after the switchboard. Run `services` beside it."""

    def __init__(self, board: Switchboard, probes: UpstreamClient, reports: ControlReports, max_labels: int) -> None:
        self._board = board
        self._prober = Prober(probes, board.probed)
        self._loads = LoadReports(reports, board, machine=secrets.token_hex(8))
        self._calls = CallLog(reports)
        self.metrics = DeploymentMetrics(board, self._prober.outcomes, max_labels)
        board.on_load = self._load_changed
        board.on_ended = self._calls.ended

    @property
    def services(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return (self._loads.run, self._calls.run)

    def models_changed(self, changes: Sequence[ModelChange]) -> None:
        """A `Listener` of `ModelRows`."""
        self._prober.models_changed(changes)

    async def finish(self, within_s: float) -> None:
        """Report for the last time: nothing is in flight any more. What control does not take is lost."""
        with contextlib.suppress(TimeoutError, ReportNotTakenError):  # the client logs that control takes nothing
            async with asyncio.timeout(within_s):
                await self._loads.finish()
                await self._calls.send()

    async def aclose(self) -> None:
        await self._prober.aclose()

    def _load_changed(self, deployment_id: str) -> None:
        load = self._board.load_of(deployment_id)
        self._prober.hurry(deployment_id, load is not None and load.parked > 0)
        self._loads.changed(deployment_id)
        if load is not None and load.has_calls:
            self.metrics.called(deployment_id)
