"""Runs training jobs on a Ray cluster. Ray keeps the jobs, so the trainer may end and start again at any time.

Each attempt is a submitted Ray job with the id `<job id>-<attempt>`; its driver (`trainer/edges/ray/driver/`) runs
the nodes, and tells of them in the Ray job's log.
See docs/reference/training.md#ray.
"""

import asyncio
import re
import time
from collections.abc import Sequence

from policy.training.caches import CacheSummary
from policy.training.images import full_name
from policy.training.reports import CheckpointReport, Claimed, JobReport
from policy.training.resources import Host
from policy.training.statuses import Outcome, Phase
from runtime.environment import SettingsError
from trainer.backend import (
    BackendAwayError,
    CheckpointSource,
    EnvironmentSource,
    NodeUse,
    NoTerminalError,
    OutputChunk,
    Terminal,
)
from trainer.edges.ray.cluster import RayCluster, Submission
from trainer.edges.ray.follower import Follower
from trainer.edges.ray.launch import RayLaunch, own_version
from trainer.edges.ray.machines import by_host_name
from trainer.edges.ray.submissions import (
    Submitted,
    final_report,
    latest,
    metadata,
    node_states,
    own,
    present_report,
    submission_id,
)
from trainer.edges.weights import terms_of
from trainer.settings import RAY, Settings

_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")
_DRIVER_END_S = 10.0
"""The time that `forget` waits for a driver that has reported its end."""


class RayBackend:
    """Satisfies `trainer.backend.Backend`. The drivers spend the environment tokens, not this process."""

    name = RAY
    has_sessions = False

    def __init__(self, settings: Settings, environment: EnvironmentSource, checkpoints: CheckpointSource) -> None:
        if settings.ray_address is None or not settings.ray_address.startswith(("http://", "https://")):
            raise SettingsError("TOLLGATE_RAY_ADDRESS: expected the URL of Ray's dashboard, such as http://head:8265")
        if settings.has_ray_images and not _PLAIN_PATH.fullmatch(str(settings.directory)):
            raise SettingsError(
                "TOLLGATE_TRAINING_DIR: with TOLLGATE_RAY_IMAGES=1, expected letters, digits, `.`, `_`, `-` and `/`"
                " alone, as Ray passes it to a shell"
            )
        self._settings = settings
        self._weights = terms_of(settings)
        self._checkpoints = checkpoints
        self._cluster = RayCluster(settings.ray_address)
        self._directory = settings.directory / "ray"
        self._followers: dict[str, Follower] = {}
        self._unstarted: dict[str, JobReport] = {}
        """Attempts that were not submitted."""

    async def open(self) -> None:
        """Find the jobs of an earlier trainer: their logs are read from the start."""
        await self._submitted()

    async def hosts(self) -> Sequence[Host]:
        return [machine.host() for machine in await self._cluster.machines()]

    async def start(self, job: Claimed, hosts: Sequence[str]) -> None:
        machines = by_host_name(await self._cluster.machines())
        lost_hosts = [host for host in hosts if host not in machines]
        self._unstarted.pop(job.job_id, None)
        if lost_hosts:
            reason = f"{lost_hosts[0]} left the Ray cluster before the start"
            self._end_unstarted(job, hosts, Outcome.REQUEUED, reason)
            return
        try:
            launch = self._launch(job, hosts, [machines[host].ray_node for host in hosts])
        except ValueError as error:
            self._end_unstarted(job, hosts, Outcome.DEPLOY_FAILED, str(error))
            return
        labels = metadata(self._settings.control_url, job.job_id, job.attempt, hosts)
        await self._cluster.submit(Submission(submission_id(job.job_id, job.attempt), labels, launch.to_wire()))

    def _end_unstarted(self, job: Claimed, hosts: Sequence[str], outcome: Outcome, reason: str) -> None:
        states = node_states(hosts)
        self._unstarted[job.job_id] = JobReport(job.job_id, job.attempt, Phase.ENDED, outcome, reason, states)

    def _launch(self, job: Claimed, hosts: Sequence[str], ray_nodes: Sequence[str]) -> RayLaunch:
        """ValueError if the job's image, of which an older control plane kept any text, is none."""
        settings = self._settings
        image = job.spec.base_image if settings.has_ray_images else None
        return RayLaunch(
            job=job,
            hosts=tuple(hosts),
            ray_nodes=tuple(ray_nodes),
            control_url=settings.control_url,
            directory=str(settings.directory),
            checkpoint_store=settings.checkpoint_store,
            checkpoint_max_bytes=settings.checkpoint_sizes.of(job.workspace_id),
            stop_grace_s=settings.stop_grace_s,
            version=own_version(),
            weights=self._weights,
            weights_max_bytes=settings.weights_sizes.of(job.workspace_id),
            image=None if image is None else full_name(image),
        )

    async def stop(self, job_id: str, outcome: Outcome) -> None:
        submission = latest(await self._submitted()).get(job_id)
        if submission is None or submission.ray.has_ended:
            return
        self._follower(submission).stop_is_asked(outcome)
        await self._cluster.stop(submission.ray.submission_id)

    async def observe(self) -> Sequence[JobReport]:
        submissions = latest(await self._submitted())
        unstarted = [report for job_id, report in self._unstarted.items() if job_id not in submissions]
        return [self._report(submitted) for submitted in submissions.values()] + unstarted

    async def usage(self) -> Sequence[NodeUse]:
        return ()

    def _report(self, submitted: Submitted) -> JobReport:
        follower = self._follower(submitted)
        if submitted.ray.has_ended and follower.is_done:
            return final_report(submitted, follower.spool.report, follower.stop_outcome)
        return present_report(submitted, follower.spool.report, follower.stop_outcome)

    async def output(self, job_id: str, attempt: int, rank: int, offset: int) -> OutputChunk:
        follower = await self._follower_of(job_id, attempt)
        return OutputChunk((), offset, is_end=True) if follower is None else follower.output(rank, offset)

    async def checkpoints(self, job_id: str, attempt: int) -> Sequence[CheckpointReport]:
        follower = await self._follower_of(job_id, attempt)
        return () if follower is None else follower.spool.checkpoints

    async def forget(self, job_id: str, with_store: bool) -> None:
        """The driver has removed what was on the machines. Ray keeps its log on the head until Ray's session ends."""
        give_up_at = time.monotonic() + _DRIVER_END_S
        for submitted in [one for one in await self._submitted() if one.job_id == job_id]:
            await self._wait_for_end(submitted, give_up_at)
            await self._cluster.delete(submitted.ray.submission_id)
            await self._follower(submitted).remove()
            del self._followers[submitted.ray.submission_id]
        if with_store:
            await self._checkpoints(self._directory / job_id, job_id).remove()
        self._unstarted.pop(job_id, None)

    async def _wait_for_end(self, submitted: Submitted, give_up_at: float) -> None:
        while not submitted.ray.has_ended:
            if time.monotonic() > give_up_at:
                raise BackendAwayError(f"the driver of {submitted.ray.submission_id} still runs on the Ray cluster")
            await asyncio.sleep(0.1)
            jobs = await self._submitted()
            submitted = next((one for one in jobs if one.ray.submission_id == submitted.ray.submission_id), submitted)

    async def cache_summaries(self) -> Sequence[CacheSummary]:
        return ()

    async def forget_cache(self, project_id: str) -> None:
        """Nothing: a job with a cache is refused for this backend."""

    async def terminal(self, job_id: str, attempt: int, rank: int) -> Terminal:
        raise NoTerminalError("the ray backend has no interactive sessions")

    async def close(self) -> None:
        """Leave the jobs to Ray."""
        for follower in self._followers.values():
            await follower.close()

    async def _submitted(self) -> Sequence[Submitted]:
        return own(await self._cluster.jobs(), self._settings.control_url)

    async def _follower_of(self, job_id: str, attempt: int) -> Follower | None:
        """None if Ray has no such attempt."""
        name = submission_id(job_id, attempt)
        if name not in self._followers:
            for submitted in await self._submitted():
                self._follower(submitted)
        return self._followers.get(name)

    def _follower(self, submitted: Submitted) -> Follower:
        """Reads the attempt's log from now on."""
        name = submitted.ray.submission_id
        if name not in self._followers:
            self._followers[name] = Follower(self._cluster, name, self._directory / name)
        return self._followers[name]
