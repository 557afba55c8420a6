"""Decides whether this machine's proxy is ready: the rules of `/readyz`, and the log of changes.

The supervisor brings the checks. A fault means that calls cannot be served (503). A degraded check leaves calls as they
are (200). Each change is logged once, with cause and remedy, however often `/readyz` is asked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from proxy.records.supervisor.findings import OK, Finding, Report

WATCH_INTERVAL_S = 5.0
"""Time between two checks for the log. Trouble that lasts for less, as at every start, is not logged."""
log = logging.getLogger(__name__)


Check = Callable[[], Awaitable[Finding]]


class Readiness:
    """Runs the checks when asked, and every few seconds while `watch` runs."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._logged: dict[str, str] = {}

    async def report(self) -> Report:
        """Run the checks one after another: a later one may use what an earlier one found."""
        return Report({name: await check() for name, check in self._checks.items()})

    async def watch(self) -> None:
        """Log changes until cancelled."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.log_changes(await self.report())

    def mark_logged(self, name: str, finding: Finding) -> None:
        """Treat this finding as logged already: it is intended, not trouble."""
        self._logged[name] = finding.text

    def log_changes(self, report: Report) -> None:
        """Log one line for each check whose finding differs from the last report."""
        for name, finding in report.findings.items():
            self._log_change(name, finding)

    def _log_change(self, name: str, finding: Finding) -> None:
        if finding.text == self._logged.get(name, OK.text):
            return
        self._logged[name] = finding.text
        if finding.fault:
            log.error("Not ready: %s: %s", name, finding.fault)
        elif finding.degraded:
            log.warning("Degraded: %s: %s", name, finding.degraded)
        else:
            log.info("Readiness check %s has recovered.", name)
