"""The schema of a training job that is to be created: its bounds, and the `NewJob` that it makes.

See docs/reference/training.md#jobs.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, WrapValidator

from control.api.protocol.bodies import MAX_MEMBERS
from control.api.protocol.schemas import INTEGRAL, NO_NUL, IdText, Name, RequestV1
from control.api.training.job_members import (
    AuthProvider,
    CacheRequestV1,
    DockerAuth,
    JobPath,
    LoadCheckpointRequestV1,
    SessionProvider,
    WeightsRequestV1,
    WorkspaceRequestV1,
    own_directory,
    relative,
)
from control.api.training.job_schemas import AvailabilityModel
from control.errors import InvalidFieldError
from control.resources.training.jobs import NewJob
from control.resources.training.session_changes import MAX_MINUTES
from control.resources.uploads.grants import BUCKET
from policy.training.artifacts import MAX_ARTIFACTS
from policy.training.images import IMAGE_PATTERN, MAX_IMAGE_CHARS, is_image
from policy.training.job_spec import (
    DEDICATED,
    DEFAULT_CHECKPOINT_PATH,
    ON_DEMAND,
    CacheSpec,
    JobSpec,
    LoadSpec,
    SecretRef,
    SessionSpec,
)
from policy.training.resources import NodeResources
from policy.training.weights import MAX_WEIGHTS, WEIGHTS_PATH, WeightsSpec, is_within, overlap

MAX_TEXT_BYTES = 65_536
"""The most bytes of a start command and of a variable's value. Linux passes at most twice as much in one argument."""
MAX_PRIORITY = 1_000_000
DEFAULT_SESSION_MINUTES = 480
"""The clients' default, which they may leave out."""
MAX_VOLUME_GIB = 1_000_000
_OURS = "TOLLGATE_"
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


def _check_image(name: str) -> str:
    if not is_image(name):
        raise ValueError("must be the name of a container image, as python:3.12 or registry.example/team/train:1")
    return name


def _one_message(value: Any, check: Callable[[Any], Any]) -> Any:
    """Run a check whose error says what is expected once, not once for each kind of value."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(_VALUE) from None


def _describe_names(schema: dict[str, Any]) -> None:
    """pydantic describes an object's names by `patternProperties`, which lets other names pass."""
    ((pattern, values),) = schema.pop("patternProperties").items()
    schema["additionalProperties"] = values
    schema["propertyNames"] |= {"pattern": pattern, "not": {"pattern": f"^{_OURS}"}}


# JSON Schema counts characters, not bytes, so it does not say these bounds.
_Command = Annotated[str, Field(min_length=1, json_schema_extra=NO_NUL), AfterValidator(_check_bytes)]
_Text = Annotated[str, Field(json_schema_extra=NO_NUL), AfterValidator(_check_bytes)]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255), AfterValidator(_check_variable)]
_Memory = Annotated[str, Field(pattern=f"^{_MEMORY.pattern}$", examples=["512Mi", "2Gi"])]
_GpuType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["H100"])]
_Image = Annotated[
    str,
    Field(examples=["python:3.12"], json_schema_extra={"pattern": IMAGE_PATTERN, "maxLength": MAX_IMAGE_CHARS}),
    AfterValidator(_check_image),
]

Trigger = Literal["on_startup", "on_failure", "on_demand"]
TimeoutMinutes = Annotated[int, Field(ge=1, le=MAX_MINUTES), INTEGRAL]
_Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), INTEGRAL]


class TrainingImageRequestV1(RequestV1):
    """The container image of the job's nodes. A backend that runs the programs of its machines does not use it."""

    base_image: _Image | None = None
    docker_auth: DockerAuth | None = Field(None, description="Null: machines have credentials of their own.")


class AcceleratorRequestV1(RequestV1):
    """The GPUs of each node."""

    accelerator: _GpuType
    count: Annotated[int, Field(ge=1, le=1024), INTEGRAL] | None = 1


class TrainingComputeRequestV1(RequestV1):
    """The nodes of a job, and what each of them gets."""

    node_count: Annotated[int, Field(ge=1, le=1000), INTEGRAL] | None = 1
    cpu_count: Annotated[int, Field(ge=1, le=100_000), INTEGRAL] | None = 1
    memory: _Memory | None = "2Gi"
    accelerator: AcceleratorRequestV1 | None = None
    availability_model: AvailabilityModel | None = Field(
        None, description="The same as `training_job.availability_model`, where the original's clients have it."
    )

    def resources(self) -> NodeResources:
        memory = _MEMORY.fullmatch(self.memory or "2Gi")
        gpu = self.accelerator
        if memory is None:
            raise AssertionError("the schema has this pattern")
        millicpu = (self.cpu_count or 1) * 1000
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
    checkpoint_path: Annotated[JobPath, AfterValidator(own_directory)] | None = Field(
        None, description="Relative to the job's own directory. Null: `checkpoints`."
    )
    volume_size_gib: Annotated[int, Field(ge=1, le=MAX_VOLUME_GIB), INTEGRAL] | None = Field(
        None, description="The most GiB of one checkpoint. Null: as much as the operator allows."
    )


class ArtifactRequestV1(RequestV1):
    """An upload of the workspace, with the names that `GET /v1/blobs/credentials/train` gave it."""

    s3_bucket: Literal[BUCKET]  # type: ignore[valid-type]  # mypy knows no constants as literals
    s3_key: IdText


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
    working_directory: Annotated[JobPath, AfterValidator(relative)] | None = Field(
        None, description="Relative to the node's own directory."
    )
    checkpointing_config: CheckpointingRequestV1 | None = None
    load_checkpoint_config: LoadCheckpointRequestV1 | None = None
    cache_config: CacheRequestV1 | None = None
    enable_cache: bool | None = Field(None, description="Older form of `cache_config`, with a legacy HF mount.")
    artifacts: Annotated[list[ArtifactRequestV1], Field(max_length=MAX_ARTIFACTS)] | None = Field(
        None, description="Tar archives that are unpacked in each node's own directory before its first command."
    )

    def environment(self) -> dict[str, str | SecretRef]:
        variables = self.environment_variables or {}
        return {name: value if isinstance(value, str) else SecretRef(value.name) for name, value in variables.items()}

    def checkpoint_path(self) -> str | None:
        config = self.checkpointing_config
        return (config.checkpoint_path or DEFAULT_CHECKPOINT_PATH) if config and config.enabled else None

    def load(self) -> LoadSpec | None:
        """The checkpoints to load. InvalidFieldError if they would be taken for checkpoints of the job."""
        config = self.load_checkpoint_config
        load = config.spec() if config else None
        path = self.checkpoint_path()
        if load and path and (f"{path}/".startswith(f"{load.directory}/") or load.directory.startswith(f"{path}/")):
            message = f"must be outside of the job's own checkpoint directory, {path}"
            raise InvalidFieldError("training_job.runtime.load_checkpoint_config.download_folder", message)
        return load

    def cache(self) -> CacheSpec | None:
        """The cache. InvalidFieldError if both forms are given."""
        if self.enable_cache is not None and self.cache_config is not None:
            message = "is the older form of cache_config; give cache_config alone"
            raise InvalidFieldError("training_job.runtime.enable_cache", message)
        if self.enable_cache:
            return CacheSpec(is_hf_home=True)
        return self.cache_config.spec() if self.cache_config else None

    def checkpoint_max_gib(self) -> int | None:
        config = self.checkpointing_config
        return config.volume_size_gib if config and config.enabled else None


class InteractiveSessionRequestV1(RequestV1):
    """The offer of a shell on each node: when, and for how long from then on."""

    trigger: Trigger | None = "on_demand"
    timeout_minutes: TimeoutMinutes | None = DEFAULT_SESSION_MINUTES
    session_provider: SessionProvider | None = Field(None, description="Null or `vs_code`: a shell in a browser.")
    auth_provider: AuthProvider | None = Field(None, description="Null or `microsoft`: the codes of `auth_codes`.")

    def spec(self) -> SessionSpec:
        return SessionSpec(self.trigger or ON_DEMAND, self.timeout_minutes or DEFAULT_SESSION_MINUTES)


class NewTrainingJobRequestV1(RequestV1):
    """A training job."""

    image: TrainingImageRequestV1 | None = None
    compute: TrainingComputeRequestV1 | None = Field(None, description="Null: one node with one CPU and 2 GiB.")
    runtime: TrainingRuntimeRequestV1 | None = Field(None, description="Null: no commands.")
    name: Name | None = None
    priority: _Priority | None = Field(0, description="Higher ones start first.")
    availability_model: AvailabilityModel | None = Field(
        None, description="A `spot` job may be preempted by a waiting `dedicated` one. Null: `dedicated`."
    )
    interactive_session: InteractiveSessionRequestV1 | None = None
    weights: Annotated[list[WeightsRequestV1], Field(max_length=MAX_WEIGHTS)] | None = Field(
        None, description="Files from elsewhere that are there before the first command."
    )
    workspace: WorkspaceRequestV1 | None = Field(None, description="Ignored: the client has used it.")
    enable_baseten_workdir: bool | None = Field(
        None, description="Ignored: a job begins in its working directory, in an image too."
    )
    truss_user_env: dict[str, Any] | None = Field(None, description="Ignored: versions on the client's machine.")

    def new_job(self) -> NewJob:
        """The job. InvalidFieldError where two members contradict each other."""
        return NewJob(self._spec(), self.name, self.priority or 0, self._availability())

    def _availability(self) -> str:
        inner = self.compute and self.compute.availability_model
        if inner and self.availability_model and inner != self.availability_model:
            message = "differs from training_job.availability_model; give one of them, or the same in both"
            raise InvalidFieldError("training_job.compute.availability_model", message)
        return self.availability_model or inner or DEDICATED

    def _spec(self) -> JobSpec:
        session = self.interactive_session
        runtime = self.runtime or TrainingRuntimeRequestV1.model_validate({})
        compute = self.compute or TrainingComputeRequestV1.model_validate({})
        return JobSpec(
            start_commands=tuple(runtime.start_commands or ()),
            resources=compute.resources(),
            node_count=compute.node_count or 1,
            environment=runtime.environment(),
            working_directory=runtime.working_directory or None,
            checkpoint_path=runtime.checkpoint_path(),
            base_image=self.image.base_image if self.image else None,
            session=session.spec() if session else None,
            checkpoint_max_gib=runtime.checkpoint_max_gib(),
            load=runtime.load(),
            cache=runtime.cache(),
            artifacts=tuple(artifact.s3_key for artifact in runtime.artifacts or ()),
            weights=self._weights(runtime),
        )

    def _weights(self, runtime: TrainingRuntimeRequestV1) -> tuple[WeightsSpec, ...]:
        """The weights. InvalidFieldError if they would be taken for something else of the job."""
        weights = tuple(one.spec() for one in self.weights or ())
        place = overlap([one.location for one in weights])
        if place is not None:
            message = "is that of an earlier entry, or inside of it or around it; give each entry a place of its own"
            raise InvalidFieldError(f"training_job.weights.{place}.mount_location", message)
        others = {
            "checkpointing_config.checkpoint_path": runtime.checkpoint_path(),
            "load_checkpoint_config.download_folder": getattr(runtime.load(), "directory", None),
        }
        for field, path in others.items():
            if weights and path and (is_within(path, WEIGHTS_PATH) or is_within(WEIGHTS_PATH, path)):
                message = f"must be outside of the job's directory of weights, {WEIGHTS_PATH}"
                raise InvalidFieldError(f"training_job.runtime.{field}", message)
        return weights


class CreateTrainingJobRequestV1(RequestV1):
    """The training job to create."""

    training_job: NewTrainingJobRequestV1


class UpdateTrainingJobRequestV1(RequestV1):
    """The new place of a waiting job in the queue. Null or left out: as it is."""

    priority: _Priority | None = Field(None, description="Higher ones start first.")
    availability_model: AvailabilityModel | None = None
