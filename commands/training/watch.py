"""`tollgate training watch`: follows one job over the management API and prints a line about its progress.

On a terminal the line is rewritten in place; elsewhere a new line is printed when it changes.
See docs/reference/command-line.md#training.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from commands.connection import Client
from commands.errors import AwayError, ManagementError
from commands.progress import ProgressPrinter
from commands.training.metrics import read_metrics
from policy.training.statuses import COMPLETED, ENDED, SYNCED, SYNCING

POLL_S = 1.0
_METRICS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of one look at a job."""

    job: Mapping[str, Any]
    latest: Mapping[str, Mapping[str, Any]]
    """The last point of each metric."""
    checkpoints: tuple[str, ...]
    """Checkpoints' `sync_status`."""

    @property
    def has_ended(self) -> bool:
        """The job has ended, and its checkpoints are in the store."""
        return self.job["current_status"] in ENDED and self.job["checkpoint_sync_status"] != SYNCING


def describe(progress: Progress, now_s: float) -> str:
    """One line: status, time, metrics, checkpoints, and the error if there is one. `now_s`: epoch seconds."""
    job = progress.job
    status = job["current_status"].removeprefix("TRAINING_JOB_")
    until_s = _epoch_s(job["updated_at"]) if job["current_status"] in ENDED else now_s
    parts = [f"{status} {_duration(until_s - _epoch_s(job['created_at']))}"]
    metrics = sorted(progress.latest.items())[:_METRICS_SHOWN]
    parts += [f"{name} {point['value']:.6g}{_at(point['step'])}" for name, point in metrics]
    if progress.checkpoints:
        count = progress.checkpoints.count(SYNCED)
        parts.append(f"checkpoints {count} of {len(progress.checkpoints)} synced")
    if job["error_message"]:
        parts.append(str(job["error_message"]))
    return " · ".join(parts)


async def watch(client: Client, job_id: str, printer: ProgressPrinter) -> bool:
    """Follow the job until it has ended. Returns whether it is COMPLETED. ManagementError if it cannot be followed."""
    jobs = (await client.call("POST", "/v1/training_jobs/search", {"job_id": job_id}))["training_jobs"]
    if not jobs:
        raise ManagementError(f"no training job {job_id} in this workspace; search lists them")
    path = f"/v1/training_projects/{jobs[0]['training_project_id']}/jobs/{job_id}"
    latest = dict[str, Mapping[str, Any]]()
    while True:
        try:
            progress = await look(client, path, latest)
        except AwayError as error:
            printer.show(f"control is away, asking again: {error}")
        else:
            printer.show(describe(progress, time.time()))
            if progress.has_ended:
                printer.end()
                return bool(progress.job["current_status"] == COMPLETED)
        await asyncio.sleep(POLL_S)


async def look(client: Client, path: str, latest: dict[str, Mapping[str, Any]]) -> Progress:
    """Look at the job, and add to `latest` the last points since the look before."""
    answer = await client.call("GET", f"{path}/checkpoints")
    since = max((point["timestamp"] for point in latest.values()), default=None)
    metrics = await read_metrics(client, f"{path}/metrics", since=since)
    latest |= {metric["name"]: metric["points"][-1] for metric in metrics if metric["points"]}
    statuses = tuple(checkpoint["sync_status"] for checkpoint in answer["checkpoints"])
    return Progress(answer["training_job"], latest, statuses)


def _at(step: int | None) -> str:
    return "" if step is None else f" (step {step})"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
