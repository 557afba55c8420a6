"""Root directories of Debian, made by debootstrap: the base of the image, and one with the other services' programs.

They stand in for the images that a Docker daemon would pull. Both are kept between runs.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.deploy.without_docker.progress import Say
from tests.deploy.without_docker.sandbox import Mount, Sandbox

SUITE = "bookworm"
"""The suite of all images that Dockerfile and compose.yaml name."""
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv", "python-is-python3")
"""Packages of `python:3.11-slim-bookworm` that Debian's smallest system lacks."""
SERVICE_PACKAGES = ("postgresql", "redis-server", "haproxy", "prometheus", "prometheus-alertmanager")
DEBIAN = "http://deb.debian.org/debian"
SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")
CLIENT_SETTINGS = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files by which package clients reach their registries on this machine; no part of an image."""
_NO_SERVICES = "#!/bin/sh\nexit 101\n"


class StepError(Exception):
    """A step failed; the message says which, and shows the end of its output."""


def base_system(roots: Path, log: Path, say: Say) -> Path:
    """Debian's smallest system with Python, as `base` in `roots`."""

    def make(root: Path) -> None:
        words = ("debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, str(root), DEBIAN)
        with log.open("a") as output:
            result = subprocess.run(words, stdout=output, stderr=output, check=False)
        succeeded("debootstrap", result.returncode, log)
        _copy_sources(root)
        (root / "usr/sbin/policy-rc.d").write_text(_NO_SERVICES)
        (root / "usr/sbin/policy-rc.d").chmod(0o755)

    return _kept(roots / "base", f"Debian {SUITE} with {BASE_PACKAGES[1]}", make, say)


def services_system(roots: Path, base: Path, log: Path, say: Say) -> Path:
    """The base with PostgreSQL, Redis, HAProxy, Prometheus and Alertmanager, as `services` in `roots`."""

    def make(root: Path) -> None:
        copy_tree(base, root)
        packages = " ".join(SERVICE_PACKAGES)
        run_line(root, f"apt-get update && apt-get install -y --no-install-recommends {packages}", {}, log)

    return _kept(roots / "services", ", ".join(SERVICE_PACKAGES), make, say)


def run_line(root: Path, line: str, environment: dict[str, str], log: Path, directory: str = "/") -> None:
    """Run a shell's line as root in `root`, with the package registries in reach. StepError if it fails."""
    mounts = tuple(Mount(Path(path).resolve(), path) for path in CLIENT_SETTINGS if Path(path).exists())
    sandbox = Sandbox(root, {"DEBIAN_FRONTEND": "noninteractive", **environment}, mounts=mounts, directory=directory)
    with log.open("a") as output:
        status = sandbox.start(["sh", "-c", line], output).process.wait()
    succeeded(line, status, log)


def succeeded(step: str, status: int, log: Path) -> None:
    """StepError unless `status` is 0."""
    if status != 0:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise StepError(f"exit status {status} of: {step}\n{end}\nThe whole output is in {log}.")


def copy_tree(source: Path, target: Path) -> None:
    """A copy with owners, modes and links. What a directory holds joins what `target` holds already."""
    subprocess.run(("cp", "--archive", "--no-target-directory", str(source), str(target)), check=True)


def _kept(root: Path, what: str, make: Callable[[Path], None], say: Say) -> Path:
    """`root`, made beside its place and moved there when it is complete."""
    if root.exists():
        say(f"{root.name}: kept from the last run")
        return root
    say(f"{root.name}: installing {what} (takes a minute or two)")
    unfinished = root.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make(unfinished)
    return unfinished.rename(root)


def _copy_sources(root: Path) -> None:
    """Debian's own sources of this machine, with its security updates."""
    for path in filter(Path.exists, map(Path, SOURCES)):
        copied = root / str(path).lstrip("/")
        if path.is_dir():
            for file in (*path.glob("debian*.sources"), *path.glob("debian*.list")):
                shutil.copy(file, copied / file.name)
        else:
            shutil.copy(path, copied)
