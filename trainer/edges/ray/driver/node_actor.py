"""A node on its Ray machine: an actor that starts `trainer.runner` below a guard and reads what the runner writes.

Ray ends an actor with its driver. Its guard ends with it, and the runner then ends the node as in any stop.
See docs/reference/training.md#ray.
"""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace

import ray

from policy.training.images import unused_notice
from runtime.background import cancelled
from trainer.backend import CheckpointTerms, JobEnvironment
from trainer.edges.artifacts import Artifacts
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.local.leftovers import kill_leftovers
from trainer.edges.ray.driver import guard
from trainer.edges.ray.driver.attempt_place import AttemptPlace, nodes_directory
from trainer.edges.ray.driver.containers import check_image, own_variables
from trainer.edges.ray.driver.driver_parts import NodeStart, Progress
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.records import whole_lines
from trainer.edges.ray.submissions import submission_id
from trainer.edges.weights import WeightsFetcher
from trainer.node_environment import DEFAULT_PATH, NodePlace, node_environment
from trainer.runner.launch import Launch, runner_argv
from trainer.runner.output_log import FILE_NAME as OUTPUT_FILE
from trainer.runner.output_log import OutputLog
from trainer.runner.state import read_exit, read_state
from trainer.settings import CheckpointSizes

_CHUNK_BYTES = 128 * 1024
"""The size of a read: more than the longest line of output."""
_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Ray sets it for actors that have GPUs."""


class NodeActor:
    """The far side of `driver_parts.Node`. Ray runs its methods on one event loop."""

    def __init__(self, launch: RayLaunch, rank: int) -> None:
        self._launch = launch
        self._rank = rank
        self._place = AttemptPlace(launch)
        self._control = self._place.directory.control_directory(rank)
        self._guard: subprocess.Popen[bytes] | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def prepare(self) -> str:
        """Make the directories. Returns the machine's address."""
        self._place.lock()
        self._place.make(self._rank)
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address

    async def check_image(self) -> None:
        """Pull the job's image, unless it is there, and see that a node can run in it. ImageError."""
        assert self._launch.image is not None
        await check_image(self._launch.image, nodes_directory(self._launch))

    async def load(self) -> None:
        """Put the checkpoints that the job loads into the directory that the nodes of this machine share."""
        job = self._launch.job
        directory = self._place.directory
        source = checkpoints_in(self._launch.checkpoint_store)
        for load in job.loads:
            checkpoints = source(directory.load(job, load), job.job_id, CheckpointTerms(job.workspace_id))
            await checkpoints.load(load.checkpoint)

    async def unpack(self) -> None:
        """Unpack the job's artifacts. BackendAwayError, ArtifactError."""
        job = self._launch.job
        directory = self._place.directory.node(self._rank)
        await Artifacts(self._launch.checkpoint_store).unpack(job.artifacts, directory, job.workspace_id)

    async def fetch(self, environment: JobEnvironment) -> None:
        """Fetch the job's weights into the directory that the nodes of this machine share. A repeated call only waits.

        WeightsError.
        """
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(environment))
        await asyncio.shield(self._fetching)

    async def _fetch(self, environment: JobEnvironment) -> None:
        launch = self._launch
        fetcher = WeightsFetcher(launch.weights, CheckpointSizes(launch.weights_max_bytes))
        log_lines = OutputLog(str(self._control), list(environment.secrets))
        try:
            files = self._place.directory.files
            await fetcher.fetch(environment.weights, files, launch.job.workspace_id, log_lines.tell)
        finally:
            log_lines.close()

    async def start(self, start: NodeStart) -> None:
        """Start the runner, and wait until the first command runs or cannot. A repeated call only waits."""
        if self._guard is None:
            self._guard = self._spawn(self._runner_launch(start))
        assert self._guard.stdout is not None
        await asyncio.to_thread(self._guard.stdout.read)

    def _spawn(self, launch: Launch) -> "subprocess.Popen[bytes]":
        file = os.memfd_create("launch")  # not a file on disk: it holds secrets
        try:
            os.write(file, launch.to_json())
            os.lseek(file, 0, os.SEEK_SET)
            return subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *runner_argv()],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
            )
        finally:
            os.close(file)

    def _runner_launch(self, start: NodeStart) -> Launch:
        job = self._launch.job
        return Launch(
            name=f"{submission_id(job.job_id, job.attempt)}-{self._rank}",
            control_directory=str(self._control),
            working_directory=str(self._place.working_directory(self._rank)),
            commands=list(job.spec.start_commands),
            environment=self._variables(start),
            secrets=list(start.environment.secrets),
            memory_mib=job.spec.resources.memory_mib,
            millicpu=job.spec.resources.millicpu,
            grace_s=self._launch.stop_grace_s,
            notice="" if self._launch.image else unused_notice(job.spec.base_image, self._rank),
        )

    def _variables(self, start: NodeStart) -> dict[str, str]:
        """The variables of any node, and which GPUs Ray gave to this one."""
        job = self._launch.job
        directory = self._place.directory
        place = NodePlace(
            job=job,
            rank=self._rank,
            leader=start.leader_address,
            home=str(directory.node(self._rank)),
            working=str(self._place.working_directory(self._rank)),
            temporary=str(directory.temporary(self._rank)),
            checkpoints=str(self._place.checkpoints),
            loads=str(directory.loads(job)),
            weights=directory.weights(start.environment),
        )
        image_variables = own_variables() if self._launch.image else {}
        if image_variables:
            place = replace(place, image_variables=image_variables, path=image_variables.get("PATH", DEFAULT_PATH))
        devices = {_DEVICES: os.environ.get(_DEVICES, "")} if job.spec.resources.gpu_count else {}
        return node_environment(place, start.environment.variables) | devices

    async def progress(self, offset: int) -> Progress:
        """Output from the offset on; the end only once the output has been read to its end."""
        has_ended = self._guard is not None and self._guard.poll() is not None
        content = self._output(offset, has_ended)
        if content or not has_ended:
            return Progress(content)
        end = read_exit(str(self._control))
        if end is None:
            state = read_state(str(self._control))
            await asyncio.to_thread(kill_leftovers, state, self._launch.job.job_id, self._rank)
        return Progress(b"", is_end=True, exit=end)

    def _output(self, offset: int, has_ended: bool) -> bytes:
        try:
            with (self._control / OUTPUT_FILE).open("rb") as file:
                file.seek(offset)
                content = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        return whole_lines(content, at_end=has_ended and len(content) < _CHUNK_BYTES)

    async def stop(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            self._guard.send_signal(signal.SIGTERM)

    async def clean(self) -> None:
        """End what still runs, and remove the node's files."""
        await self.stop()
        if self._fetching is not None:
            await cancelled(self._fetching)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.wait)
        await asyncio.to_thread(self._place.remove_node, self._rank)
