"""A job's image on a Ray machine: how Ray starts a node's actor in it, and whether that can be.

Ray joins the image and the options to a line for a shell (`ray.runtime_env.RuntimeEnv`, `container`): only what is
plain by its grammar gets there, and no secret.
See docs/reference/training.md#images.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from policy.training.images import full_name
from trainer.edges.ray.launch import own_version

PULL_TIMEOUT_S = 1800.0
"""The time that a machine has to pull an image."""
_RUN_TIMEOUT_S = 120
"""The time after which Podman ends the container that says what is in the image."""
_TAIL_BYTES = 8192
_MAX_REASON_CHARS = 200
_PROGRAM = """
import json, os, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
python = ".".join(map(str, sys.version_info[:2]))
print(json.dumps({"Python": python, "Ray": of("ray"), "Tollgate": of("tollgate"), "access": os.access(sys.argv[1], 7)}))
"""
_OWN = ("HOME", "HOSTNAME", "OMP_NUM_THREADS", "PWD", "PYTHONBREAKPOINT", "PYTHONPATH", "TERM", "container")
"""The variables that Podman, Ray and the machine set in a container; those of Ray's own begin with RAY_."""


class ImageError(Exception):
    """Nodes cannot run in the image on this machine. The message names it, and says why."""


def runtime_env(image: str, directory: Path) -> dict[str, Any]:
    """Ray's description of an actor in the image, which has the directory under its own path. ValueError."""
    options = ["--rm", f"--volume={directory}:{directory}"]
    return {"container": {"image": full_name(image), "run_options": options}}


async def check_image(image: str, directory: Path) -> None:
    """Pull the image, unless it is there, and look for what a node needs in it. ImageError.

    Ray would start a worker that cannot run again and again, and would not say why.
    """
    content = await _content(full_name(image), directory)
    python = ".".join(map(str, sys.version_info[:2]))
    needs = {"Python": python, "Ray": ray.__version__, "Tollgate": own_version()}
    for name, version in needs.items():
        if content.get(name) != version:
            other = "none" if content.get(name) is None else _words(str(content[name]))[:40]
            raise ImageError(f"the image {image} needs {name} {version}, as the cluster has it, and has {other}")
    if content.get("access") is not True:
        raise ImageError(f"the image {image} starts as a user who cannot write in {directory}")


async def _content(image: str, directory: Path) -> Mapping[str, Any]:
    """The answer of `_PROGRAM` in the image."""
    options = ["--rm", f"--timeout={_RUN_TIMEOUT_S}", "--userns=keep-id", "--entrypoint=python"]
    argv = ["podman", "run", *options, f"--volume={directory}:{directory}", image, "-c", _PROGRAM, str(directory)]
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    except FileNotFoundError:
        raise ImageError(f"the image {image} cannot be run: this machine has no program `podman`") from None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PULL_TIMEOUT_S):
            last_line = await _last_line(process.stdout)
    except TimeoutError:
        process.kill()
        raise ImageError(f"the image {image} was not pulled within {PULL_TIMEOUT_S:.0f} s") from None
    await process.wait()
    try:
        content = json.loads(last_line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ImageError(f"the image {image} cannot be run: {_words(last_line) or 'podman does not say why'}")
    return content


async def _last_line(output: asyncio.StreamReader) -> str:
    """The last line of Podman, or of a program of the image. It may print without end: only the tail is kept."""
    tail = b""
    while chunk := await output.read(_TAIL_BYTES):
        tail = (tail + chunk)[-_TAIL_BYTES:]
    lines = tail.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _words(line: str) -> str:
    return "".join(char if char.isprintable() else " " for char in line).strip()[:_MAX_REASON_CHARS]


def own_variables() -> dict[str, str]:
    """The variables that the image of this process sets."""
    return {name: value for name, value in os.environ.items() if name not in _OWN and not name.startswith("RAY_")}
