"""The reports of a trainer to control about its jobs. Pure.

The end of an attempt is reported once control has its output: who sees that a job has ended finds the whole log.
See docs/reference/training.md#internal-api.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from policy.training.reports import JobReport, WantedJob, WantedState
from policy.training.statuses import PLACED, QUEUED, RUNNING, Outcome, Phase, Wanted
from trainer.reconciler import View

LOST = "The backend has nothing of this job any more: its host was lost, or its files were removed"
_RAN = (Outcome.COMPLETED, Outcome.FAILED)


def reports(wanted_state: WantedState | None, view: View) -> tuple[JobReport, ...]:
    """One report for each job that there is something to tell of. `wanted_state`: control's last answer."""
    jobs = {job.job_id: job for job in wanted_state.jobs} if wanted_state else {}
    all_reports = [_of_seen(jobs, observation, view, wanted_state is None) for observation in view.reports.values()]
    return (*(report for report in all_reports if report), *_of_missing(jobs, view))


def _of_seen(jobs: Mapping[str, WantedJob], observation: JobReport, view: View, is_first: bool) -> JobReport | None:
    job = jobs.get(observation.job_id)
    if observation.job_id in view.busy or (job is not None and not _concerns(observation, job)):
        return None
    report = replace(observation, is_syncing=view.is_syncing(observation))
    if observation.phase is not Phase.ENDED or view.is_delivered(observation) or observation.job_id in view.overdue:
        return report
    if is_first:  # whether control knows of its end already shows in the answer; STARTING changes no status
        return replace(_withheld(report), phase=Phase.STARTING, is_syncing=True)
    is_news = job is not None and (job.status in PLACED or _was_claimed_since(observation, job))
    return _withheld(report) if is_news else replace(report, is_syncing=True)


def _concerns(observation: JobReport, job: WantedJob) -> bool:
    """Return whether control asks about this attempt."""
    is_present = observation.attempt == job.attempt or _was_claimed_since(observation, job)
    return is_present and job.wish is not Wanted.FORGET


def _was_claimed_since(observation: JobReport, job: WantedJob) -> bool:
    return job.status in QUEUED and job.attempt < observation.attempt


def _withheld(report: JobReport) -> JobReport:
    """Report an ended attempt as running. Without the message, which would mean that a session keeps it."""
    phase = Phase.RUNNING if report.outcome in _RAN else Phase.STARTING
    return replace(report, phase=phase, outcome=None, error_message=None)


def _of_missing(jobs: Mapping[str, WantedJob], view: View) -> Iterator[JobReport]:
    """Report the jobs that control knows and the backend does not have, or has another attempt of."""
    for job in jobs.values():
        if job.job_id in view.busy:
            continue
        if job.wish is Wanted.FORGET:
            if job.job_id in view.forgotten:
                yield JobReport(job.job_id, job.attempt, Phase.ENDED, is_forgotten=True)
        elif job.status in PLACED:
            observation = view.reports.get(job.job_id)
            if observation is None or observation.attempt != job.attempt:
                yield _report_of_loss(job, view.failed_starts.get((job.job_id, job.attempt)))
        elif job.wish is Wanted.RUN and job.job_id not in view.reports:
            yield JobReport(job.job_id, job.attempt, Phase.WAITING)


def _report_of_loss(job: WantedJob, failed_start: str | None) -> JobReport:
    if failed_start is not None:
        outcome = Outcome.DEPLOY_FAILED
        message = failed_start
    elif job.wish is Wanted.STOP:
        outcome = Outcome.STOPPED
        message = None
    elif job.status == RUNNING:
        outcome = Outcome.FAILED
        message = LOST
    else:
        outcome = Outcome.REQUEUED
        message = None
    return JobReport(job.job_id, job.attempt, Phase.ENDED, outcome, message)
