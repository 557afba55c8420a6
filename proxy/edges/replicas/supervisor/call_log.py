"""Sends a line for each call of a deployment to control, which keeps the deployments' logs. Never content.

While control is away the newest lines are kept, within a bound.
"""

import asyncio
import logging
from collections import deque
from typing import Any

from proxy.edges.replicas.supervisor.control_reports import (
    ControlReports,
    ReportNotTakenError,
    ReportRejectedError,
    send_periodically,
)
from proxy.replicas.replica_calls import CallEnded
from runtime.log_lines import cause_of

INTERVAL_S = 1.0
LONGEST_PAUSE_S = 5.0
MAX_LINES = 1000
"""Most lines in one post."""
MAX_KEPT = 10_000
MAX_PATH_CHARS = 1000
log = logging.getLogger(__name__)


class CallLog:
    """Lines of ended calls. `ended` may be called at any time; lines leave while `run` runs."""

    def __init__(self, reports: ControlReports) -> None:
        self._reports = reports
        self._lines: deque[tuple[str, str | None, CallEnded]] = deque()
        self._dropped = 0
        self._sending = asyncio.Lock()
        self._change = asyncio.Event()

    def ended(self, deployment_id: str, replica: str | None, call: CallEnded) -> None:
        """Add a call of this deployment that ended at `replica`, or without one."""
        if len(self._lines) >= MAX_KEPT:
            self._lines.popleft()
            self._dropped += 1
        self._lines.append((deployment_id, replica, call))
        self._change.set()

    async def run(self) -> None:
        await send_periodically(self.send, self._change, INTERVAL_S, LONGEST_PAUSE_S)

    async def send(self) -> None:
        """Send all lines. Raises `ReportNotTakenError`; the lines that were not taken are kept."""
        async with self._sending:
            while self._lines:
                await self._post([self._lines.popleft() for _ in range(min(len(self._lines), MAX_LINES))])
        if self._dropped:
            log.warning(
                "The logs of deployments lack %d lines: control took none for so long that no more could be kept.",
                self._dropped,
            )
            self._dropped = 0

    async def _post(self, lines: list[tuple[str, str | None, CallEnded]]) -> None:
        try:
            await self._reports.post("logs", {"lines": [_line(*one) for one in lines]})
        except ReportNotTakenError:
            self._keep(lines)
            raise
        except ReportRejectedError as error:
            log.error("Control rejected log lines as malformed (%s). Please report this bug.", cause_of(error))

    def _keep(self, lines: list[tuple[str, str | None, CallEnded]]) -> None:
        """Put lines back, as many as there is room for: they are the oldest."""
        room = max(0, MAX_KEPT - len(self._lines))
        self._dropped += max(0, len(lines) - room)
        self._lines.extendleft(reversed(lines[len(lines) - min(room, len(lines)) :]))


def _line(deployment_id: str, replica: str | None, call: CallEnded) -> dict[str, Any]:
    level = "ERROR" if call.status >= 500 else "WARNING" if call.status >= 400 else "INFO"
    return {
        "deployment_id": deployment_id,
        "timestamp": str(call.ended_at_ms * 1_000_000),
        "level": level,
        "message": f"{call.method} {call.path[:MAX_PATH_CHARS]} {call.status} in {call.duration_s * 1000:.1f} ms",
        "replica": replica,
        "request_id": call.request_id,
    }
