"""Carries out what the reconciler decides, each action in a task of its own: a slow one delays no other job.

Remembers what a decision has to know about earlier ones. All of it may be forgotten: then it is decided again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from policy.training.statuses import Outcome
from runtime.log_lines import cause_of
from trainer.backend import Backend, BackendAwayError
from trainer.control import Control, ControlAwayError
from trainer.reconciler import Action, Forget, Start, Stop

UNCLAIMABLE_S = 2.0
"""The time that a job which control did not let start leaves its room to others."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
"""The longest pause between tries to remove what a deleted job left."""
log = logging.getLogger(__name__)


class JobActions:
    """The actions under way. `on_done` is called after each."""

    def __init__(
        self, backend: Backend, control: Control, clock: Callable[[], float], on_done: Callable[[], None]
    ) -> None:
        self._backend = backend
        self._control = control
        self._clock = clock
        self._on_done = on_done
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self.stop_outcomes: dict[tuple[str, int], Outcome] = {}
        self.failed_starts: dict[tuple[str, int], str] = {}
        self.forgotten: set[str] = set()

    @property
    def busy(self) -> Mapping[str, tuple[str, ...]]:
        return {job_id: self._hosts.get(job_id, ()) for job_id in self._tasks}

    @property
    def unclaimable(self) -> frozenset[str]:
        return frozenset(job_id for job_id, at in self._not_before.items() if at > self._clock())

    def begin(self, action: Action) -> None:
        """Begin an action, unless the job has one under way or rests after a failure."""
        if action.job_id in self._tasks or action.job_id in self.unclaimable:
            return
        if isinstance(action, Start):
            self._hosts[action.job_id] = action.hosts
        task = self._tasks[action.job_id] = asyncio.create_task(self._perform(action))
        task.add_done_callback(lambda _: self._end(action.job_id))

    def keep_only(self, job_ids: set[str]) -> None:
        """Forget what is remembered of other jobs: nothing is left of them."""
        self.stop_outcomes = {key: value for key, value in self.stop_outcomes.items() if key[0] in job_ids}
        self.failed_starts = {key: value for key, value in self.failed_starts.items() if key[0] in job_ids}
        self.forgotten &= job_ids
        for remembered in (self._not_before, self._pauses):
            for job_id in remembered.keys() - job_ids:
                del remembered[job_id]

    async def finish(self, within_s: float) -> None:
        """Wait for the actions under way; cancel those that take longer."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, job_id: str) -> None:
        self._tasks.pop(job_id, None)
        self._hosts.pop(job_id, None)
        self._on_done()

    async def _perform(self, action: Action) -> None:
        try:
            match action:
                case Start():
                    await self._start(action)
                case Stop(job_id, attempt, outcome):
                    await self._backend.stop(job_id, outcome)
                    self.stop_outcomes[job_id, attempt] = outcome
                case Forget():
                    await self._forget(action)
        except (BackendAwayError, ControlAwayError) as error:  # the sync loop reports outages and decides again
            log.debug("%s is decided again (%s).", action, cause_of(error))
        except Exception:
            log.exception("%s failed and is decided again. Please report this bug.", action)
            self._pause(action.job_id)

    async def _start(self, start: Start) -> None:
        """Control counts a claimed attempt that the backend does not show as lost, and the job waits again."""
        claimed = await self._control.claim(start.job_id, start.attempt)
        if claimed is None:
            self._not_before[start.job_id] = self._clock() + UNCLAIMABLE_S
            return
        log.info("Starting job %s, attempt %d, on %s.", claimed.job_id, claimed.attempt, ", ".join(start.hosts))
        try:
            await self._backend.start(claimed, start.hosts)
        except BackendAwayError:
            raise
        except Exception as error:
            log.exception(
                "Job %s, attempt %d, ends: the backend could not start it. Please report this bug.",
                claimed.job_id,
                claimed.attempt,
            )
            message = f"The backend could not start the job ({type(error).__name__}); the trainer's log has the cause"
            self.failed_starts[claimed.job_id, claimed.attempt] = message

    async def _forget(self, forget: Forget) -> None:
        try:
            await self._backend.forget(forget.job_id, forget.with_store)
        except BackendAwayError as error:
            if self._pause(forget.job_id) == FIRST_PAUSE_S:
                log.warning(
                    "What job %s left cannot be removed (%s); trying again until it can. Check the backend and"
                    " TOLLGATE_CHECKPOINT_STORE.",
                    forget.job_id,
                    cause_of(error),
                )
            return
        self._pauses.pop(forget.job_id, None)
        if forget.with_store:
            self.forgotten.add(forget.job_id)

    def _pause(self, job_id: str) -> float:
        """Let a job rest, longer each time. Returns for how long."""
        pause_s = self._pauses[job_id] = min(self._pauses.get(job_id, FIRST_PAUSE_S / 2) * 2, LONGEST_PAUSE_S)
        self._not_before[job_id] = self._clock() + pause_s
        return pause_s
