"""Delivers what one attempt at a job leaves, its output and its checkpoints' reports, to control.

Control knows how far it has each node's output, so nothing is lost or doubled whoever dies. Reads on from there.
See docs/reference/training.md#logs-and-metrics.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from policy.training.reports import CheckpointReport, JobReport
from policy.training.statuses import Phase
from runtime.background import is_set_within
from runtime.log_lines import cause_of
from trainer.backend import Backend, BackendAwayError
from trainer.control import Control, ControlAwayError, ControlRefusedError
from trainer.output_lines import batch

PAUSE_S = 0.5
AWAY_PAUSE_S = 1.0
FAILURE_PAUSE_S = 10.0
MAX_CHUNKS = 16
"""The chunks of one node before it is the next one's turn: a node may print faster than control takes it."""
OVERDUE_S = 60.0
"""An end is withheld for so long: while control answers and takes no output, and in all."""
log = logging.getLogger(__name__)


class Shipping:
    """One attempt's way to control. `covered`: what was observed when control last got everything."""

    def __init__(self, backend: Backend, control: Control, first: JobReport, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._control = control
        self._clock = clock
        self._report = first
        self._has_news = asyncio.Event()
        self._offsets: dict[int, int] = {}
        self._ended_ranks: set[int] = set()
        self._checkpoints: Sequence[CheckpointReport] | None = None
        self._is_refused = self._has_more = False
        self._stalled_since: float | None = None
        self._ended_since = clock() if first.phase is Phase.ENDED else None
        self.covered: JobReport | None = None

    @property
    def attempt(self) -> int:
        return self._report.attempt

    @property
    def is_overdue(self) -> bool:
        since = [at for at in (self._stalled_since, self._ended_since) if at is not None]
        return bool(since) and self._clock() - min(since) > OVERDUE_S

    @property
    def has_ended(self) -> bool:
        return self._report.phase is Phase.ENDED

    def saw(self, report: JobReport) -> None:
        """Take in what is observed of the attempt now."""
        if report != self._report:
            if report.phase is Phase.ENDED and self._ended_since is None:
                self._ended_since = self._clock()
            self._report = report
            self._has_news.set()

    def control_is_away(self) -> None:
        """Note that control answers nothing, not even reports: nobody waits for this end."""
        self._stalled_since = None
        if self._ended_since is not None:
            self._ended_since = self._clock()

    async def run(self, on_delivered: Callable[[], None]) -> None:
        """Deliver until cancelled. `on_delivered` is called when control has all that an ended attempt leaves."""
        while True:
            was_delivered = self._has_delivered_end
            pause_s = await self._try_pass()
            if self._has_delivered_end and not was_delivered:
                on_delivered()
            await is_set_within(self._has_news, pause_s)

    @property
    def _has_delivered_end(self) -> bool:
        return self.covered is not None and self.covered.phase is Phase.ENDED

    async def _try_pass(self) -> float:
        """Deliver what there is. Returns how long to wait until there may be more."""
        self._has_news.clear()
        try:
            await self.deliver()
        except ControlAwayError:  # the sync loop reports the outage
            self._stalled_since = self._stalled_since or self._clock()
            return AWAY_PAUSE_S
        except BackendAwayError:
            return AWAY_PAUSE_S
        except Exception:
            self._stalled_since = self._stalled_since or self._clock()
            log.exception(
                "Output of job %s could not be delivered; retrying in %g s. Please report this bug.",
                *(self._report.job_id, FAILURE_PAUSE_S),
            )
            return FAILURE_PAUSE_S
        return 0 if self._has_more else PAUSE_S

    async def deliver(self) -> None:
        """Deliver what there is now, of each node a bounded part."""
        observation = self._report
        is_complete = True
        self._has_more = False
        try:
            for node in () if self._is_refused else observation.nodes:
                is_complete = await self._ship(observation, node.rank) and is_complete
        except ControlRefusedError as refused:
            self._is_refused = True
            log.warning(
                "Control refused output of job %s, attempt %d (%s); the rest of it is left out.",
                observation.job_id,
                observation.attempt,
                cause_of(refused),
            )
        await self._tell_checkpoints()
        if is_complete or self._is_refused:
            self.covered = observation
            self._stalled_since = None
        elif self._has_more:
            self._stalled_since = None
        else:
            self._stalled_since = self._stalled_since or self._clock()

    async def _ship(self, observation: JobReport, rank: int) -> bool:
        """Deliver one node's output as far as there is some. Returns whether control took it all."""
        for _ in range(MAX_CHUNKS):
            if rank in self._ended_ranks:
                return True
            offset = self._offsets.get(rank, 0)
            chunk = await self._backend.output(observation.job_id, self.attempt, rank, offset)
            offset_taken = offset
            if chunk.next_offset != offset:
                offset_taken = await self._control.output(observation.job_id, batch(self.attempt, rank, offset, chunk))
                self._offsets[rank] = offset_taken
            if chunk.is_end and offset_taken == chunk.next_offset:
                self._ended_ranks.add(rank)
            elif offset_taken == offset:  # there is nothing, or control takes nothing
                return chunk.next_offset == offset and observation.phase is not Phase.ENDED
        self._has_more = True
        return False

    async def _tell_checkpoints(self) -> None:
        checkpoints = await self._backend.checkpoints(self._report.job_id, self.attempt)
        # At first also none: some may have vanished.
        if self._checkpoints is not None and list(checkpoints) == list(self._checkpoints):
            return
        try:
            await self._control.checkpoints(self._report.job_id, self.attempt, checkpoints)
        except ControlRefusedError as refused:
            log.warning(
                "Control refused the checkpoints of job %s, attempt %d (%s); its list does not show the latest.",
                self._report.job_id,
                self.attempt,
                cause_of(refused),
            )
        self._checkpoints = checkpoints
