"""The trainer's client of a Ray cluster: Ray's own `JobSubmissionClient` and `list_nodes`, off the event loop.

Ray's client has no time limits. So each call runs in a daemon thread and is given up after a while; a thread that hangs
holds up neither the trainer nor its end.
See docs/reference/training.md#ray.
"""

import asyncio
import json
import logging
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runtime.daemon_threads import in_daemon_thread
from trainer.backend import BackendAwayError
from trainer.edges.ray.launch import FILE_NAME
from trainer.edges.ray.machines import Machine

CALL_TIMEOUT_S = 10.0
DRIVER = "exec python -m trainer.edges.ray.driver"
_STOP_WAIT_S = 86_400
"""The time that Ray lets a stopped driver run before it kills it. The driver ends its nodes within their grace; what
may take longer is the checkpoints' way into a store that is away."""
_MAX_HANGING = 8
_MAX_MACHINES = 10_000
Result = TypeVar("Result")


class RayMissingError(Exception):
    """The `ray` backend needs the extra: `pip install 'tollgate[ray]'`, or choose TOLLGATE_TRAINING_BACKEND=local."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


@dataclass(frozen=True, slots=True)
class Submission:
    """A Ray job to submit. `launch` becomes a file in its working directory."""

    submission_id: str
    metadata: Mapping[str, str]
    launch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RayJob:
    """A Ray job as the cluster lists it. `message`: what Ray says of its end."""

    submission_id: str
    status: str
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    message: str
    metadata: Mapping[str, str]

    @property
    def has_ended(self) -> bool:
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")


class RayCluster:
    """Every method raises BackendAwayError if the cluster does not answer as it should."""

    def __init__(self, address: str) -> None:
        try:
            from ray import job_submission
            from ray.util import state
        except ImportError:
            raise RayMissingError from None
        _log_as_the_trainer_does()
        self._address = address
        self._new_client = job_submission.JobSubmissionClient
        self._list_nodes = state.list_nodes
        self._client: Any = None
        self._places = threading.BoundedSemaphore(_MAX_HANGING)

    async def jobs(self) -> Sequence[RayJob]:
        """All submitted jobs that Ray still lists, also those that ended."""
        listed = await self._call(lambda client: client.list_jobs())
        return [
            RayJob(job.submission_id, str(job.status.value), job.message or "", job.metadata or {})
            for job in listed
            if job.submission_id is not None
        ]

    async def machines(self) -> Sequence[Machine]:
        """The machines that are alive, in the order of their names."""
        limit: dict[str, Any] = {
            "limit": _MAX_MACHINES,
            "timeout": int(CALL_TIMEOUT_S),
            "raise_on_missing_output": False,
        }
        nodes = await self._call(lambda client: self._list_nodes(address=self._address, **limit))
        alive = (node for node in nodes if node.state == "ALIVE")
        machines = [Machine(node.node_id, node.node_ip, node.resources_total) for node in alive]
        return sorted(machines, key=lambda machine: machine.host_name)

    async def submit(self, submission: Submission) -> None:
        """Submit a job. An earlier submission with the same id is an error of Ray's."""
        await self._call(lambda client: _submit(client, submission))

    async def stop(self, submission_id: str) -> None:
        """Send SIGTERM to the driver, unless it has ended."""
        await self._call(lambda client: client.stop_job(submission_id))

    async def delete(self, submission_id: str) -> None:
        """Remove an ended job from Ray's list."""
        await self._call(lambda client: client.delete_job(submission_id))

    async def log(self, submission_id: str) -> AsyncIterator[str]:
        """The job's log from its start on, in chunks as it grows, up to the job's end."""
        client = await self._connected()
        try:
            async for chunk in client.tail_job_logs(submission_id):
                yield chunk
        except Exception as error:
            raise self._away(error) from error

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = await self._in_thread(lambda: self._new_client(self._address))
        return self._client

    async def _call(self, call: Callable[[Any], Result]) -> Result:
        client = await self._connected()
        return await self._in_thread(lambda: call(client))

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        """The result of a blocking call. Raises BackendAwayError if it fails or takes too long."""
        if not self._places.acquire(blocking=False):
            raise self._away(TimeoutError("it accepts connections and does not answer"))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await in_daemon_thread(self._in_its_place, call)
        except TimeoutError:
            raise self._away(TimeoutError(f"no answer within {CALL_TIMEOUT_S:.0f} s")) from None
        except Exception as error:
            raise self._away(error) from error

    def _in_its_place(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        finally:
            self._places.release()

    def _away(self, error: Exception) -> BackendAwayError:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return BackendAwayError(
            f"the Ray cluster at {self._address} is away: {reason[0][:300]}. Check TOLLGATE_RAY_ADDRESS, which is the "
            f"address of Ray's dashboard, and that `ray start --head` runs there."
        )


def _log_as_the_trainer_does() -> None:
    """Ray's lines go to the trainer's log, in its format, instead of to a handler of their own."""
    logger = logging.getLogger("ray")
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True


def _submit(client: Any, submission: Submission) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / FILE_NAME).write_text(json.dumps(submission.launch))
        client.submit_job(
            entrypoint=DRIVER,
            submission_id=submission.submission_id,
            metadata=dict(submission.metadata),
            runtime_env={"working_dir": directory, "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)}},
        )
