"""The schema of a training job that is to be created: its bounds, and the `NewJob` that it makes.

See docs/reference/training.md#jobs.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, WrapValidator

from control.api.protocol.bodies import MAX_MEMBERS
from control.api.protocol.schemas import INTEGRAL, NO_NUL, Name, RequestV1
from control.api.training.job_schemas import AvailabilityModel
from control.resources.training.jobs import NewJob
from control.resources.training.session_changes import MAX_MINUTES
from policy.training.job_spec import DEDICATED, DEFAULT_CHECKPOINT_PATH, JobSpec, SecretRef, SessionSpec
from policy.training.resources import NodeResources

MAX_TEXT_BYTES = 65_536
"""The most bytes of a start command and of a variable's value. Linux passes at most twice as much in one argument."""
MAX_PRIORITY = 1_000_000
_MAX_PATH_BYTES = 1024
_MAX_NAME_BYTES = 255
_OURS = "TOLLGATE_"
_OF_A_NODE = re.compile(r"node-[0-9]+(/|$)")
"""The nodes' own directories are in the job's."""
_MEMORY = re.compile(r"([1-9][0-9]{0,6})(Mi|Gi|Ti)")
_MIB = {"Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}
_VALUE = f"""must be text of at most {MAX_TEXT_BYTES} bytes, or {{"type": "SECRET", "name": "<a secret's name>"}}"""


def _check_bytes(text: str) -> str:
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ValueError(f"must have at most {MAX_TEXT_BYTES} bytes of UTF-8")
    return text


def _check_variable(name: str) -> str:
    if name.startswith(_OURS):
        raise ValueError(f"must not begin with {_OURS}: those variables are Tollgate's")
    return name


def _one_message(value: Any, check: Callable[[Any], Any]) -> Any:
    """Run a check whose error says what is expected once, not once for each kind of value."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(_VALUE) from None


def _relative(path: str) -> str:
    """The path without `.` and empty parts. Only names below the job's own directory are left."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise ValueError("must be relative to the job's own directory, without ..")
    if not path.isprintable() or len(path.encode()) > _MAX_PATH_BYTES:
        raise ValueError(f"must have at most {_MAX_PATH_BYTES} bytes and no control characters")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise ValueError(f"each name in it must have at most {_MAX_NAME_BYTES} bytes")
    return "/".join(parts)


def _own_directory(path: str) -> str:
    """A directory that nothing but checkpoints is in."""
    path = _relative(path)
    if not path or _OF_A_NODE.match(path):
        raise ValueError("must name a directory of its own, other than a node's own, node-<rank>")
    return path


def _describe_names(schema: dict[str, Any]) -> None:
    """pydantic describes an object's names by `patternProperties`, which lets other names pass."""
    ((pattern, values),) = schema.pop("patternProperties").items()
    schema["additionalProperties"] = values
    schema["propertyNames"] |= {"pattern": pattern, "not": {"pattern": f"^{_OURS}"}}


_Path = Annotated[str, Field(min_length=1, max_length=_MAX_PATH_BYTES, json_schema_extra=NO_NUL)]
# JSON Schema counts characters, not bytes, so it does not say these bounds.
_Command = Annotated[str, Field(min_length=1, json_schema_extra=NO_NUL), AfterValidator(_check_bytes)]
_Text = Annotated[str, Field(json_schema_extra=NO_NUL), AfterValidator(_check_bytes)]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255), AfterValidator(_check_variable)]
_Memory = Annotated[str, Field(pattern=f"^{_MEMORY.pattern}$", examples=["512Mi", "2Gi"])]
_GpuType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["H100"])]
_Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}$", examples=["python:3.12"])]

Trigger = Literal["on_startup", "on_failure", "on_demand"]
TimeoutMinutes = Annotated[int, Field(ge=1, le=MAX_MINUTES), INTEGRAL]
_Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), INTEGRAL]


class TrainingImageRequestV1(RequestV1):
    """The container image of the job's nodes. The backend `local` ignores it."""

    base_image: _Image | None = None


class AcceleratorRequestV1(RequestV1):
    """The GPUs of each node."""

    accelerator: _GpuType
    count: Annotated[int, Field(ge=1, le=1024), INTEGRAL] | None = 1


class TrainingComputeRequestV1(RequestV1):
    """The nodes of a job, and what each of them gets."""

    node_count: Annotated[int, Field(ge=1, le=1000), INTEGRAL] | None = 1
    cpu_count: Annotated[int, Field(ge=1, le=100_000), INTEGRAL]
    memory: _Memory | None = "2Gi"
    accelerator: AcceleratorRequestV1 | None = None

    def resources(self) -> NodeResources:
        memory = _MEMORY.fullmatch(self.memory or "2Gi")
        gpu = self.accelerator
        if memory is None:
            raise AssertionError("the schema has this pattern")
        millicpu = self.cpu_count * 1000
        mib = int(memory[1]) * _MIB[memory[2]]
        return NodeResources(millicpu, mib, gpu.count or 1, gpu.accelerator) if gpu else NodeResources(millicpu, mib)


class SecretVariableRequestV1(RequestV1):
    """The value of a secret of the workspace, read when the job starts."""

    type: Literal["SECRET"] | None = "SECRET"
    name: Name


_Value = Annotated[_Text | SecretVariableRequestV1, WrapValidator(_one_message)]
_Environment = Annotated[dict[_Variable, _Value], Field(max_length=MAX_MEMBERS, json_schema_extra=_describe_names)]


class CheckpointingRequestV1(RequestV1):
    """The checkpointing of a job: whether checkpoints are synced to the store, and where the job writes them."""

    enabled: bool | None = False
    checkpoint_path: Annotated[_Path, AfterValidator(_own_directory)] | None = Field(
        None, description="Relative to the job's own directory. Null: `checkpoints`."
    )


class TrainingRuntimeRequestV1(RequestV1):
    """The commands that each node runs, and their environment."""

    start_commands: Annotated[list[_Command], Field(max_length=100)] | None = Field(
        None,
        description="`/bin/sh -c` lines, in this order, of at most 65536 bytes each. The first that exits non-zero"
        " fails its node.",
    )
    environment_variables: _Environment | None = Field(
        None, description="Text of at most 65536 bytes, or the name of a secret."
    )
    working_directory: Annotated[_Path, AfterValidator(_relative)] | None = Field(
        None, description="Relative to the node's own directory."
    )
    checkpointing_config: CheckpointingRequestV1 | None = None

    def environment(self) -> dict[str, str | SecretRef]:
        variables = self.environment_variables or {}
        return {name: value if isinstance(value, str) else SecretRef(value.name) for name, value in variables.items()}

    def checkpoint_path(self) -> str | None:
        config = self.checkpointing_config
        return (config.checkpoint_path or DEFAULT_CHECKPOINT_PATH) if config and config.enabled else None


class InteractiveSessionRequestV1(RequestV1):
    """The offer of a shell on each node: when, and for how long from then on."""

    trigger: Trigger
    timeout_minutes: TimeoutMinutes


class NewTrainingJobRequestV1(RequestV1):
    """A training job."""

    image: TrainingImageRequestV1 | None = None
    compute: TrainingComputeRequestV1
    runtime: TrainingRuntimeRequestV1
    name: Name | None = None
    priority: _Priority | None = Field(0, description="Higher ones start first.")
    availability_model: AvailabilityModel | None = Field(
        "dedicated", description="A `spot` job may be preempted by a waiting `dedicated` one."
    )
    interactive_session: InteractiveSessionRequestV1 | None = None

    def new_job(self) -> NewJob:
        return NewJob(self._spec(), self.name, self.priority or 0, self.availability_model or DEDICATED)

    def _spec(self) -> JobSpec:
        session = self.interactive_session
        runtime = self.runtime
        return JobSpec(
            start_commands=tuple(runtime.start_commands or ()),
            resources=self.compute.resources(),
            node_count=self.compute.node_count or 1,
            environment=runtime.environment(),
            working_directory=runtime.working_directory or None,
            checkpoint_path=runtime.checkpoint_path(),
            base_image=self.image.base_image if self.image else None,
            session=SessionSpec(session.trigger, session.timeout_minutes) if session else None,
        )


class CreateTrainingJobRequestV1(RequestV1):
    """The training job to create."""

    training_job: NewTrainingJobRequestV1


class UpdateTrainingJobRequestV1(RequestV1):
    """The new place of a waiting job in the queue. Null or left out: as it is."""

    priority: _Priority | None = Field(None, description="Higher ones start first.")
    availability_model: AvailabilityModel | None = None
