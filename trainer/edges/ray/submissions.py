"""The record of an attempt in Ray, so that a restarted trainer finds it in Ray's list of jobs.

See docs/reference/training.md#ray.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from policy.training.reports import JobReport, NodeState
from policy.training.statuses import Outcome, Phase
from trainer.edges.ray.cluster import RayJob
from trainer.edges.ray.records import SEPARATOR

_CONTROL_URL = "tollgate_control_url"
_JOB_ID = "tollgate_job_id"
_ATTEMPT = "tollgate_attempt"
_HOSTS = "tollgate_hosts"
_HEADING = "Running entrypoint"
_MAX_CAUSE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Submitted:
    """An attempt as Ray lists it."""

    job_id: str
    attempt: int
    hosts: tuple[str, ...]
    ray: RayJob

    @property
    def starting(self) -> JobReport:
        """The report while the driver has told nothing."""
        return JobReport(self.job_id, self.attempt, Phase.STARTING, nodes=node_states(self.hosts))


def node_states(hosts: Sequence[str]) -> tuple[NodeState, ...]:
    return tuple(NodeState(rank, host) for rank, host in enumerate(hosts))


def submission_id(job_id: str, attempt: int) -> str:
    return f"{job_id}-{attempt}"


def metadata(control_url: str, job_id: str, attempt: int, hosts: Sequence[str]) -> dict[str, str]:
    """Ray shows it to everybody who may use the cluster: no secrets."""
    return {_CONTROL_URL: control_url, _JOB_ID: job_id, _ATTEMPT: str(attempt), _HOSTS: json.dumps(list(hosts))}


def own(jobs: Iterable[RayJob], control_url: str) -> list[Submitted]:
    """The attempts of this Tollgate. Other programs, and other Tollgates, may use the same cluster."""
    return [_submitted(job, job.metadata) for job in jobs if job.metadata.get(_CONTROL_URL) == control_url]


def _submitted(job: RayJob, labels: Mapping[str, str]) -> Submitted:
    return Submitted(labels[_JOB_ID], int(labels[_ATTEMPT]), tuple(json.loads(labels[_HOSTS])), job)


def latest(submitted: Iterable[Submitted]) -> dict[str, Submitted]:
    """The latest attempt at each job."""
    by_job: dict[str, Submitted] = {}
    for one in submitted:
        if one.job_id not in by_job or one.attempt > by_job[one.job_id].attempt:
            by_job[one.job_id] = one
    return by_job


def final_report(submitted: Submitted, last: JobReport | None, stop: Outcome | None) -> JobReport:
    """The report of an attempt whose driver has ended. `last`: its last report. `stop`: what a stop was to mean."""
    report = last or submitted.starting
    if report.phase is Phase.ENDED:
        return _meant(report, stop)
    outcome, reason = _unexpected_end(submitted.ray, report.phase)
    if stop is not None:
        outcome = stop
        reason = None
    return JobReport(report.job_id, report.attempt, Phase.ENDED, outcome, reason, nodes=report.nodes)


def present_report(submitted: Submitted, last: JobReport | None, stop: Outcome | None) -> JobReport:
    """The report of an attempt whose driver runs."""
    return _meant(last or submitted.starting, stop)


def _meant(report: JobReport, stop: Outcome | None) -> JobReport:
    """A driver knows only that it was stopped, the trainer also what for."""
    if report.outcome is not Outcome.STOPPED or stop is None:
        return report
    return JobReport(
        report.job_id, report.attempt, report.phase, stop, report.error_message, report.nodes, report.is_syncing
    )


def _unexpected_end(job: RayJob, phase: Phase) -> tuple[Outcome, str | None]:
    if job.status == "STOPPED":
        return Outcome.STOPPED, "the job was stopped in Ray"
    cause = _cause(job.message)
    if phase is Phase.STARTING:
        remedy = "each Ray machine needs Tollgate with its extra `ray`, in the trainer's version"
        return Outcome.DEPLOY_FAILED, f"the job's driver did not start on the Ray cluster ({cause}); {remedy}"
    return Outcome.FAILED, f"the job's driver ended unexpectedly on the Ray cluster ({cause})"


def _cause(message: str) -> str:
    """Return what Ray says of the driver's end, and the last line of its log that is no record or heading of Ray."""
    heading, *log = message.split("\n")
    words = [line.strip() for line in log if line.strip() and SEPARATOR not in line and not line.startswith(_HEADING)]
    parts = [heading.partition(", last available")[0].strip(), *words[-1:]]
    return ": ".join(part for part in parts if part)[:_MAX_CAUSE_CHARS] or "Ray does not say why"
