"""The entry point of a submitted Ray job, `python -m trainer.edges.ray.driver`: runs one attempt at a training job.

Runs on Ray's head, in the job's working directory, and tells the trainer of the attempt on standard output.
See docs/reference/training.md#ray.
"""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import ray

from policy.training.reports import JobReport
from policy.training.statuses import Outcome, Phase
from trainer.edges.control_client import ControlClient
from trainer.edges.ray.driver.attempt import Attempt
from trainer.edges.ray.driver.placement import RayPlacement
from trainer.edges.ray.launch import FILE_NAME, RayLaunch, own_version
from trainer.edges.ray.records import Record, encode
from trainer.edges.ray.submissions import node_states

_STDOUT = 1


async def run(launch: RayLaunch) -> None:
    """Run the attempt; SIGTERM, which is how Ray stops a job, stops it."""
    control = ControlClient(launch.control_url, token="")
    attempt = Attempt(launch, RayPlacement(launch), control.environment, tell)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, attempt.stop)
    try:
        await attempt.run()
    finally:
        await control.close()


def tell(record: Record) -> None:
    """Write a record at once and as a whole."""
    rest = encode(record).encode()
    while rest:
        rest = rest[os.write(_STDOUT, rest) :]


def wrong_version(wire: dict[str, Any]) -> JobReport | None:
    """The report of an attempt that this version of Tollgate cannot run."""
    if wire["version"] == own_version():
        return None
    reason = f"Ray's head has Tollgate {own_version()}, the trainer {wire['version']}: install the same version"
    states = node_states(wire["hosts"])
    job = wire["job"]
    return JobReport(job["job_id"], job["attempt"], Phase.ENDED, Outcome.DEPLOY_FAILED, reason, states)


def main() -> None:
    wire = json.loads(Path(FILE_NAME).read_text())
    refusal = wrong_version(wire)
    if refusal is not None:
        tell(refusal)
        return
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    asyncio.run(run(RayLaunch.from_wire(wire)))


if __name__ == "__main__":
    main()
