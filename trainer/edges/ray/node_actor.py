"""A node on its Ray machine: an actor that starts `trainer.runner` below a guard and reads what the runner writes.

Ray ends an actor with its driver. Its guard ends with it, and the runner then ends the node as in any stop.
See docs/reference/training.md#ray.
"""

import asyncio
import os
import signal
import subprocess
import sys

import ray

from policy.training import job_variables
from trainer.edges.ray import guard
from trainer.edges.ray.attempt_directory import AttemptDirectory
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.parts import NodeStart, Progress
from trainer.edges.ray.records import whole_lines
from trainer.edges.ray.submissions import submission_id
from trainer.runner.launch import Launch, runner_argv
from trainer.runner.output_log import FILE_NAME as OUTPUT_FILE
from trainer.runner.state import Exit, read_exit

_CHUNK_BYTES = 128 * 1024
"""Larger than the longest line of output."""
_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Ray sets it for actors that have GPUs."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NodeActor:
    """The far side of `parts.Node`. Ray runs its methods on one event loop."""

    def __init__(self, launch: RayLaunch, rank: int) -> None:
        self._launch = launch
        self._rank = rank
        self._directory = AttemptDirectory(launch)
        self._guard: subprocess.Popen[bytes] | None = None

    async def prepare(self) -> str:
        """Make the directories. Returns the machine's address."""
        self._directory.lock()
        self._directory.make(self._rank)
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address

    async def start(self, start: NodeStart) -> None:
        """Start the runner, and wait until the first command runs or cannot. A repeated call only waits."""
        if self._guard is None:
            self._guard = self._spawn(self._runner_launch(start))
        assert self._guard.stdout is not None
        await asyncio.to_thread(self._guard.stdout.read)

    def _spawn(self, launch: Launch) -> "subprocess.Popen[bytes]":
        given = os.memfd_create("launch")  # not a file on disk: it holds secrets
        try:
            os.write(given, launch.to_json())
            os.lseek(given, 0, os.SEEK_SET)
            return subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *runner_argv()],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
            )
        finally:
            os.close(given)

    def _runner_launch(self, start: NodeStart) -> Launch:
        job, spec, directory = self._launch.job, self._launch.job.spec, self._directory
        return Launch(
            name=f"{submission_id(job.job_id, job.attempt)}-{self._rank}",
            control_directory=str(directory.control(self._rank)),
            working_directory=str(directory.working_directory(self._rank)),
            commands=list(spec.start_commands),
            environment=self._variables(start),
            secrets=list(start.environment.secrets),
            memory_mib=spec.resources.memory_mib,
            millicpu=spec.resources.millicpu,
            grace_s=self._launch.stop_grace_s,
        )

    def _variables(self, start: NodeStart) -> dict[str, str]:
        """The job's environment: nothing of Ray's or of this machine's, but which GPUs Ray gave the node."""
        home = str(self._directory.home(self._rank))
        devices = {_DEVICES: os.environ[_DEVICES]} if self._launch.job.spec.resources.gpu_count else {}
        return {
            "PATH": _PATH,
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            job_variables.JOB_ID: self._launch.job.job_id,
            job_variables.NODE_RANK: str(self._rank),
            job_variables.NODE_COUNT: str(self._launch.job.spec.node_count),
            job_variables.LEADER_ADDR: start.leader_address,
            job_variables.CHECKPOINT_DIR: str(self._directory.checkpoints),
            **devices,
            **start.environment.variables,
        }

    async def progress(self, offset: int) -> Progress:
        """Output from the offset on; the exit status only once the output has been read to its end."""
        status = None if self._guard is None else self._guard.poll()
        content = self._output(offset, at_end=status is not None)
        if status is None or content:
            return Progress(content)
        return _end(self._rank, read_exit(str(self._directory.control(self._rank))))

    def _output(self, offset: int, at_end: bool) -> bytes:
        try:
            with (self._directory.control(self._rank) / OUTPUT_FILE).open("rb") as file:
                file.seek(offset)
                content = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        return whole_lines(content, at_end and len(content) < _CHUNK_BYTES)

    async def stop(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            self._guard.send_signal(signal.SIGTERM)

    async def clean(self) -> None:
        """End what still runs, and remove the node's files."""
        await self.stop()
        if self._guard is not None:
            await asyncio.to_thread(self._guard.wait)
        await asyncio.to_thread(self._directory.remove_node, self._rank)


def _end(rank: int, end: Exit | None) -> Progress:
    if end is None:
        return Progress(b"", -signal.SIGKILL, f"node {rank}'s runner was killed")
    if end.status == 0:
        return Progress(b"", 0)
    cause = f" ({end.reason})" if end.reason else ""
    if not end.did_run:
        return Progress(b"", end.status, f"node {rank} could not start{cause}", did_run=False)
    how = f"exited with status {end.status}" if end.status > 0 else f"was killed by {_signal_name(-end.status)}"
    return Progress(b"", end.status, f"node {rank} {how}{cause}")


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
