"""Findings of the checks of `/readyz`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check. At most one of the first two is set; both are empty when the check passes.

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
            "degraded": [f"{name}: {finding.degraded}" for name, finding in self.findings.items() if finding.degraded],
            "checks": {name: finding.shown for name, finding in self.findings.items()},
        }
