"""Sends rows of the list of requests to control: at most some per workspace and second of this machine.

A batch that was not answered is sent again as it was; control knows its rows. While control is away rows are kept
within a bound. Those of a killed worker or supervisor are lost, two seconds: the list is for eyes, never for sums.

See docs/reference/management-api.md#requests.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from random import randrange
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from policy.traffic import ListedRequest
from proxy.accounting.request_samples import picks, shares
from proxy.edges.replicas.supervisor.control_reports import (
    ControlReports,
    ReportNotTakenError,
    ReportRejectedError,
    send_periodically,
)
from proxy.edges.telemetry.listed_calls import Values, is_success, place_of, row_of
from runtime.log_lines import cause_of

INTERVAL_S = 1.0
LONGEST_PAUSE_S = 20.0
MAX_ROWS = 500
"""Most rows in one post."""
MAX_KEPT = 20_000
"""Most rows that are kept: half a kilobyte each."""
LATEST_S = 1
"""Seconds for which rows of a second may still come from workers."""
_Place = tuple[int, str]
"""Second and workspace."""
log = logging.getLogger(__name__)


class RequestReports(Collector):
    """Reports of calls. `add` may be called at any time; rows leave while `run` runs. Counts what is lost."""

    def __init__(self, reports: ControlReports, most: int, clock: Callable[[], float] = time.time) -> None:
        """`most`: rows per workspace and second."""
        self._reports = reports
        self._most = most
        self._clock = clock
        self._ids = count(secrets.randbits(62))
        self._gathered: dict[_Place, list[tuple[int, Values]]] = {}
        """The calls that workers sent, with their weights. Oldest first."""
        self._size = 0
        self._ready: deque[ListedRequest] = deque()
        self._unanswered: list[ListedRequest] = []
        self._dropped = 0
        self._total_dropped = 0
        """The calls that were dropped, without those of `_dropped`, which are not in the log yet."""
        self._sending = asyncio.Lock()
        self._change = asyncio.Event()

    def add(self, message: dict[str, Any]) -> None:
        """Add what a worker sent."""
        self._dropped += message["dropped"]
        for weight, values in zip(message["weights"], message["calls"], strict=True):
            self._gathered.setdefault(place_of(values), []).append((weight, values))
        self._size += len(message["calls"])
        if self._gathered or self._dropped:
            self._change.set()
        while self._size > MAX_KEPT:
            calls = self._gathered.pop(next(iter(self._gathered)))
            self._size -= len(calls)
            self._dropped += sum(weight for weight, _ in calls)

    async def run(self) -> None:
        await send_periodically(self.send, self._change, INTERVAL_S, LONGEST_PAUSE_S)

    async def send(self, *, to_the_end: bool = False) -> None:
        """Send the rows of the seconds that are over; all with `to_the_end`. Raises `ReportNotTakenError`."""
        async with self._sending:
            try:
                self._sample(to_the_end)
                while self._unanswered or self._ready:
                    if not self._unanswered:
                        self._unanswered = [self._ready.popleft() for _ in range(min(MAX_ROWS, len(self._ready)))]
                    await self._post()
            finally:
                self._tell_dropped()
                if self._gathered:  # their second is not over
                    self._change.set()

    async def finish(self, within_s: float) -> None:
        """Send for the last time. What control does not take is lost."""
        with contextlib.suppress(TimeoutError, ReportNotTakenError):  # the client logs that control takes nothing
            async with asyncio.timeout(within_s):
                await self.send(to_the_end=True)

    async def close(self) -> None:
        await self._reports.close()

    def _sample(self, to_the_end: bool) -> None:
        """Sample the seconds that are over. A worker's clock may have stepped: the future counts as over."""
        now_s = int(self._clock())
        over = [place for place in self._gathered if to_the_end or place[0] < now_s - LATEST_S or place[0] > now_s]
        for place in over:
            calls = self._gathered.pop(place)
            self._size -= len(calls)
            self._ready.extend(self._sampled(calls))
        for row in list(islice(self._ready, max(0, len(self._ready) - MAX_KEPT))):
            self._ready.popleft()
            self._dropped += row.weight

    def _sampled(self, calls: list[tuple[int, Values]]) -> Iterator[ListedRequest]:
        successes = [call for call in calls if is_success(call[1])]
        others = [call for call in calls if not is_success(call[1])]
        of_each = shares(len(successes), len(others), self._most)
        for kind, share in zip((successes, others), of_each, strict=True):
            for place, weight in picks([weight for weight, _ in kind], share, randrange):
                yield row_of(next(self._ids), kind[place][1], weight)

    async def _post(self) -> None:
        try:
            await self._reports.post("requests", {"rows": [row.to_wire() for row in self._unanswered]})
        except ReportRejectedError as error:
            log.error(
                "Control rejected rows of the list of requests as malformed (%s). Please report this bug.",
                cause_of(error),
            )
            self._total_dropped += sum(row.weight for row in self._unanswered)
        self._unanswered = []

    def _tell_dropped(self) -> None:
        if self._dropped:
            log.warning(
                "The list of requests lacks %d calls: control took none for so long that no more could be kept, or took"
                " them too slowly. Billing events and traffic figures have them. Check control and its database.",
                self._dropped,
            )
            self._total_dropped += self._dropped
            self._dropped = 0

    def collect(self) -> Iterable[Metric]:
        about = "Calls that the list of requests lacks, because control took their rows too late or not at all"
        yield CounterMetricFamily("tollgate_unlisted_calls", about, value=self._total_dropped + self._dropped)
