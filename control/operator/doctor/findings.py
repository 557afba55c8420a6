"""A finding: what a check found, how bad it is, what to do. And how findings are shown."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """A fault refuses calls or loses something, now or at the next start; a warning may."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` says what is, `remedy` what to do. Neither holds a secret, or the path of a URL."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, text, remedy)


def fault(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.FAULT, text, remedy)


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Return whether nothing is at fault. Warnings are allowed."""
    return not any(finding.level is Level.FAULT for finding in findings)


def as_json(findings: Sequence[Finding]) -> str:
    report = {"healthy": is_healthy(findings), "findings": [asdict(finding) for finding in findings]}
    return json.dumps(report, indent=2, ensure_ascii=False)


def as_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding, its remedy below it, and the sum."""
    for finding in findings:
        yield f"{finding.level:<8} {finding.check:<10} {finding.text}"
        if finding.remedy:
            yield f"{'':<19} → {finding.remedy}"
    counts = [sum(finding.level is level for finding in findings) for level in (Level.FAULT, Level.WARNING)]
    yield "healthy" if not any(counts) else f"{_number(counts[0], 'fault')}, {_number(counts[1], 'warning')}"


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
