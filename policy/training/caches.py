"""The cache of a project: what a trainer reports of the directory that its jobs share.

See docs/reference/training.md#caches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from policy.training.wire import count, objects, text

MAX_ENTRIES = 10_000
FileType = Literal["file", "directory", "symlink", "other"]
FILE_TYPES: tuple[FileType, ...] = get_args(FileType)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file or directory. `path`: relative to the cache, with `/`. `permissions`: as `-rw-r--r--`."""

    path: str
    size_bytes: int
    modified_ms: int
    file_type: FileType
    permissions: str

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "CacheEntry":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError that names the member."""
        file_type = next((one for one in FILE_TYPES if one == text(wire, "file_type")), None)
        if file_type is None:
            raise ValueError(f"file_type must be one of {', '.join(FILE_TYPES)}")
        sizes = (count(wire, "size_bytes"), count(wire, "modified_ms"))
        return cls(text(wire, "path"), *sizes, file_type, text(wire, "permissions"))


@dataclass(frozen=True, slots=True)
class CacheSummary:
    """The content of a project's cache at one moment: at most `MAX_ENTRIES`, those of the upper directories first."""

    project_id: str
    at_ms: int
    entries: tuple[CacheEntry, ...]

    def to_wire(self) -> dict[str, Any]:
        entries = [entry.to_wire() for entry in self.entries]
        return {"project_id": self.project_id, "at_ms": self.at_ms, "entries": entries}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "CacheSummary":
        entries = tuple(map(CacheEntry.from_wire, objects(wire, "entries")))
        return cls(text(wire, "project_id"), count(wire, "at_ms"), entries)
