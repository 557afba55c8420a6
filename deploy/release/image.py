"""Builds the image, if a Docker daemon answers, from base images whose digests the daemon reports.

The Dockerfile names base images by tag. At a release the daemon pulls each tag; the digest that it got goes into the
build and into `images.json`, so that the same image can be built again. No digest is written by hand.
"""

import json
import re
import subprocess
from pathlib import Path

_BASE = re.compile(r"^ARG (\w+_IMAGE)=(\S+)$", re.MULTILINE)


class ImageError(Exception):
    """A docker command failed; the message is its output."""


def base_images(dockerfile: str) -> dict[str, str]:
    """The Dockerfile's base images by the name of their build argument."""
    return dict(_BASE.findall(dockerfile))


def build(tree: Path, tag: str, epoch: int) -> str:
    """Build and tag the image; return the text of `images.json`: base images by digest, and the image's id."""
    bases = {name: _pinned(image) for name, image in base_images((tree / "Dockerfile").read_text()).items()}
    arguments = bases | {"SOURCE_DATE_EPOCH": str(epoch)}
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    _docker("build", "--tag", tag, *words, str(tree))
    id = _docker("image", "inspect", "--format", "{{.Id}}", tag).strip()
    return json.dumps({"image": {"tag": tag, "id": id}, "base_images": bases}, indent=2) + "\n"


def _pinned(image: str) -> str:
    _docker("pull", image)
    (digest, *_) = json.loads(_docker("image", "inspect", "--format", "{{json .RepoDigests}}", image))
    return f"{image}@{digest.rpartition('@')[2]}"


def _docker(*words: str) -> str:
    process = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise ImageError(f"docker {' '.join(words[:2])}: {process.stdout}{process.stderr}")
    return process.stdout
