"""One attempt at a job on this machine, from its claim until its last checkpoint is in the store.

See docs/reference/training.md#how-a-job-ends.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from policy.training.images import unused_notice
from policy.training.job_spec import ON_FAILURE
from policy.training.reports import Claimed, JobReport
from policy.training.statuses import Outcome, Phase
from runtime.log_lines import cause_of
from trainer.backend import (
    ArtifactError,
    ArtifactSource,
    BackendAwayError,
    CheckpointSource,
    CheckpointTerms,
    EnvironmentRefusedError,
    EnvironmentSource,
    JobCheckpoints,
    JobEnvironment,
    RestoreError,
    WeightsError,
    WeightsSource,
)
from trainer.edges.local.checkpoint_loop import CheckpointLoop
from trainer.edges.local.directories import AttemptDirectory, AttemptRecord
from trainer.edges.local.gpus import Gpu, gpu_variables
from trainer.edges.local.machine import ADDRESS
from trainer.edges.local.node import LocalNode
from trainer.edges.local.project_caches.caches import ProjectCaches
from trainer.edges.local.runner_process import RunnerNotStartedError
from trainer.edges.local.verdict import End, describe, has_failed, verdict
from trainer.node_environment import DEFAULT_PATH, NodePlace, node_environment
from trainer.runner.launch import Launch
from trainer.runner.output_log import OutputLog
from trainer.stopping import StoppedError, unless_stopped

_LOOK_FOR_KEPT_S = 0.25
_STORE_PAUSE_S = 2.0
_MAX_MESSAGE_CHARS = 1000
log = logging.getLogger(__name__)


NAMELESS = "job"
"""The value of `USER` for a user id without a name. Python's `getpass` and others fail without any."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The values that all attempts have in common."""

    environment: EnvironmentSource
    checkpoints: CheckpointSource
    caches: ProjectCaches
    artifacts: ArtifactSource
    weights: WeightsSource
    grace_s: float
    gpus: tuple[Gpu, ...] = ()
    """The GPUs of the machine."""


class LocalAttempt:
    """`run` takes it to its end; everything else is for the time until then and after."""

    def __init__(
        self, record: AttemptRecord, directory: AttemptDirectory, terms: Terms, checkpoints: JobCheckpoints | None
    ) -> None:
        self.record = record
        self.directory = directory
        self._terms = terms
        self._checkpoints = checkpoints
        self._loop = None if checkpoints is None else CheckpointLoop(checkpoints, record.job.job_id)
        self.nodes = [LocalNode(record.job.job_id, rank, host, directory) for rank, host in enumerate(record.hosts)]
        self._phase = Phase.STARTING
        self._end: End | None = None
        self._kept_message: str | None = None
        self._stop: End | None = None
        self._stop_event = asyncio.Event()
        self._began = asyncio.Event()
        self._has_run = False
        """A node was started: there may be checkpoints."""
        self.ended = asyncio.Event()

    @property
    def job(self) -> Claimed:
        return self.record.job

    @property
    def report(self) -> JobReport:
        message = self._kept_message if self._end is None else self._end.error_message
        messages = filter(None, (message, None if self._loop is None else self._loop.refusal))
        return JobReport(
            job_id=self.job.job_id,
            attempt=self.job.attempt,
            phase=self._phase,
            outcome=None if self._end is None else self._end.outcome,
            error_message="; ".join(messages)[:_MAX_MESSAGE_CHARS] or None,
            nodes=tuple(node.state for node in self.nodes),
            is_syncing=self._loop is not None and self._has_run and self._loop.is_syncing,
        )

    @property
    def loop(self) -> CheckpointLoop | None:
        return self._loop

    async def stop(self, stop: End) -> None:
        """Ask the nodes to end. STOPPED wins over REQUEUED; a second request changes nothing else."""
        if self._end is not None:
            return
        if self._stop is None or self._stop.outcome is Outcome.REQUEUED:
            self._stop = stop
            await self._note("stop", stop)
        self._stop_event.set()
        if self._phase is Phase.RUNNING:
            self._terminate_all()

    async def run(self) -> None:
        """Start the nodes, watch them, and sync the checkpoints. An attempt always has an end."""
        await self._while_syncing(self._run())

    async def adopt(self) -> None:
        """The same with what an earlier trainer left of this attempt."""
        await self._while_syncing(self._adopt())

    async def _while_syncing(self, work: Coroutine[None, None, None]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sync())
            await work

    async def _sync(self) -> None:
        await self._began.wait()
        if self._loop is not None and self._has_run:
            await self._loop.run()

    async def _run(self) -> None:
        try:
            await self._start()
        except StoppedError:
            early = self._stop
        except EnvironmentRefusedError as error:
            early = End(error.outcome, str(error))
        except (ArtifactError, RestoreError, WeightsError) as error:
            early = End(Outcome.DEPLOY_FAILED, str(error))
        except (OSError, ValueError, RunnerNotStartedError) as error:
            early = End(Outcome.DEPLOY_FAILED, f"the job's nodes could not be started: {_reason(error)}")
        except Exception as error:
            log.exception("Job %s could not be started. Please report this bug.", self.job.job_id)
            early = End(Outcome.DEPLOY_FAILED, f"the job's nodes could not be started: {type(error).__name__}")
        else:
            early = None
        await self._watch(early)

    async def _adopt(self) -> None:
        noted = End.from_json(await asyncio.to_thread(self.directory.noted, "end"))
        self._stop = End.from_json(await asyncio.to_thread(self.directory.noted, "stop"))
        for node in self.nodes:
            await node.adopt()
        if noted is not None:
            await self._watch(noted)
        elif all(node.was_started for node in self.nodes):
            await self._watch(None)
        else:
            await self._watch(self._stop or End(Outcome.REQUEUED, "the trainer was killed while it started the job"))

    async def _start(self) -> None:
        await asyncio.to_thread(self.directory.make, self.record)
        await asyncio.to_thread(self._prepare_caches)
        for node in self.nodes if self.job.artifacts else ():
            await self._once_there("artifacts", partial(self._unpack, node))
        if self.job.restore is not None and self._checkpoints is not None:
            await self._once_there("checkpoint", partial(self._checkpoints.restore, self.job.restore))
        for load in self.job.loads:
            place = self.directory.load(self.job, load)
            checkpoints = self._terms.checkpoints(place, self.job.job_id, CheckpointTerms(self.job.workspace_id))
            await self._once_there("checkpoint", partial(checkpoints.load, load.checkpoint))
        environment = await unless_stopped(self._stop_event, self._terms.environment(self.job.environment_token))
        if environment.weights:
            await unless_stopped(self._stop_event, self._fetch(environment))
        for node in self.nodes:
            if self._stop_event.is_set():
                raise StoppedError
            await node.start(self._launch(node, environment))

    def _prepare_caches(self) -> None:
        """Give the job its cache, and take others from its user, which may have been another job's."""
        owner = self.record.owner
        project_id = self.job.project_id if self.job.spec.cache else ""
        if owner is not None and not owner.has_name:
            self._terms.caches.close_to(owner, project_id)
        if self.job.spec.cache is not None:
            self._terms.caches.make(project_id, owner)

    async def _unpack(self, node: LocalNode) -> None:
        directory = self.directory.node(node.rank)
        await self._terms.artifacts.unpack(self.job.artifacts, directory, self.job.workspace_id)

    async def _fetch(self, environment: JobEnvironment) -> None:
        """Fetch the job's weights, and tell of it in the log of node 0."""
        log_lines = await asyncio.to_thread(OutputLog, self.nodes[0].control_directory, list(environment.secrets))
        try:
            work = self._terms.weights.fetch
            await work(environment.weights, self.directory.files, self.job.workspace_id, log_lines.tell)
        finally:
            log_lines.close()

    async def _once_there(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do what needs the store, unless the job is stopped; wait while the store is away."""
        has_told = False
        while True:
            try:
                await unless_stopped(self._stop_event, work())
            except BackendAwayError as error:
                if not has_told:
                    log.warning(
                        "Job %s waits for its %s (%s). Check TOLLGATE_CHECKPOINT_STORE.",
                        *(self.job.job_id, what, cause_of(error)),
                    )
                has_told = True
                await unless_stopped(self._stop_event, asyncio.sleep(_STORE_PAUSE_S))
            else:
                return

    def _launch(self, node: LocalNode, environment: JobEnvironment) -> Launch:
        job = self.job
        directory = self.directory
        owner = self.record.owner
        working = str(directory.working_directory(job, node.rank))
        place = NodePlace(
            job=job,
            rank=node.rank,
            leader=ADDRESS,
            home=str(directory.node(node.rank)),
            working=working,
            temporary=str(directory.temporary(node.rank)),
            checkpoints=str(directory.checkpoints(job)),
            loads=str(directory.loads(job)),
            cache=str(self._terms.caches.directory(job.project_id)) if job.spec.cache else None,
            weights=directory.weights(environment),
            path=os.environ.get("PATH", DEFAULT_PATH),
            user=NAMELESS if owner is not None and not owner.has_name else "",
        )
        session = job.spec.session
        return Launch(
            name=f"{job.job_id}-{job.attempt}-{node.rank}",
            control_directory=node.control_directory,
            working_directory=working,
            commands=list(job.spec.start_commands),
            environment=node_environment(place, environment.variables)
            | gpu_variables(self._terms.gpus, self.record.gpus[node.rank]),
            secrets=list(environment.secrets),
            memory_mib=job.spec.resources.memory_mib,
            millicpu=job.spec.resources.millicpu,
            grace_s=self._terms.grace_s,
            cpus=list(self.record.cpus[node.rank]),
            owner=None if owner is None else [owner.uid, owner.gid],
            keep_s=session.timeout_minutes * 60.0 if session and session.trigger == ON_FAILURE else None,
            notice=unused_notice(job.spec.base_image, node.rank),
        )

    async def _watch(self, early: End | None) -> None:
        """Wait for the nodes that were started. `early`: how the attempt ends, whatever they say; they are ended."""
        self._has_run = any(node.was_started for node in self.nodes)
        if early is None:
            self._phase = Phase.RUNNING
            self._began.set()
        if early is not None or self._stop is not None:
            self._terminate_all()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._watch_kept())
            waits = [group.create_task(self._wait(node)) for node in self.nodes if early is None or node.was_started]
            if waits:
                await asyncio.wait(waits)
            keeping.cancel()
        end = early or verdict([node.exit for node in self.nodes], self._stop)
        await self._note("end", end)
        self._end = end
        self._phase = Phase.ENDED
        if self._loop is not None:
            self._loop.end()
        self._began.set()
        self.ended.set()
        log.info("Job %s ended: %s (%s).", self.job.job_id, end.outcome.value, end.error_message or "no error")

    async def _wait(self, node: LocalNode) -> None:
        await node.wait()
        if node.exit is None or has_failed(node.exit):
            self._terminate_all()

    async def _watch_kept(self) -> None:
        """Look for a node that failed and is kept for a session. The others end, as after any failure."""
        session = self.job.spec.session
        while session is not None and session.trigger == ON_FAILURE:
            for node in self.nodes:
                exit = await node.kept()
                if exit is not None and self._kept_message is None:
                    self._kept_message = describe(node.rank, exit)
                    self._terminate_all(but=node)
            await asyncio.sleep(_LOOK_FOR_KEPT_S)

    def _terminate_all(self, but: LocalNode | None = None) -> None:
        for node in self.nodes:
            if node is not but:
                node.terminate(self._terms.grace_s)

    async def _note(self, name: str, end: End) -> None:
        """Keep how it ended on disk. If that fails and this trainer is killed, the next one asks or finds out again."""
        try:
            await asyncio.to_thread(self.directory.note, name, end.to_json())
        except (OSError, ValueError) as error:
            cause = cause_of(error)
            log.warning("Job %s: its %s could not be written down (%s). Check the disk.", self.job.job_id, name, cause)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or cause_of(error)
