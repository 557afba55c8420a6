"""Whether this machine's proxy can serve, and what is degraded: the rules of `/readyz` and the log of their changes.

Pure but for the log: each check is brought by its owner. A fault means that calls cannot be served (503); what is only
degraded leaves calls as they are (200). A change is logged once, with its cause and its remedy, however often it is
asked for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

WATCH_INTERVAL_S = 5.0
"""Between two rounds for the log. What lasts for less, as at every start, is not logged."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. At most one of the two is set; neither: all is well."""

    fault: str = ""
    degraded: str = ""

    @property
    def text(self) -> str:
        return self.fault or self.degraded or "ok"


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
        """`/readyz`'s body: `ready`, `degraded` (`name: text` each) and every check's text."""
        return {
            "ready": self.ready,
            "degraded": [f"{name}: {found.degraded}" for name, found in self.findings.items() if found.degraded],
            "checks": {name: found.text for name, found in self.findings.items()},
        }


class Readiness:
    """Makes the checks when asked, and every few seconds while `watch` runs."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._logged: dict[str, str] = {}

    async def report(self) -> Report:
        """The checks run one after another: a later one may rest on what an earlier one looked up."""
        return Report({name: await check() for name, check in self._checks.items()})

    async def watch(self) -> None:
        """Logs what changes. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.log_changes(await self.report())

    def announced(self, name: str, finding: Finding) -> None:
        """The log has been told of this one already, as of what was meant to be and is no trouble."""
        self._logged[name] = finding.text

    def log_changes(self, report: Report) -> None:
        """One line for each check whose finding is another than in the report before."""
        for name, finding in report.findings.items():
            self._log_change(name, finding)

    def _log_change(self, name: str, finding: Finding) -> None:
        if finding.text == self._logged.get(name, OK.text):
            return
        self._logged[name] = finding.text
        if finding.fault:
            log.error("not ready: %s: %s", name, finding.fault)
        elif finding.degraded:
            log.warning("degraded: %s: %s", name, finding.degraded)
        else:
            log.info("%s is well again", name)
