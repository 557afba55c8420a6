"""The specification of a training job, as control stores it and a trainer starts it.

See docs/reference/training.md#jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.training.resources import NodeResources
from policy.training.weights import WeightsSpec, secret_names
from policy.training.wire import (
    added_count,
    added_members,
    added_objects,
    added_texts,
    count,
    flag,
    members,
    objects,
    optional_members,
    optional_text,
    text,
    texts,
)

ON_STARTUP = "on_startup"
ON_FAILURE = "on_failure"
ON_DEMAND = "on_demand"
DEDICATED = "dedicated"
SPOT = "spot"
DEFAULT_CHECKPOINT_PATH = "checkpoints"
DEFAULT_LOAD_PATH = "loaded_checkpoints"


@dataclass(frozen=True, slots=True)
class SecretRef:
    """An environment variable whose value is a secret of the workspace, read when the job starts."""

    name: str


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """The moment from which a shell is offered, and for how long."""

    trigger: str
    timeout_minutes: int


@dataclass(frozen=True, slots=True)
class LoadRef:
    """A checkpoint to load: the newest of this job or of this project, and of this name where one is given.

    Without a job and a project it is the newest of the job's own project.
    """

    job_id: str | None = None
    project_name: str | None = None
    checkpoint_name: str | None = None

    def __str__(self) -> str:
        """The reference in words, for messages."""
        name = "a checkpoint" if self.checkpoint_name is None else f"checkpoint {self.checkpoint_name!r}"
        job = "" if self.job_id is None else f" of job {self.job_id}"
        project = "" if self.project_name is None else f" in project {self.project_name!r}"
        return f"{name}{job}{project}" if job or project else f"{name} in the job's own project"

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "LoadRef":
        return cls(*(optional_text(wire, name) for name in cls.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The checkpoints that are put into a directory before the first command."""

    refs: tuple[LoadRef, ...]
    directory: str = DEFAULT_LOAD_PATH

    def to_wire(self) -> dict[str, Any]:
        return {"refs": [ref.to_wire() for ref in self.refs], "directory": self.directory}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "LoadSpec":
        return cls(tuple(map(LoadRef.from_wire, objects(wire, "refs"))), text(wire, "directory"))


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The job shares the directory of its project's cache. `is_hf_home`: Hugging Face's programs use it."""

    is_hf_home: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {"is_hf_home": self.is_hf_home}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "CacheSpec":
        return cls(flag(wire, "is_hf_home"))


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The configuration of a job; `recreate` copies it. Paths are relative to the job's own directory."""

    start_commands: tuple[str, ...]
    """`/bin/sh -c` lines. Each node runs them in this order; the first that exits non-zero fails the node."""
    resources: NodeResources
    node_count: int = 1
    environment: Mapping[str, str | SecretRef] = field(default_factory=dict)
    working_directory: str | None = None
    checkpoint_path: str | None = None
    """None: checkpoints are not synced, but the job has a directory for them nevertheless."""
    base_image: str | None = None
    session: SessionSpec | None = None
    checkpoint_max_gib: int | None = None
    """The most GiB of a checkpoint, beside the operator's bound. None: that bound alone."""
    load: LoadSpec | None = None
    cache: CacheSpec | None = None
    artifacts: tuple[str, ...] = ()
    """The `s3_key`s of the workspace's uploads that are unpacked before the first command runs."""
    weights: tuple[WeightsSpec, ...] = ()

    @property
    def secret_names(self) -> set[str]:
        """The secrets that the job needs."""
        of_variables = {value.name for value in self.environment.values() if isinstance(value, SecretRef)}
        return of_variables | secret_names(self.weights)

    def to_wire(self) -> dict[str, Any]:
        session = self.session
        return {
            "start_commands": list(self.start_commands),
            "resources": self.resources.to_wire(),
            "node_count": self.node_count,
            "environment": {name: _value_to_wire(value) for name, value in self.environment.items()},
            "working_directory": self.working_directory,
            "checkpoint_path": self.checkpoint_path,
            "base_image": self.base_image,
            "session": session and {"trigger": session.trigger, "timeout_minutes": session.timeout_minutes},
            "checkpoint_max_gib": self.checkpoint_max_gib,
            "load": self.load and self.load.to_wire(),
            "cache": self.cache and self.cache.to_wire(),
            "artifacts": list(self.artifacts),
            "weights": [one.to_wire() for one in self.weights],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "JobSpec":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        session = optional_members(wire, "session")
        load = added_members(wire, "load")
        cache = added_members(wire, "cache")
        return cls(
            start_commands=texts(wire, "start_commands"),
            resources=NodeResources.from_wire(members(wire, "resources")),
            node_count=count(wire, "node_count"),
            environment={name: _value_from_wire(name, value) for name, value in members(wire, "environment").items()},
            working_directory=optional_text(wire, "working_directory"),
            checkpoint_path=optional_text(wire, "checkpoint_path"),
            base_image=optional_text(wire, "base_image"),
            session=None
            if session is None
            else SessionSpec(text(session, "trigger"), count(session, "timeout_minutes")),
            checkpoint_max_gib=added_count(wire, "checkpoint_max_gib"),
            load=None if load is None else LoadSpec.from_wire(load),
            cache=None if cache is None else CacheSpec.from_wire(cache),
            artifacts=added_texts(wire, "artifacts"),
            weights=tuple(map(WeightsSpec.from_wire, added_objects(wire, "weights"))),
        )


def _value_to_wire(value: str | SecretRef) -> str | dict[str, str]:
    return value if isinstance(value, str) else {"secret": value.name}


def _value_from_wire(name: str, value: Any) -> str | SecretRef:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("secret"), str):
        return SecretRef(value["secret"])
    raise TypeError(f"environment.{name} must be text or name a secret")
