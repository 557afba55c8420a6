"""Artifacts of training jobs: archives that a workspace has uploaded, as a trainer reads them from the store.

See docs/reference/training.md#uploads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policy.training.wire import count, objects, text

MAX_ARTIFACTS = 10
"""The most artifacts of one job."""
MAX_ARTIFACT_BYTES = 5 * 1024**3


@dataclass(frozen=True, slots=True)
class ArtifactPart:
    """A piece of an archive, which is an object of the store. `sha256`: in hexadecimal."""

    store_key: str
    size_bytes: int
    sha256: str

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ArtifactPart":
        return cls(text(wire, "store_key"), count(wire, "size_bytes"), text(wire, "sha256"))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A tar archive: its parts in their order are its content. `key`: its `s3_key`."""

    key: str
    parts: tuple[ArtifactPart, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def to_wire(self) -> dict[str, Any]:
        return {"key": self.key, "parts": [part.to_wire() for part in self.parts]}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Artifact":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        return cls(text(wire, "key"), tuple(map(ArtifactPart.from_wire, objects(wire, "parts"))))
