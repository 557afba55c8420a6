"""The difference between what control wants and what the backend has, and what to do about it. Pure.

The answer depends on nothing but the arguments: after a crash, a lost message or an outage the next sync decides anew.
See docs/reference/training.md#queue.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policy.training.job_spec import SPOT
from policy.training.placement import Candidate, Decision, Placed, decide
from policy.training.reports import JobReport, WantedJob, WantedState
from policy.training.resources import Host
from policy.training.statuses import PLACED, QUEUED, Outcome, Phase, Wanted


@dataclass(frozen=True, slots=True)
class Start:
    """Claim the attempt after `attempt` and start it: node `rank` on `hosts[rank]`."""

    job_id: str
    attempt: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask an attempt to end."""

    job_id: str
    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove what the hosts have of an ended job, and with `with_store` its checkpoints in the store."""

    job_id: str
    with_store: bool


Action = Start | Stop | Forget


@dataclass(frozen=True, slots=True)
class View:
    """The knowledge of a trainer at one sync: both what it reports and what it does follow from it."""

    hosts: Sequence[Host] = ()
    reports: Mapping[str, JobReport] = field(default_factory=dict)
    """The backend's observation of each job."""
    busy: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Jobs that an action is under way for, and the hosts that a start takes. Nothing is concluded about them."""
    covered: Mapping[str, JobReport] = field(default_factory=dict)
    """The observation at which control last got all output and checkpoints of a job."""
    overdue: frozenset[str] = frozenset()
    """Jobs whose end is reported although control does not have all their output."""
    stop_outcomes: Mapping[tuple[str, int], Outcome] = field(default_factory=dict)
    """The attempts that were asked to end."""
    unclaimable: frozenset[str] = frozenset()
    """Jobs that control did not let start a moment ago."""
    failed_starts: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The reasons why the backend could not start an attempt."""
    forgotten: frozenset[str] = frozenset()
    """The deleted jobs of which nothing is left."""

    def is_delivered(self, report: JobReport) -> bool:
        """Return whether control has all output of an ended attempt."""
        covered = self.covered.get(report.job_id)
        return covered is not None and covered.attempt == report.attempt and covered.phase is Phase.ENDED

    def is_syncing(self, report: JobReport) -> bool:
        """Return whether there may be checkpoints that are not in the store, or of which control does not know it."""
        covered = self.covered.get(report.job_id)
        return report.is_syncing or (covered is not None and covered.attempt == report.attempt and covered.is_syncing)


Known = Mapping[str, WantedJob]
"""The last word of control on each job, also on those that it does not mention any more."""


def actions(wanted_state: WantedState, view: View, knowledge: Known) -> list[Action]:
    """Return what to do now: ends first, then starts in their order."""
    jobs = {job.job_id: job for job in wanted_state.jobs}
    ids = [*jobs, *(job_id for job_id in sorted(view.reports) if job_id not in jobs)]
    candidates = [
        _action(jobs.get(job_id), view.reports.get(job_id), view) for job_id in ids if job_id not in view.busy
    ]
    ends = {action.job_id: action for action in candidates if action}
    stop_ids = {job_id for job_id, action in ends.items() if isinstance(action, Stop)}
    decision = _placement(wanted_state, view, knowledge, stop_ids)
    for job_id in decision.preempted:
        if job_id in view.reports and job_id not in view.busy:
            ends.setdefault(job_id, Stop(job_id, view.reports[job_id].attempt, Outcome.REQUEUED))
    new_ends = (end for end in ends.values() if not (isinstance(end, Stop) and _was_asked(end, view)))
    return [*new_ends, *(Start(job_id, jobs[job_id].attempt, hosts) for job_id, hosts in decision.starts.items())]


def _action(job: WantedJob | None, report: JobReport | None, view: View) -> Action | None:
    if job is not None and job.wish is Wanted.FORGET:
        if report is not None and report.phase is not Phase.ENDED:
            return Stop(job.job_id, report.attempt, Outcome.STOPPED)
        return None if job.job_id in view.forgotten else Forget(job.job_id, with_store=True)
    if report is None:
        return None
    if report.phase is Phase.ENDED:
        is_over = job is None or job.attempt != report.attempt or job.status in QUEUED
        is_settled = view.is_delivered(report) and not view.is_syncing(report)
        return Forget(report.job_id, with_store=False) if is_over and is_settled else None
    if job is None or job.wish is Wanted.STOP:
        return Stop(report.job_id, report.attempt, Outcome.STOPPED)
    is_current = job.status in PLACED and job.attempt == report.attempt
    return None if is_current else Stop(report.job_id, report.attempt, Outcome.REQUEUED)


def _was_asked(stop: Stop, view: View) -> bool:
    return view.stop_outcomes.get((stop.job_id, stop.attempt)) in (stop.outcome, Outcome.STOPPED)


def _placement(wanted_state: WantedState, view: View, knowledge: Known, stop_ids: set[str]) -> Decision:
    queue = [
        _candidate(job)
        for job in wanted_state.jobs
        if job.wish is Wanted.RUN and job.status in QUEUED
        if job.job_id not in view.reports and job.job_id not in view.busy and job.job_id not in view.unclaimable
    ]
    running = [report for report in view.reports.values() if report.phase is not Phase.ENDED]
    strangers = {node.host for report in running if report.job_id not in knowledge for node in report.nodes}
    hosts = [host for host in view.hosts if host.name not in strangers]  # how much they leave is not known
    ending = stop_ids | {
        job_id for job_id, attempt in view.stop_outcomes if attempt == _attempt(view.reports.get(job_id))
    }
    placed = [*_running(running, knowledge, ending), *_starting(view, knowledge)]
    return decide(hosts, placed, queue)


def _attempt(report: JobReport | None) -> int | None:
    return None if report is None else report.attempt


def _running(running: Iterable[JobReport], knowledge: Known, ending: set[str]) -> Iterator[Placed]:
    for report in running:
        if job := knowledge.get(report.job_id):
            yield Placed(_candidate(job), tuple(node.host for node in report.nodes), report.job_id in ending)


def _starting(view: View, knowledge: Known) -> Iterator[Placed]:
    for job_id, hosts in view.busy.items():
        if hosts and job_id not in view.reports and (job := knowledge.get(job_id)):
            yield Placed(_candidate(job), hosts)


def _candidate(job: WantedJob) -> Candidate:
    is_spot = job.availability_model == SPOT
    return Candidate(job.job_id, is_spot, job.priority, job.created_at_ms, job.node_count, job.resources)
