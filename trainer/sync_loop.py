"""The trainer's loop: observe, report to control, do what is missing. Each round stands for itself.

See docs/reference/training.md#internal-api.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from policy.training.reports import BackendReport, JobReport, WantedJob, WantedState
from policy.training.resources import Host
from policy.training.statuses import ENDED, Phase, Wanted
from runtime.background import cancelled, is_set_within
from runtime.log_lines import START_S, OutageLog, cause_of
from trainer.backend import Backend, BackendAwayError
from trainer.control import AnotherTrainerError, Control, ControlAwayError
from trainer.job_actions import JobActions
from trainer.job_reports import reports
from trainer.looks.node_sampling import NodeSampler
from trainer.output_shipping import Shipping
from trainer.reconciler import Forget, View, actions

SYNC_S = 0.5
FAILURE_PAUSE_S = 5.0
OBSERVE_S = 10.0
"""A backend that does not answer for so long is away."""
ACTIONS_END_S = 5.0
CLOSE_S = 10.0
"""The time that the last reports and output may take once the backend is closed."""
log = logging.getLogger(__name__)


class SyncLoop:
    """One trainer. `on_answer` gets all that control wants; it must return at once."""

    def __init__(
        self,
        backend: Backend,
        control: Control,
        name: str,
        clock: Callable[[], float],
        on_answer: Callable[[WantedState], None] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._control = control
        self._name = name
        self._clock = clock
        self._on_answer = on_answer
        self._changed = asyncio.Event()
        self._actions = JobActions(backend, control, clock, self._changed.set)
        self._shippings: dict[str, tuple[Shipping, asyncio.Task[None]]] = {}
        self._wanted_state: WantedState | None = None
        self._jobs: dict[str, WantedJob] = {}
        self._control_outage = OutageLog(log, START_S, clock)
        self._backend_outage = OutageLog(log)
        self._rivalry = OutageLog(log)
        self._is_open = self._is_stopping = False
        self._last_reports: Mapping[str, JobReport] = {}
        self.sampler = NodeSampler(backend, clock)
        self.has_synced = asyncio.Event()
        """Set at the first answer of control."""

    def stop(self) -> None:
        """Let `run` end in order."""
        self._is_stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Work until `stop`, then close the backend and deliver what its jobs leave, within bounds."""
        sampling = asyncio.create_task(self.sampler.run())
        try:
            while not self._is_stopping:
                await self._try_sync()
                await is_set_within(self._changed, SYNC_S)
            await self._close()
        finally:
            await cancelled(sampling)
            await self._actions.finish(0)
            for _, task in self._shippings.values():
                await cancelled(task)

    async def _try_sync(self) -> bool:
        """One round. Returns whether control answered. A bug ends no job and no trainer."""
        try:
            return await self.sync()
        except Exception:
            log.exception("A round of the trainer failed; retrying in %g s. Please report this bug.", FAILURE_PAUSE_S)
            await asyncio.sleep(FAILURE_PAUSE_S)
            return False

    async def sync(self) -> bool:
        """One round. Returns whether control answered."""
        self._changed.clear()
        busy = self._actions.busy  # before observing: what ends meanwhile may be observed too early
        hosts, observations, reason = await self._observe()
        view = self._view(hosts, observations, busy)
        job_reports = reports(self._wanted_state, view) if reason is None else ()
        report = BackendReport(
            trainer=self._name,
            backend=self._backend.name,
            reason=reason,
            has_sessions=self._backend.has_sessions,
            hosts=tuple(view.hosts),
            jobs=job_reports,
            samples=self.sampler.pending(),
        )
        if (wanted_state := await self._ask(report)) is None:
            for shipping, _ in self._shippings.values():
                shipping.control_is_away()
            return False
        self.sampler.delivered(report.samples)
        self._wanted_state = wanted_state
        self._last_reports = {job.job_id: job for job in job_reports}
        self._jobs |= {job.job_id: job for job in wanted_state.jobs if job.status not in ENDED}
        if reason is None:
            self._act(wanted_state, view)
        return True

    async def _observe(self) -> tuple[Sequence[Host], Sequence[JobReport], str | None]:
        """Hosts, jobs, and why the backend is away."""
        try:
            async with asyncio.timeout(OBSERVE_S):
                if not self._is_open:
                    await self._backend.open()
                    self._is_open = True
                hosts = await self._backend.hosts()
                observations = await self._backend.observe()
        except (BackendAwayError, TimeoutError) as error:
            reason = str(error) or f"The backend has not answered for {OBSERVE_S:.0f} s"
            self._begin(
                self._backend_outage,
                f"Training backend {self._backend.name} is away ({reason}); no job starts until it is back."
                " Check the backend.",
            )
            return (), (), reason
        self._backend_outage.ends(f"Training backend {self._backend.name} is back.")
        return hosts, observations, None

    async def _ask(self, report: BackendReport) -> WantedState | None:
        try:
            wanted_state = await self._control.sync(report)
        except ControlAwayError as error:
            self._begin(
                self._control_outage,
                f"Control is away ({cause_of(error)}); jobs go on, none starts, and their output waits here."
                " Check TOLLGATE_CONTROL_URL and the control plane.",
            )
            return None
        except AnotherTrainerError:
            wanted_state = None
            self._rivalry.begins(
                "Another trainer reports to this control plane; this one waits until it ends. Run one trainer."
            )
        else:
            self._rivalry.ends("The other trainer has ended; this one reports.")
        self.has_synced.set()
        self._control_outage.ends("Control answers this trainer again.")
        return wanted_state

    def _begin(self, outage: OutageLog, message: str) -> None:
        """One line for each outage, however its signs change."""
        outage.begins(outage.cause or message)

    def _view(self, hosts: Sequence[Host], states: Sequence[JobReport], busy: Mapping[str, tuple[str, ...]]) -> View:
        shippings = {job_id: shipping for job_id, (shipping, _) in self._shippings.items()}
        return View(
            hosts=hosts,
            reports={report.job_id: report for report in states},
            busy=busy,
            covered={job_id: one.covered for job_id, one in shippings.items() if one.covered},
            overdue=frozenset(job_id for job_id, one in shippings.items() if one.is_overdue),
            stop_outcomes=self._actions.stop_outcomes,
            unclaimable=self._actions.unclaimable,
            failed_starts=self._actions.failed_starts,
            forgotten=frozenset(self._actions.forgotten),
        )

    def _act(self, wanted_state: WantedState, view: View) -> None:
        """Begin what is missing, and follow what the backend has."""
        deleted = {job.job_id for job in wanted_state.jobs if job.wish is Wanted.FORGET}
        self._ship({id: report for id, report in view.reports.items() if id not in deleted and id not in view.busy})
        if self._is_stopping:
            return
        self._on_answer(wanted_state)
        for action in actions(wanted_state, view, self._jobs):
            if isinstance(action, Forget):
                self._end_shipping(action.job_id)
            self._actions.begin(action)
        alive = {job.job_id for job in wanted_state.jobs} | view.reports.keys() | self._actions.busy.keys()
        self._actions.keep_only(alive)
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in alive}

    def _ship(self, observations: Mapping[str, JobReport]) -> None:
        """Keep a shipping for each of these attempts, and no other."""
        for job_id, (shipping, _) in list(self._shippings.items()):
            if job_id not in observations or observations[job_id].attempt != shipping.attempt:
                self._end_shipping(job_id)
        for job_id, report in observations.items():
            if job_id not in self._shippings:
                shipping = Shipping(self._backend, self._control, report, self._clock)
                self._shippings[job_id] = shipping, asyncio.create_task(shipping.run(self._changed.set))
            self._shippings[job_id][0].saw(report)

    def _end_shipping(self, job_id: str) -> None:
        if shipping := self._shippings.pop(job_id, None):
            shipping[1].cancel()

    async def _close(self) -> None:
        """Close the backend, and go on reporting until control knows the end of each job that ended with it."""
        await self._actions.finish(ACTIONS_END_S)
        if not self._is_open:
            return
        closing = asyncio.create_task(self._backend.close())
        closing.add_done_callback(lambda _: self._changed.set())
        give_up_at: float | None = None
        while True:
            has_answered = await self._try_sync()
            if closing.done():
                give_up_at = give_up_at or self._clock() + CLOSE_S
                if not has_answered or not self._owes() or self._clock() > give_up_at:
                    break
            await is_set_within(self._changed, SYNC_S)
        try:
            await closing
        except BackendAwayError as error:
            log.warning("The training backend could not be closed (%s); its jobs go on.", cause_of(error))

    def _owes(self) -> bool:
        """Return whether control does not know everything about a job that has ended."""
        ended = [job_id for job_id, (shipping, _) in self._shippings.items() if shipping.has_ended]
        return not all(self._is_told_all(job_id) for job_id in ended)

    def _is_told_all(self, job_id: str) -> bool:
        report = self._last_reports.get(job_id)
        return report is not None and report.phase is Phase.ENDED and not report.is_syncing
