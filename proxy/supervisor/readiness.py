"""Decides whether this machine's proxy is ready: the rules of `/readyz`, and the log of changes.

The supervisor brings the checks. A fault means that calls cannot be served (503). A degraded check leaves calls as they
are (200). Each change is logged once, with cause and remedy, however often `/readyz` is asked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

WATCH_INTERVAL_S = 5.0
"""Time between two checks for the log. Trouble that lasts for less, as at every start, is not logged."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. At most one of the first two is set; both are empty when the check passes.

    `note`: what changes while the finding stays the same. `/readyz` shows it; it is not logged.
    """

    fault: str = ""
    degraded: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        return self.fault or self.degraded or "ok"

    @property
    def shown(self) -> str:
        return f"{self.text} ({self.note})" if self.note else self.text


OK = Finding()
Check = Callable[[], Awaitable[Finding]]


@dataclass(frozen=True, slots=True)
class Report:
    """All findings at one moment, by the name of their check."""

    findings: Mapping[str, Finding]

    @property
    def ready(self) -> bool:
        return not any(finding.fault for finding in self.findings.values())

    def to_wire(self) -> dict[str, Any]:
        """The body of `/readyz`: `ready`, `degraded` (a `name: text` each) and every check's text."""
        return {
            "ready": self.ready,
            "degraded": [f"{name}: {found.degraded}" for name, found in self.findings.items() if found.degraded],
            "checks": {name: found.shown for name, found in self.findings.items()},
        }


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
            log.info("Readiness check %s has recovered", name)
