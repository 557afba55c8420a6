"""The messages between a trainer and control: what a trainer observes, what control wants, what a job left behind.

See docs/reference/management-api.md#internal-api.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policy.training.artifacts import Artifact
from policy.training.job_spec import JobSpec
from policy.training.node_use import NodeSample
from policy.training.resources import Host, NodeResources
from policy.training.statuses import Outcome, Phase, Wanted
from policy.training.wire import (
    added_objects,
    added_text,
    added_texts,
    count,
    flag,
    members,
    objects,
    optional_members,
    optional_text,
    text,
)

LOADS = "loads"
CACHES = "caches"
UNPACKS = "unpacks"
FETCHES = "fetches"
ABILITIES = (LOADS, CACHES, UNPACKS, FETCHES)
"""The abilities that a trainer of an older version lacks. Each claim tells them."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node of a running or ended attempt. `exit_status` None: it runs. Negative: the signal that ended it."""

    rank: int
    host: str
    exit_status: int | None = None

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "NodeState":
        status = wire["exit_status"]
        if status is not None and type(status) is not int:
            raise TypeError("exit_status must be a whole number")
        return cls(count(wire, "rank"), text(wire, "host"), status)


@dataclass(frozen=True, slots=True)
class JobReport:
    """The state of one attempt at a job, as a trainer observes it. `error_message`: for people, without secrets."""

    job_id: str
    attempt: int
    phase: Phase
    outcome: Outcome | None = None
    error_message: str | None = None
    """The reason of a failure. Set while RUNNING too: failed nodes are kept for an interactive session."""
    nodes: tuple[NodeState, ...] = ()
    is_syncing: bool = False
    """True if checkpoints that are complete on disk are not in the store yet."""
    is_forgotten: bool = False
    """True if nothing of the job is left, here or in the store; control may delete its record."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "phase": self.phase.value,
            "outcome": self.outcome and self.outcome.value,
            "error_message": self.error_message,
            "nodes": [node.to_wire() for node in self.nodes],
            "is_syncing": self.is_syncing,
            "is_forgotten": self.is_forgotten,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "JobReport":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError that names what is wrong."""
        return cls(
            job_id=text(wire, "job_id"),
            attempt=count(wire, "attempt"),
            phase=Phase(wire["phase"]),
            outcome=None if wire["outcome"] is None else Outcome(wire["outcome"]),
            error_message=optional_text(wire, "error_message"),
            nodes=tuple(map(NodeState.from_wire, objects(wire, "nodes"))),
            is_syncing=flag(wire, "is_syncing"),
            is_forgotten=flag(wire, "is_forgotten"),
        )


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One sync of a trainer: its backend and everything that it observes. `trainer` identifies the process."""

    trainer: str
    backend: str
    reason: str | None
    """The reason why the backend is away; None if it is there. Nothing is known about jobs while it is away."""
    has_sessions: bool
    hosts: tuple[Host, ...]
    jobs: tuple[JobReport, ...]
    samples: tuple[NodeSample, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "trainer": self.trainer,
            "backend": self.backend,
            "reason": self.reason,
            "has_sessions": self.has_sessions,
            "hosts": [host.to_wire() for host in self.hosts],
            "jobs": [job.to_wire() for job in self.jobs],
            "samples": [sample.to_wire() for sample in self.samples],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "BackendReport":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError that names what is wrong."""
        return cls(
            trainer=text(wire, "trainer"),
            backend=text(wire, "backend"),
            reason=optional_text(wire, "reason"),
            has_sessions=flag(wire, "has_sessions"),
            hosts=tuple(map(Host.from_wire, objects(wire, "hosts"))),
            jobs=tuple(map(JobReport.from_wire, objects(wire, "jobs"))),
            samples=tuple(map(NodeSample.from_wire, objects(wire, "samples") if "samples" in wire else ())),
        )


@dataclass(frozen=True, slots=True)
class WantedJob:
    """The wish of control for one job that has not ended, or that a trainer still has something of."""

    job_id: str
    attempt: int
    """The number of the attempt; 0: the job was never started."""
    status: str
    wish: Wanted
    priority: int
    availability_model: str
    node_count: int
    resources: NodeResources
    created_at_ms: int

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "status": self.status,
            "wanted": self.wish.value,
            "priority": self.priority,
            "availability_model": self.availability_model,
            "node_count": self.node_count,
            "resources": self.resources.to_wire(),
            "created_at_ms": self.created_at_ms,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "WantedJob":
        priority = wire["priority"]
        if type(priority) is not int:
            raise TypeError("priority must be a whole number")
        return cls(
            job_id=text(wire, "job_id"),
            attempt=count(wire, "attempt"),
            status=text(wire, "status"),
            wish=Wanted(wire["wanted"]),
            priority=priority,
            availability_model=text(wire, "availability_model"),
            node_count=count(wire, "node_count"),
            resources=NodeResources.from_wire(members(wire, "resources")),
            created_at_ms=count(wire, "created_at_ms"),
        )


@dataclass(frozen=True, slots=True)
class WantedTerminal:
    """A browser waits for the shell of a session on this node. The trainer connects it once per `terminal_id`."""

    terminal_id: str
    job_id: str
    attempt: int
    rank: int
    workspace_id: str = ""
    """The workspace's id. Empty from a control plane of an older version."""

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "WantedTerminal":
        return cls(
            text(wire, "terminal_id"),
            text(wire, "job_id"),
            count(wire, "attempt"),
            count(wire, "rank"),
            added_text(wire, "workspace_id"),
        )


@dataclass(frozen=True, slots=True)
class WantedState:
    """Control's answer to a sync. `jobs`: highest priority first, then oldest."""

    jobs: tuple[WantedJob, ...] = ()
    terminals: tuple[WantedTerminal, ...] = ()
    forgotten_caches: tuple[str, ...] = ()
    """The ids of deleted projects whose caches are to be removed."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "jobs": [job.to_wire() for job in self.jobs],
            "terminals": [terminal.to_wire() for terminal in self.terminals],
            "forgotten_caches": list(self.forgotten_caches),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "WantedState":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError that names what is wrong."""
        return cls(
            tuple(map(WantedJob.from_wire, objects(wire, "jobs"))),
            tuple(map(WantedTerminal.from_wire, objects(wire, "terminals"))),
            added_texts(wire, "forgotten_caches"),
        )


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint. `path`: relative to the checkpoint, with `/`. `sha256`: in hexadecimal."""

    path: str
    size_bytes: int
    sha256: str

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "CheckpointFile":
        return cls(text(wire, "path"), count(wire, "size_bytes"), text(wire, "sha256"))


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint of a job, as far as its way into the store. `files` None: it is not verified there yet."""

    name: str
    location: str
    """The directory in the store, relative to the store's root; another one for each content."""
    created_at_ms: int
    checkpoint_type: str
    base_model: str | None
    lora_adapter_config: Mapping[str, Any] | None
    size_bytes: int
    files: tuple[CheckpointFile, ...] | None = None

    def to_wire(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"files": None if self.files is None else [file.to_wire() for file in self.files]}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "CheckpointReport":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        return cls(
            name=text(wire, "name"),
            location=text(wire, "location"),
            created_at_ms=count(wire, "created_at_ms"),
            checkpoint_type=text(wire, "checkpoint_type"),
            base_model=optional_text(wire, "base_model"),
            lora_adapter_config=optional_members(wire, "lora_adapter_config"),
            size_bytes=count(wire, "size_bytes"),
            files=None if wire["files"] is None else tuple(map(CheckpointFile.from_wire, objects(wire, "files"))),
        )


@dataclass(frozen=True, slots=True)
class Restore:
    """A checkpoint that a job starts with: it is put back under its name."""

    name: str
    location: str
    files: tuple[CheckpointFile, ...]

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "location": self.location, "files": [file.to_wire() for file in self.files]}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Restore":
        files = tuple(map(CheckpointFile.from_wire, objects(wire, "files")))
        return cls(text(wire, "name"), text(wire, "location"), files)


@dataclass(frozen=True, slots=True)
class Load:
    """A checkpoint of another job, to be put into this directory below that of loaded checkpoints."""

    directory: str
    checkpoint: Restore

    def to_wire(self) -> dict[str, Any]:
        return {"directory": self.directory, "checkpoint": self.checkpoint.to_wire()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Load":
        return cls(text(wire, "directory"), Restore.from_wire(members(wire, "checkpoint")))


@dataclass(frozen=True, slots=True)
class Claimed:
    """Control's answer when a trainer may start a job: the attempt's number and all that it needs.

    `environment_token` is spent once at `/internal/v1/training/environment`, by whoever runs the nodes.
    """

    job_id: str
    attempt: int
    spec: JobSpec
    environment_token: str
    restore: Restore | None
    workspace_id: str = ""
    """The workspace's id. Empty from a control plane of an older version, as the members below."""
    project_id: str = ""
    project_name: str = ""
    job_name: str = ""
    """Empty too if the job has no name."""
    loads: tuple[Load, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    """The artifacts of the spec, as they are in the store."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "spec": self.spec.to_wire(),
            "environment_token": self.environment_token,
            "restore": self.restore and self.restore.to_wire(),
            "workspace_id": self.workspace_id,
            "project_id": self.project_id,
            "project_name": self.project_name,
            "job_name": self.job_name,
            "loads": [load.to_wire() for load in self.loads],
            "artifacts": [artifact.to_wire() for artifact in self.artifacts],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Claimed":
        restore = optional_members(wire, "restore")
        return cls(
            job_id=text(wire, "job_id"),
            attempt=count(wire, "attempt"),
            spec=JobSpec.from_wire(members(wire, "spec")),
            environment_token=text(wire, "environment_token"),
            restore=None if restore is None else Restore.from_wire(restore),
            workspace_id=added_text(wire, "workspace_id"),
            project_id=added_text(wire, "project_id"),
            project_name=added_text(wire, "project_name"),
            job_name=added_text(wire, "job_name"),
            loads=tuple(map(Load.from_wire, added_objects(wire, "loads"))),
            artifacts=tuple(map(Artifact.from_wire, added_objects(wire, "artifacts"))),
        )


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line that a node printed, secrets masked. `level`: `INFO`, or `WARNING` for standard error."""

    timestamp_ns: int
    level: str
    message: str

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "OutputLine":
        return cls(count(wire, "timestamp_ns"), text(wire, "level"), text(wire, "message"))


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value that a node printed as a line of JSON. `step` None: the line had none."""

    name: str
    timestamp_ms: int
    step: int | None
    value: float

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "MetricPoint":
        value = wire["value"]
        if type(value) not in (int, float):
            raise TypeError("value must be a number")
        step = wire["step"]
        if step is not None and type(step) is not int:
            raise TypeError("step must be a whole number")
        return cls(text(wire, "name"), count(wire, "timestamp_ms"), step, float(value))


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """The output of a node between two offsets. Control takes each byte range once."""

    attempt: int
    rank: int
    offset: int
    next_offset: int
    lines: Sequence[OutputLine]
    metrics: Sequence[MetricPoint]

    def to_wire(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("attempt", "rank", "offset", "next_offset")}
        return plain | {
            "lines": [line.to_wire() for line in self.lines],
            "metrics": [point.to_wire() for point in self.metrics],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "OutputBatch":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        return cls(
            attempt=count(wire, "attempt"),
            rank=count(wire, "rank"),
            offset=count(wire, "offset"),
            next_offset=count(wire, "next_offset"),
            lines=tuple(map(OutputLine.from_wire, objects(wire, "lines"))),
            metrics=tuple(map(MetricPoint.from_wire, objects(wire, "metrics"))),
        )
