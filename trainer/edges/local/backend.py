"""Runs jobs as processes of this machine. They outlive the trainer that started them; the next one adopts them.

See docs/reference/training.md#local.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence

from policy.training.caches import CacheSummary
from policy.training.reports import CheckpointReport, Claimed, JobReport
from policy.training.resources import Host
from policy.training.statuses import Outcome, Phase
from trainer.backend import (
    BackendAwayError,
    CheckpointSource,
    CheckpointTerms,
    EnvironmentSource,
    NodeUse,
    NoTerminalError,
    OutputChunk,
    Terminal,
)
from trainer.edges.artifacts import Artifacts
from trainer.edges.local.attempt import LocalAttempt, Terms
from trainer.edges.local.directories import AttemptDirectory, AttemptRecord, JobDirectories
from trainer.edges.local.gpus import free_gpus, list_gpus
from trainer.edges.local.job_users import JobUsers, Owner
from trainer.edges.local.machine import least_used, this_host
from trainer.edges.local.node_use import directory_bytes, disk_bytes
from trainer.edges.local.output_reader import read_output
from trainer.edges.local.project_caches.cache_looks import DueSummaries
from trainer.edges.local.project_caches.caches import ProjectCaches
from trainer.edges.local.terminal import LocalTerminal
from trainer.edges.local.verdict import End
from trainer.edges.weights import fetcher_of
from trainer.settings import LOCAL, Settings

STOPPED_WITH_THE_PRODUCT = End(Outcome.STOPPED, "Tollgate was stopped")
_STORAGE_EVERY_S = 60.0
log = logging.getLogger(__name__)


class LocalBackend:
    """Backend of `trainer/backend.py`."""

    name = LOCAL
    has_sessions = True

    def __init__(self, settings: Settings, environment: EnvironmentSource, checkpoints: CheckpointSource) -> None:
        self._settings = settings
        self._environment = environment
        self._make_checkpoints = checkpoints
        self._gpus = list_gpus()
        self._host = this_host(settings.capacity, self._gpus)
        self._directories = JobDirectories(settings.directory)
        self._caches = ProjectCaches(settings.directory)
        self._summaries = DueSummaries()
        artifacts = Artifacts(settings.checkpoint_store)
        self._terms = Terms(
            environment=environment,
            checkpoints=checkpoints,
            caches=self._caches,
            artifacts=artifacts,
            weights=fetcher_of(settings),
            grace_s=settings.stop_grace_s,
            gpus=self._gpus,
        )
        self._users: JobUsers | None = None
        self._attempts: dict[str, LocalAttempt] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stored: dict[tuple[str, int], tuple[float, int | None]] = {}
        """The time at which the directory of each node was added up last, and the bytes in it."""

    async def open(self) -> None:
        """Adopt. BackendAwayError if jobs cannot run here as the settings say."""
        if sys.platform != "linux":
            raise BackendAwayError("the backend local needs Linux. Set TOLLGATE_TRAINING_BACKEND=ray or off")
        try:
            await asyncio.to_thread(self._directories.make)
            latest = await asyncio.to_thread(lambda: list(self._directories.latest()))
        except OSError as error:
            raise BackendAwayError(f"TOLLGATE_TRAINING_DIR cannot be used: {error}") from error
        if self._settings.user is not None:
            users = JobUsers.of(self._settings.user)
            users.check_reach(self._settings.directory)
            users.check_number(self._host.max_nodes)
            self._users = users
        for directory, record in latest:
            if record.job.job_id not in self._attempts:
                attempt = self._register(record, directory)
                self._run(attempt, attempt.adopt())

    async def hosts(self) -> Sequence[Host]:
        return (self._host,)

    async def start(self, job: Claimed, hosts: Sequence[str]) -> None:
        present = self._attempts.get(job.job_id)
        if present is not None and present.job.attempt == job.attempt:
            return
        if present is not None:
            raise ValueError(f"the earlier attempt at job {job.job_id} was not forgotten")
        record = self._record(job, hosts)
        attempt = self._register(record, self._directories.attempt(job.job_id, job.attempt))
        self._run(attempt, attempt.run())

    async def stop(self, job_id: str, outcome: Outcome) -> None:
        attempt = self._attempts.get(job_id)
        if attempt is not None:
            await attempt.stop(End(outcome))

    async def observe(self) -> Sequence[JobReport]:
        return [attempt.report for attempt in self._attempts.values()]

    async def usage(self) -> Sequence[NodeUse]:
        running = self._running()
        uses = await asyncio.to_thread(lambda: [use for attempt in running for use in self._uses(attempt)])
        nodes = {(use.job_id, use.rank) for use in uses}
        self._stored = {node: look for node, look in self._stored.items() if node in nodes}
        return uses

    def _uses(self, attempt: LocalAttempt) -> Iterator[NodeUse]:
        for node in attempt.nodes:
            if (use := node.use()) is not None:
                storage, total = self._storage(attempt, node.rank)
                yield NodeUse(attempt.job.job_id, attempt.job.attempt, node.rank, *use, storage, total)

    def _storage(self, attempt: LocalAttempt, rank: int) -> tuple[int | None, int | None]:
        """The bytes in a node's directory, added up at most once a minute, and the size of their disk."""
        key = (attempt.job.job_id, rank)
        directory = attempt.directory.node(rank)
        at_s, size = self._stored.get(key, (-math.inf, None))
        if time.monotonic() - at_s >= _STORAGE_EVERY_S:
            size = directory_bytes(directory)
            self._stored[key] = (time.monotonic(), size)
        return size, disk_bytes(directory)

    async def output(self, job_id: str, attempt: int, rank: int, offset: int) -> OutputChunk:
        one = self._attempt(job_id, attempt)
        has_ended = one.nodes[rank].has_ended or one.ended.is_set()
        return await asyncio.to_thread(read_output, one.directory.control_directory(rank), offset, has_ended)

    async def checkpoints(self, job_id: str, attempt: int) -> Sequence[CheckpointReport]:
        loop = self._attempt(job_id, attempt).loop
        return () if loop is None else loop.reports

    async def forget(self, job_id: str, with_store: bool) -> None:
        attempt = self._attempts.get(job_id)
        if attempt is not None and not attempt.ended.is_set():
            raise ValueError(f"job {job_id} has not ended")
        await self._cancel(job_id)
        directory = self._directories.attempt(job_id, 0).root.parent
        if with_store:
            await self._make_checkpoints(directory, job_id).remove()
        try:
            await asyncio.to_thread(self._directories.remove, job_id)
        except OSError as error:
            raise BackendAwayError(str(error)) from error
        if attempt is not None:
            self._summaries.forget(self._projects([attempt]))
        self._attempts.pop(job_id, None)

    async def cache_summaries(self) -> Sequence[CacheSummary]:
        running = [attempt for attempt in self._running() if attempt.report.phase is Phase.RUNNING]
        due = self._summaries.due(self._projects(running), self._projects(self._ended()))
        summaries = [await asyncio.to_thread(self._caches.summary, project_id) for project_id in due]
        return [summary for summary in summaries if summary is not None]

    async def forget_cache(self, project_id: str) -> None:
        if project_id in self._projects(self._running()).values():
            raise BackendAwayError(f"a job still uses the cache of project {project_id}")
        try:
            await asyncio.to_thread(self._caches.remove, project_id)
        except OSError as error:
            raise BackendAwayError(str(error)) from error

    async def terminal(self, job_id: str, attempt: int, rank: int) -> Terminal:
        one = self._attempts.get(job_id)
        is_there = one is not None and one.job.attempt == attempt and rank < len(one.nodes)
        if one is None or not is_there or one.nodes[rank].has_ended or one.report.phase is not Phase.RUNNING:
            raise NoTerminalError("the node has ended")
        return await LocalTerminal.open(one.directory.control_directory(rank))

    async def close(self) -> None:
        running = list(self._running())
        for attempt in running:
            await attempt.stop(STOPPED_WITH_THE_PRODUCT)
        for attempt in running:
            await self._ended_or_lost(attempt)
        for job_id in list(self._tasks):
            await self._cancel(job_id)

    async def _ended_or_lost(self, attempt: LocalAttempt) -> None:
        """Wait for its end, unless nothing watches it any more."""
        ended = asyncio.ensure_future(attempt.ended.wait())
        try:
            await asyncio.wait({ended, self._tasks[attempt.job.job_id]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()

    def _record(self, job: Claimed, hosts: Sequence[str]) -> AttemptRecord:
        """The attempt with processors and GPUs for its nodes."""
        needs = job.spec.resources
        running = [one.record for one in self._running()]
        used_cpus = [cpu for record in running for of_node in record.cpus for cpu in of_node]
        used_gpus = [gpu for record in running for of_node in record.gpus for gpu in of_node]
        cpus = list[tuple[int, ...]]()
        gpus = list[tuple[str, ...]]()
        for _ in hosts:
            cpus.append(least_used(math.ceil(needs.millicpu / 1000), used_cpus))
            gpus.append(free_gpus(self._gpus, needs.gpu_type, needs.gpu_count, used_gpus))
            used_cpus += cpus[-1]
            used_gpus += gpus[-1]
        return AttemptRecord(job, tuple(hosts), tuple(cpus), tuple(gpus), self._new_owner(job))

    def _new_owner(self, job: Claimed) -> Owner | None:
        """The user of a new job; None: the trainer's own. Jobs that share a cache at a time share the user."""
        if self._users is None:
            return None
        for one in self._running():
            if job.spec.cache and one.job.spec.cache and one.job.project_id == job.project_id:
                return one.record.owner
        running = {one.record.owner.uid for one in self._running() if one.record.owner is not None}
        present = {one.record.owner.uid for one in self._attempts.values() if one.record.owner is not None}
        return self._users.choose(running, present)

    def _running(self) -> Sequence[LocalAttempt]:
        return [attempt for attempt in self._attempts.values() if not attempt.ended.is_set()]

    def _ended(self) -> Sequence[LocalAttempt]:
        return [attempt for attempt in self._attempts.values() if attempt.ended.is_set()]

    def _projects(self, attempts: Sequence[LocalAttempt]) -> dict[str, str]:
        """The projects whose caches these attempts have, by attempt."""
        jobs = (one.job for one in attempts if one.job.spec.cache is not None)
        return {f"{job.job_id}-{job.attempt}": job.project_id for job in jobs}

    def _register(self, record: AttemptRecord, directory: AttemptDirectory) -> LocalAttempt:
        job = record.job
        checkpoints = None
        if job.spec.checkpoint_path is not None:
            terms = CheckpointTerms(job.workspace_id, job.spec.checkpoint_max_gib)
            checkpoints = self._make_checkpoints(directory.checkpoints(job), job.job_id, terms)
        attempt = self._attempts[job.job_id] = LocalAttempt(record, directory, self._terms, checkpoints)
        return attempt

    def _run(self, attempt: LocalAttempt, work: Coroutine[None, None, None]) -> None:
        task = self._tasks[attempt.job.job_id] = asyncio.create_task(work)
        task.add_done_callback(lambda task: _log_failure(attempt.job.job_id, task))

    async def _cancel(self, job_id: str) -> None:
        task = self._tasks.pop(job_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def _attempt(self, job_id: str, attempt: int) -> LocalAttempt:
        one = self._attempts.get(job_id)
        if one is None or one.job.attempt != attempt:
            raise KeyError(f"no attempt {attempt} at job {job_id}")
        return one


def _log_failure(job_id: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error(
            "Job %s is not watched any more. Restart the trainer, and please report this bug.", job_id, exc_info=error
        )
