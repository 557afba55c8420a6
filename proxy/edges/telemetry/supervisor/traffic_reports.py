"""Adds up what the workers counted, by minute and slug, and sends it to control every few seconds, each figure once.
Usage limits that are reached go with it.

A batch that was not answered is sent again with the same number, by which control knows whether it has taken it. While
control is away the figures of each minute are kept, within a bound. Those of a killed supervisor are lost.

See docs/reference/management-api.md#traffic.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from policy.limits.alerts import ReachedLimit
from policy.traffic import BUCKETS, MINUTE_MS, SUMS, TrafficRow, is_error, is_refusal
from proxy.edges.replicas.supervisor.control_reports import (
    ControlReports,
    ReportNotTakenError,
    ReportRejectedError,
    send_periodically,
)
from runtime.log_lines import cause_of

INTERVAL_S = 5.0
LONGEST_PAUSE_S = 20.0
MAX_ROWS = 500
"""Most rows in one post."""
MAX_KEPT = 10_000
"""Most rows that are kept: a minute of a slug takes half a kilobyte."""
_CALLS, _ERRORS, _REFUSALS = (SUMS.index(name) for name in ("calls", "errors", "refusals"))
_TOKENS = SUMS.index("uncached_input_tokens")
_Place = tuple[int, str, str]
"""Minute, workspace and slug."""
log = logging.getLogger(__name__)


class TrafficReports:
    """Reports of traffic. `add` may be called at any time; figures leave while `run` runs."""

    def __init__(self, reports: ControlReports, clock: Callable[[], float] = time.time) -> None:
        self.sender = secrets.token_hex(8)
        """Identifies this supervisor's numbers to control."""
        self._reports = reports
        self._clock = clock
        self._sums: dict[_Place, list[int]] = {}
        """Sums, then buckets. Oldest first."""
        self._number = 0
        self._unanswered: list[TrafficRow] = []
        """The batch `_number`, while control has not said that it has taken it."""
        self._reached: dict[ReachedLimit, None] = {}
        """Limits that have refused calls since the last batch. Oldest first."""
        self._unanswered_reached: list[ReachedLimit] = []
        self._dropped = 0
        self._sending = asyncio.Lock()
        self._change = asyncio.Event()

    def add(self, counts: dict[str, Any]) -> None:
        """Add what a worker counted since it last sent. Calls without a workspace have no place in these figures."""
        minute_ms = int(self._clock() * 1000) // MINUTE_MS * MINUTE_MS
        for workspace, _entity, slug, status, calls, *tokens in counts["calls"]:
            if workspace:
                figures = self._figures((minute_ms, workspace, slug))
                figures[_CALLS] += calls
                if status >= 400:
                    figures[_ERRORS] += calls * is_error(status)
                    figures[_REFUSALS] += calls * is_refusal(status)
                for place, count in enumerate(tokens, _TOKENS):
                    figures[place] += count
        for workspace, slug, buckets in counts["first_bytes"]:
            if workspace:
                figures = self._figures((minute_ms, workspace, slug))
                for place, count in enumerate(buckets, len(SUMS)):
                    figures[place] += count
        self._add_reached(counts.get("limits_reached", ()))
        if self._sums or self._reached:
            self._change.set()

    def _add_reached(self, limits: Iterable[Sequence[str]]) -> None:
        """Add limits whose use leaves no room, and which have refused calls. Each is reported again while it does."""
        for limit in limits:
            if len(self._reached) < MAX_ROWS:
                self._reached[ReachedLimit(*limit)] = None

    async def run(self) -> None:
        await send_periodically(self.send, self._change, INTERVAL_S, LONGEST_PAUSE_S)

    async def send(self) -> None:
        """Send all figures. Raises `ReportNotTakenError`; what was not taken is kept."""
        async with self._sending:
            while self._has_unanswered or self._sums or self._reached:
                if not self._has_unanswered:
                    self._take_batch()
                await self._post()
        if self._dropped:
            log.warning(
                "Traffic figures lack %d calls: control took none for so long that no more could be kept. Billing"
                " events have them. Check why control was away, and TOLLGATE_CONTROL_URL.",
                self._dropped,
            )
            self._dropped = 0

    async def finish(self, within_s: float) -> None:
        """Send for the last time. What control does not take is lost."""
        with contextlib.suppress(TimeoutError, ReportNotTakenError):  # the client logs that control takes nothing
            async with asyncio.timeout(within_s):
                await self.send()
        if self._unanswered or self._sums:
            calls = sum(row.sums[_CALLS] for row in self._unanswered) + sum(one[_CALLS] for one in self._sums.values())
            log.warning(
                "Traffic figures lack up to %d calls that control did not take before shutdown. Billing events have"
                " them. Stop control after the proxy.",
                calls + self._dropped,
            )

    async def close(self) -> None:
        await self._reports.close()

    def _figures(self, place: _Place) -> list[int]:
        figures = self._sums.get(place)
        if figures is None:
            if len(self._sums) >= MAX_KEPT:
                self._dropped += self._sums.pop(next(iter(self._sums)))[_CALLS]
            figures = self._sums[place] = [0] * (len(SUMS) + BUCKETS)
        return figures

    def _take_batch(self) -> None:
        """Make the oldest figures a batch of its own, to which nothing is added any more."""
        self._number += 1
        for place in list(islice(self._sums, MAX_ROWS)):
            (minute_ms, workspace, slug) = place
            figures = self._sums.pop(place)
            sums = tuple(figures[: len(SUMS)])
            buckets = tuple(figures[len(SUMS) :])
            self._unanswered.append(TrafficRow(workspace, slug, minute_ms, sums, buckets))
        self._unanswered_reached = list(self._reached)
        self._reached.clear()

    async def _post(self) -> None:
        report: dict[str, Any] = {"sender": self.sender, "number": self._number}
        report["rows"] = [row.to_wire() for row in self._unanswered]
        if self._unanswered_reached:
            report["limits_reached"] = [limit._asdict() for limit in self._unanswered_reached]
        try:
            await self._reports.post("traffic", report)
        except ReportRejectedError as error:
            log.error("Control rejected traffic figures as malformed (%s). Please report this bug.", cause_of(error))
        self._unanswered = []
        self._unanswered_reached = []

    @property
    def _has_unanswered(self) -> bool:
        return bool(self._unanswered or self._unanswered_reached)
