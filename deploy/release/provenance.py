"""The provenance of a release: an in-toto Statement (v1) with SLSA's predicate (https://slsa.dev/provenance/v1).

It says which commit, lock files and base images the files were built from, and who says so. It has no time and no
number of a run, so that building the commit again gives the same bytes.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:tollgate:make-release:v1"
"""Explained in docs/deploying.md#provenance."""
UNNAMED_BUILDER = "urn:tollgate:unnamed-builder"


@dataclass(frozen=True)
class Origin:
    """The sources and the builder of a release."""

    commit: str
    locks: Mapping[str, bytes]
    """The lock files by their path in the commit."""
    repository: str | None = None
    """The address at which others find the commit."""
    builder: str | None = None
    """The URI of whoever built and signs the release."""
    base_images: Mapping[str, str] = field(default_factory=dict)
    """The image's base images, `NAME:TAG@sha256:…`, by their build argument; empty if no image was built."""


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digest of each file by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def statement(subjects: Mapping[str, str], origin: Origin) -> dict[str, Any]:
    """Return the statement about files, given as names and SHA-256 digests."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _parameters(origin),
                "internalParameters": {
                    "python": platform.python_version(),
                    "setuptools": version("setuptools"),
                },
                "resolvedDependencies": [_source(origin), *_locks(origin), *_base_images(origin)],
            },
            "runDetails": {"builder": {"id": origin.builder or UNNAMED_BUILDER}},
        },
    }


def statement_bytes(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _parameters(origin: Origin) -> dict[str, str]:
    repository = {"repository": origin.repository} if origin.repository else {}
    return repository | {"ref": origin.commit} | ({"image": "true"} if origin.base_images else {})


def _source(origin: Origin) -> dict[str, Any]:
    uri = {"uri": f"git+{origin.repository}@{origin.commit}"} if origin.repository else {}
    return {"name": "source"} | uri | {"digest": {"gitCommit": origin.commit}}


def _locks(origin: Origin) -> list[dict[str, Any]]:
    return [
        {"name": name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in sorted(origin.locks.items())
    ]


def _base_images(origin: Origin) -> list[dict[str, Any]]:
    described = []
    for argument, image in sorted(origin.base_images.items()):
        name, _, digest = image.partition("@sha256:")
        repository, _, tag = name.rpartition(":")
        uri = f"pkg:docker/{repository}@sha256:{digest}?tag={tag}"
        described.append({"name": argument, "uri": uri, "digest": {"sha256": digest}})
    return described
