"""Reports of the supervisors of the proxies' machines about deployments, and what follows from them.

Statuses follow health, wake hooks follow parked calls, and the time of the last request is kept.

See docs/reference/management-api.md#load.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from control.edges.sql import model_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store
from control.errors import DatabaseUnavailableError, DeploymentNotFoundError
from control.records.loads import Load
from control.records.models import ReportedDeployment
from control.resources.platform import deployments, statuses
from control.resources.platform.loads import LoadBook
from control.resources.platform.wakes import Reason, WakeRequest, has_wake_hook, is_due
from control.shared_work import SharedWork
from policy.deployment_load import DeploymentLoad

LAST_REQUEST_INTERVAL_S = 10.0
_ROWS_AT_ONCE = 100
ReportedIds = tuple[tuple[str, str], ...]
"""Deployments, each with the model that the proxy takes for its own."""
log = logging.getLogger(__name__)


class WakeHooks(Protocol):
    """Asks launchers in the background. Returns False if too many hooks of the workspace are being asked already."""

    def ask(self, request: WakeRequest) -> bool: ...


class LoadReports:
    """Takes the reports. Run `write_periodically` beside it."""

    def __init__(self, store: Store, book: LoadBook, wakes: WakeHooks) -> None:
        self._store = store
        self._book = book
        self._wakes = wakes
        self._considered = SharedWork(self._consider)
        self._last_requests: dict[str, int] = {}
        """The times of last requests that are to be written: epoch milliseconds by deployment."""

    async def accept(self, machine: str, reported: Sequence[DeploymentLoad]) -> None:
        """Take a machine's report. Deployments that do not exist are ignored."""
        await self._book.report(machine, reported)
        await self._considered.of(tuple((load.deployment_id, load.model_id) for load in reported))

    async def _consider(self, reported: ReportedIds) -> None:
        """Act on what is known of these deployments. Machines that report the same ones at once share a run."""
        models = dict(reported)
        loads = await self._book.loads(list(models))
        now_ms, matches = await self._find(list(models))
        matches = [one for one in matches if one.record.model_id == models[one.record.id]]
        # First what takes no transaction: a wake must not wait for the statuses of others.
        for one in matches:
            self._note(one, loads.get(one.record.id, Load()), now_ms)
        for one in matches:
            record = one.record
            load = loads.get(one.record.id, Load())
            if statuses.after_report(record, load) != record:
                await deployments.observe_health(self._store, record.model_id, record.id, load)

    async def wake(self, model_id: str, deployment_id: str) -> bool:
        """Ask for a deployment to be woken, without a call. False if too many hooks are being asked already."""
        _now_ms, matches = await self._find([deployment_id])
        if not matches or matches[0].record.model_id != model_id:
            raise DeploymentNotFoundError
        loads = await self._book.loads([deployment_id])
        return self._ask(matches[0], "wake", loads.get(deployment_id, Load()).parked)

    async def write_periodically(self) -> None:
        while True:
            await asyncio.sleep(LAST_REQUEST_INTERVAL_S)
            try:
                await self.write()
            except Exception:  # a bug must not end all later writes
                log.exception(
                    "Times of last requests could not be written; retrying in %.0f s. Please report this bug.",
                    LAST_REQUEST_INTERVAL_S,
                )

    async def write(self) -> None:
        """Write when deployments were last called. Kept while the database is unreachable."""
        noted = dict(self._last_requests)
        if not noted:
            return
        with suppress(DatabaseUnavailableError):
            await self._store.transact(lambda tx: model_rows.note_last_requests(tx, noted))
            for id, at_ms in noted.items():
                if self._last_requests.get(id) == at_ms:
                    del self._last_requests[id]

    async def _find(self, deployment_ids: Sequence[str]) -> tuple[int, list[ReportedDeployment]]:
        """The database's clock, and the deployments."""
        now_ms = 0
        matches = list[ReportedDeployment]()
        for start in range(0, len(deployment_ids), _ROWS_AT_ONCE):
            async with self._store.read() as conn:
                now_ms = await database_ms(conn)
                matches += await model_rows.reported_deployments(conn, deployment_ids[start : start + _ROWS_AT_ONCE])
        return now_ms, matches

    def _note(self, deployment: ReportedDeployment, load: Load, now_ms: int) -> None:
        record = deployment.record
        if (load.last_request_at_ms or 0) > (record.last_request_at_ms or 0):
            self._last_requests[record.id] = load.last_request_at_ms or 0
        if load.parked and is_due(record, now_ms):
            self._ask(deployment, "request", load.parked)

    def _ask(self, deployment: ReportedDeployment, reason: Reason, parked: int) -> bool:
        if not has_wake_hook(deployment.record):
            return True
        return self._wakes.ask(WakeRequest(deployment.workspace_id, deployment.record, reason, parked))
