"""The services of compose.yaml as processes: started in order, checked, killed and stopped as their engine would."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.without_docker.compose import Service, Volume
from tests.deploy.without_docker.image import Image
from tests.deploy.without_docker.progress import Say
from tests.deploy.without_docker.sandbox import Mount, Running, Sandbox, user_of
from tests.deploy.without_docker.systems import StepError

HEALTHY_WITHIN_S = 90.0


@dataclass(frozen=True, slots=True)
class Programs:
    """A service's root directory, user, command line, and the image's own environment."""

    root: Path
    user: str
    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"
    own_volumes: Sequence[str] = ()

    @classmethod
    def of_image(cls, image: Image, command: list[str]) -> "Programs":
        user = user_of(image.root, image.user)
        words = [*image.entrypoint, *(command or image.command)]
        return cls(image.root, user, words, image.environment, image.directory, image.volumes)


@dataclass(slots=True)
class Container:
    """One service. `folder` holds its volumes and its log."""

    service: Service
    programs: Programs
    compose_folder: Path
    folder: Path
    hosts_file: Path
    _running: Running | None = None

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> Running:
        assert self._running is not None, f"{self.name} was not started"
        return self._running

    def start(self) -> None:
        programs = self.programs
        service = self.service
        sandbox = Sandbox(
            programs.root,
            {**programs.environment, **service.environment},
            programs.user,
            programs.directory,
            mounts=(Mount(self.hosts_file, "/etc/hosts"), *self._mounts()),
            scratch=tuple(service.scratch),
            read_only=service.read_only,
            drops_capabilities=service.drops_capabilities,
            open_files=service.open_files,
            network=self.name,
        )
        with self.log.open("a") as output:
            self._running = sandbox.start(programs.words, output)

    def _mounts(self) -> list[Mount]:
        own = [Volume(f"{self.name}{place.replace('/', '-')}", place, read_only=False) for place in self._unnamed()]
        return [
            Mount(self._source(volume), volume.target, volume.read_only) for volume in (*self.service.volumes, *own)
        ]

    def _unnamed(self) -> list[str]:
        """The image's volumes that the service gives no name."""
        targets = {volume.target for volume in self.service.volumes}
        return [place for place in self.programs.own_volumes if place not in targets]

    def _source(self, volume: Volume) -> Path:
        """A file beside compose.yaml; else a directory of this run, which belongs to the service's user at first."""
        if volume.source.startswith("."):
            return (self.compose_folder / volume.source).resolve()
        folder = self.folder / "volumes" / volume.source
        if not folder.exists():
            folder.mkdir(parents=True, mode=0o700)
            os.chown(folder, *map(int, self.programs.user.split(":")))
        return folder

    def is_healthy(self) -> bool:
        """Return whether it runs and its health check, if it has one, succeeds."""
        if self.running.process.poll() is not None:
            return False
        try:
            return not self.service.health_check or self.running.run(self.service.health_check).returncode == 0
        except (FileNotFoundError, IndexError, subprocess.TimeoutExpired):
            return False  # it is only starting, or has just ended

    def wait_until_healthy(self) -> float:
        """The seconds that it took. StepError with the end of its log after HEALTHY_WITHIN_S."""
        began = time.monotonic()
        while not self.is_healthy():
            if time.monotonic() - began > HEALTHY_WITHIN_S:
                raise StepError(f"{self.name} did not become healthy\n{self.end_of_log()}")
            time.sleep(0.2)
        return time.monotonic() - began

    def execute(self, *words: str) -> str:
        """The output of a program beside the service, as `docker compose exec`. StepError if it fails."""
        result = self.running.run(words)
        if result.returncode != 0:
            raise StepError(f"{' '.join(words)} in {self.name}: exit status {result.returncode}\n{result.stderr}")
        return result.stdout

    def stop(self) -> int:
        """Send the service's stop signal, and SIGKILL after its grace period. Return the exit status."""
        if self.running.process.poll() is None:
            self.running.signal(signal.Signals[self.service.stop_signal])
            try:
                self.running.process.wait(self.service.stop_within_s)
            except subprocess.TimeoutExpired:
                self.running.kill()
        return self.running.process.wait()

    def end(self) -> None:
        """Kill it, if it was started and still runs."""
        if self._running is not None:
            self._running.kill()

    def end_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def start_in_order(containers: Sequence[Container], say: Say) -> None:
    """Start each when those that it needs have started, or are healthy where it says so."""
    by_name: dict[str, Container] = {}
    for container in containers:
        for name, must_be_healthy in container.service.after.items():
            if must_be_healthy:
                by_name[name].wait_until_healthy()
        container.start()
        by_name[container.name] = container
    for container in containers:
        seconds = container.wait_until_healthy()
        say(f"{container.name} is up after {seconds:.1f} s more")


def empty(folder: Path) -> Path:
    """The folder, without what a run before left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
