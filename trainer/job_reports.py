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


def reports(wanted: WantedState | None, view: View) -> tuple[JobReport, ...]:
    """One report for each job that there is something to tell of. `wanted`: control's last answer."""
    jobs = {job.job_id: job for job in wanted.jobs} if wanted else {}
    found = [_of_seen(jobs, seen, view, wanted is None) for seen in view.seen.values()]
    return (*(report for report in found if report), *_of_missing(jobs, view))


def _of_seen(jobs: Mapping[str, WantedJob], seen: JobReport, view: View, is_first: bool) -> JobReport | None:
    job = jobs.get(seen.job_id)
    if seen.job_id in view.busy or (job is not None and not _concerns(seen, job)):
        return None
    report = replace(seen, is_syncing=view.is_syncing(seen))
    if seen.phase is not Phase.ENDED or view.is_delivered(seen) or seen.job_id in view.overdue:
        return report
    if is_first:  # whether control knows of its end already shows in the answer; STARTING changes no status
        return replace(_withheld(report), phase=Phase.STARTING, is_syncing=True)
    is_news = job is not None and (job.status in PLACED or _was_claimed_since(seen, job))
    return _withheld(report) if is_news else replace(report, is_syncing=True)


def _concerns(seen: JobReport, job: WantedJob) -> bool:
    """Return whether control asks about this attempt."""
    is_present = seen.attempt == job.attempt or _was_claimed_since(seen, job)
    return is_present and job.wanted is not Wanted.FORGET


def _was_claimed_since(seen: JobReport, job: WantedJob) -> bool:
    return job.status in QUEUED and job.attempt < seen.attempt


def _withheld(report: JobReport) -> JobReport:
    """Report an ended attempt as running. Without the message, which would mean that a session keeps it."""
    phase = Phase.RUNNING if report.outcome in _RAN else Phase.STARTING
    return replace(report, phase=phase, outcome=None, error_message=None)


def _of_missing(jobs: Mapping[str, WantedJob], view: View) -> Iterator[JobReport]:
    """Report the jobs that control knows and the backend does not have, or has another attempt of."""
    for job in jobs.values():
        if job.job_id in view.busy:
            continue
        if job.wanted is Wanted.FORGET:
            if job.job_id in view.forgotten:
                yield JobReport(job.job_id, job.attempt, Phase.ENDED, is_forgotten=True)
        elif job.status in PLACED:
            seen = view.seen.get(job.job_id)
            if seen is None or seen.attempt != job.attempt:
                yield _lost(job, view.failed_starts.get((job.job_id, job.attempt)))
        elif job.wanted is Wanted.RUN and job.job_id not in view.seen:
            yield JobReport(job.job_id, job.attempt, Phase.WAITING)


def _lost(job: WantedJob, failed_start: str | None) -> JobReport:
    if failed_start is not None:
        outcome = Outcome.DEPLOY_FAILED
        message = failed_start
    elif job.wanted is Wanted.STOP:
        outcome = Outcome.STOPPED
        message = None
    elif job.status == RUNNING:
        outcome = Outcome.FAILED
        message = LOST
    else:
        outcome = Outcome.REQUEUED
        message = None
    return JobReport(job.job_id, job.attempt, Phase.ENDED, outcome, message)
