"""Builds the image with a Docker daemon, from base images whose digests the daemon reports.

The Dockerfile names base images by tag. At a release the daemon pulls each tag; the digest that it got goes into the
build and into `images.json`, so that the same image can be built again. No digest is written by hand.
"""

import json
import re
import subprocess

from deploy.release.artefacts import Build

_BASE = re.compile(r"^ARG (\w+_IMAGE)=(\S+)$", re.MULTILINE)


class ImageError(Exception):
    """A docker command failed; the message is its output."""


def base_images(dockerfile: str) -> dict[str, str]:
    """The Dockerfile's base images by the name of their build argument."""
    return dict(_BASE.findall(dockerfile))


def build(release: Build) -> dict[str, str]:
    """Build and tag the image, and write `images.json`; return the base images by digest."""
    bases = {name: _pinned(image) for name, image in base_images(release.read("Dockerfile")).items()}
    arguments = bases | {"SOURCE_DATE_EPOCH": str(release.epoch)}
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    tag = f"tollgate:{release.version}"
    _docker("build", "--tag", tag, *words, str(release.tree))
    id = _docker("image", "inspect", "--format", "{{.Id}}", tag).strip()
    release.write(".images.json", json.dumps({"image": {"tag": tag, "id": id}, "base_images": bases}, indent=2) + "\n")
    return bases


def _pinned(image: str) -> str:
    _docker("pull", image)
    (digest, *_) = json.loads(_docker("image", "inspect", "--format", "{{json .RepoDigests}}", image))
    return f"{image}@{digest.rpartition('@')[2]}"


def _docker(*words: str) -> str:
    try:
        process = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ImageError("there is no docker command on this machine; leave --image out") from None
    if process.returncode != 0:
        raise ImageError(f"docker {' '.join(words[:2])}: {process.stdout}{process.stderr}")
    return process.stdout
