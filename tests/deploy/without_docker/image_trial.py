"""Runs the built image alone, as `docker run --read-only` does: its version, its demo, `tollgate up`."""

import json
import os
import signal
import time
from pathlib import Path

from tests.deploy.without_docker.containers import Programs, empty
from tests.deploy.without_docker.image import Image
from tests.deploy.without_docker.progress import Say
from tests.deploy.without_docker.sandbox import Mount, Running, Sandbox
from tests.deploy.without_docker.systems import StepError, succeeded

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 40.0


def try_alone(image: Image, work: Path, say: Say) -> None:
    """StepError if the image does not do by itself what docs/deploying.md#the-image says."""
    log = work / "image.log"
    log.write_text("")
    for words in (["--version"], ["demo"]):
        status = _started(image, work, words, log).process.wait()
        succeeded(f"docker run IMAGE {' '.join(words)}", status, log)
    say(f"docker run IMAGE demo: {log.read_text().splitlines()[-1]}")
    bill = json.loads((image.root / "opt/tollgate/tollgate.cdx.json").read_text())
    say(f"the bill of materials lists {len(bill['components'])} packages")
    running = _started(image, work, [], log)
    try:
        _wait_until_ready(log)
        running.signal(signal.SIGTERM)
        succeeded("docker stop", running.process.wait(STOP_WITHIN_S), log)
    finally:
        running.kill()
    say("docker run IMAGE: ready as user 10001 on a read-only root, ended with 0 on SIGTERM")


def _started(image: Image, work: Path, words: list[str], log: Path) -> Running:
    programs = Programs.of_image(image, words)
    data = empty(work / "data")
    os.chown(data, *map(int, programs.user.split(":")))
    sandbox = Sandbox(
        *(programs.root, programs.environment, programs.user, programs.directory),
        mounts=(Mount(data, "/data", read_only=False),),
        scratch=("/tmp",),
        read_only=True,
        drops_capabilities=True,
    )
    with log.open("a") as output:
        return sandbox.start(programs.words, output)


def _wait_until_ready(log: Path) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    while not any(line.startswith("ready ") for line in log.read_text().splitlines()):
        if time.monotonic() > give_up_at:
            raise StepError(f"the image's `up` did not get ready\n{log.read_text()[-3000:]}")
        time.sleep(0.1)
