"""Parts of a job's request: its directories, what it loads and fetches, and what only the original's clients send.

See docs/reference/training.md#what-the-originals-clients-send.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from control.api.protocol.bodies import MAX_MEMBERS
from control.api.protocol.schemas import NO_NUL, IdText, Name, RequestV1
from policy.training.job_spec import DEFAULT_LOAD_PATH, CacheSpec, LoadRef, LoadSpec
from policy.training.job_variables import BT_PROJECT_CACHE_DIR, BT_WEIGHTS_DIR, CACHE_DIR, WEIGHTS_DIR
from policy.training.weights import (
    MAX_PATTERN_CHARS,
    MAX_PATTERNS,
    MAX_SOURCE_CHARS,
    FilePatterns,
    UrlSource,
    WeightsSpec,
    parse_source,
)

MAX_PATH_BYTES = 1024
MAX_LOADS = 20
LATEST = "baseten_latest_checkpoint"
NAMED = "baseten_named_checkpoint"
CUSTOM_SECRET = "CUSTOM_SECRET"  # noqa: S105 (the original's name of a method)
WeightsAuthMethod = Literal["CUSTOM_SECRET", "AWS_OIDC", "GCP_OIDC", "AWS_ASSUME_ROLE"]
CheckpointType = Literal["baseten_latest_checkpoint", "baseten_named_checkpoint", "loops_checkpoint"]
_MAX_NAME_BYTES = 255
_CLIENTS_LOAD_PATH = "/tmp/loaded_checkpoints"  # noqa: S108 (it is compared, and never opened)
"""The clients' default, which they always send. It stands for ours."""
_CLIENTS_MOUNT_PATH = "/root/.cache"
"""The same for a cache."""
_OF_A_NODE = re.compile(r"node-[0-9]+(/|$)")
"""The nodes' own directories are in the job's."""
_Text = Annotated[str, Field(max_length=4096, json_schema_extra=NO_NUL)]
_Texts = Annotated[list[_Text], Field(max_length=MAX_MEMBERS)]
_Object = dict[str, Any]
_Source = Annotated[str, Field(min_length=1, max_length=MAX_SOURCE_CHARS, json_schema_extra=NO_NUL)]
_Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS, json_schema_extra=NO_NUL)]
_Patterns = Annotated[list[_Pattern], Field(max_length=MAX_PATTERNS)]


def relative(path: str) -> str:
    """The path without `.` and empty parts. Only names below the job's own directory are left."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise ValueError("must be relative to the job's own directory, without ..")
    if not path.isprintable() or len(path.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"must have at most {MAX_PATH_BYTES} bytes and no control characters")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise ValueError(f"each name in it must have at most {_MAX_NAME_BYTES} bytes")
    return "/".join(parts)


def own_directory(path: str) -> str:
    """A directory that nothing else is in."""
    if path.startswith("/"):
        raise ValueError(
            "must be relative to the job's own directory, as nothing is mounted elsewhere; leave it out, and use the"
            " variable that names the directory: $BT_CHECKPOINT_DIR, $BT_LOAD_CHECKPOINT_DIR"
        )
    path = relative(path)
    if not path or _OF_A_NODE.match(path):
        raise ValueError("must name a directory of its own, other than a node's own, node-<rank>")
    return path


def _load_directory(path: str) -> str:
    return DEFAULT_LOAD_PATH if path.rstrip("/") == _CLIENTS_LOAD_PATH else own_directory(path)


def _mount_path(path: str) -> str:
    if path.rstrip("/") != _CLIENTS_MOUNT_PATH:
        raise ValueError(f"nothing is mounted; leave it out, and use ${CACHE_DIR} or ${BT_PROJECT_CACHE_DIR}")
    return path


def _weights_location(path: str) -> str:
    """The path below the directory of weights."""
    if not path.startswith("/"):
        raise ValueError(f"must be an absolute path; it begins in the directory that ${BT_WEIGHTS_DIR} names")
    location = relative(path.lstrip("/"))
    if not location:
        raise ValueError("must name a directory below /, such as /models/llama")
    return location


def _check_source(source: str) -> str:
    parse_source(source)
    return source


def _check_auth_method(method: str) -> str:
    if method != CUSTOM_SECRET:
        raise ValueError(
            "must be CUSTOM_SECRET: there is no identity here that a cloud trusts; store keys as a secret, and name it"
            " in auth_secret_name"
        )
    return method


def _check_type(typ: str) -> str:
    if typ not in (LATEST, NAMED):
        raise ValueError("must be baseten_latest_checkpoint or baseten_named_checkpoint; there are no Loops runs here")
    return typ


def _only(default: Any, sentence: str) -> AfterValidator:
    """Accept one value, and answer any other with what is true here."""

    def check(value: Any) -> Any:
        if value != default:
            raise ValueError(sentence)
        return value

    return AfterValidator(check)


ForeignRole = Annotated[
    str, _only("", "is for a cloud's trust, which there is none of here; give auth_secret_name instead")
]
JobPath = Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES, json_schema_extra=NO_NUL)]
DockerAuth = Annotated[
    _Object,
    _only(
        None,
        "images are pulled with the credentials of the machines, if at all; have the operator log in to the registry"
        " there, and leave docker_auth out",
    ),
]
SessionProvider = Annotated[
    str, _only("vs_code", "sessions are shells in a browser, for no other program; leave session_provider out")
]
AuthProvider = Annotated[
    str, _only("microsoft", "sessions are opened by a code of auth_codes, not by an account; leave auth_provider out")
]


class LoadedCheckpointRequestV1(RequestV1):
    """A checkpoint to load: the latest one, or the latest of a name, of a job or of a project."""

    typ: Annotated[CheckpointType, AfterValidator(_check_type)] | None = None
    job_id: IdText | None = None
    project_name: Name | None = None
    checkpoint_name: Name | None = None

    @model_validator(mode="after")
    def _check_name(self) -> "LoadedCheckpointRequestV1":
        if self.typ == LATEST and self.checkpoint_name is not None:
            raise ValueError("has a checkpoint_name, so its typ is baseten_named_checkpoint")
        if self.typ == NAMED and self.checkpoint_name is None:
            raise ValueError("needs a checkpoint_name, as its typ is baseten_named_checkpoint")
        return self

    def ref(self) -> LoadRef:
        return LoadRef(self.job_id, self.project_name, self.checkpoint_name)


class LoadCheckpointRequestV1(RequestV1):
    """The loading of checkpoints before the job's first command."""

    enabled: bool | None = False
    checkpoints: Annotated[list[LoadedCheckpointRequestV1], Field(max_length=MAX_LOADS)] | None = Field(
        None, description="Null: the latest one of the job's own project."
    )
    download_folder: Annotated[JobPath, AfterValidator(_load_directory)] | None = Field(
        None, description="Relative to the job's own directory. Null: `loaded_checkpoints`."
    )

    def spec(self) -> LoadSpec | None:
        if not self.enabled:
            return None
        refs = (LoadRef(),) if self.checkpoints is None else tuple(one.ref() for one in self.checkpoints)
        return LoadSpec(refs, self.download_folder or DEFAULT_LOAD_PATH)


class CacheRequestV1(RequestV1):
    """A directory that the jobs of a project share."""

    enabled: bool | None = False
    enable_legacy_hf_mount: bool | None = Field(False, description="`HF_HOME` is in the cache, unless the job sets it.")
    require_cache_affinity: bool | None = Field(True, description="Ignored: the cache is where all jobs are.")
    mount_base_path: Annotated[JobPath, AfterValidator(_mount_path)] | None = Field(
        None, description="Null, or the clients' default: nothing is mounted, and variables name the directory."
    )

    def spec(self) -> CacheSpec | None:
        return CacheSpec(bool(self.enable_legacy_hf_mount)) if self.enabled else None


class WeightsAuthRequestV1(RequestV1):
    """The credential of a source: a secret of the workspace."""

    auth_method: Annotated[WeightsAuthMethod, AfterValidator(_check_auth_method)]
    auth_secret_name: Name | None = None
    aws_oidc_role_arn: ForeignRole | None = None
    aws_oidc_region: ForeignRole | None = None
    gcp_oidc_service_account: ForeignRole | None = None
    gcp_oidc_workload_id_provider: ForeignRole | None = None
    aws_assume_role_arn: ForeignRole | None = None
    aws_assume_role_region: ForeignRole | None = None

    @model_validator(mode="after")
    def _check_secret(self) -> "WeightsAuthRequestV1":
        if self.auth_secret_name is None:
            raise ValueError("needs an auth_secret_name, as its auth_method is CUSTOM_SECRET")
        return self


class WeightsRequestV1(RequestV1):
    """Files from elsewhere that are there before the job's first command."""

    source: Annotated[_Source, AfterValidator(_check_source)]
    mount_location: Annotated[JobPath, AfterValidator(_weights_location)] = Field(
        description=f"An absolute path, which begins in the directory that `{WEIGHTS_DIR}` names."
    )
    auth: WeightsAuthRequestV1 | None = None
    auth_secret_name: Name | None = None
    allow_patterns: _Patterns | None = Field(None, description="Null or empty: all files.")
    ignore_patterns: _Patterns | None = None

    @model_validator(mode="after")
    def _check(self) -> "WeightsRequestV1":
        if self.auth is not None and self.auth_secret_name is not None:
            raise ValueError("names a secret in auth and beside it; give auth_secret_name once")
        if isinstance(parse_source(self.source), UrlSource) and (self.allow_patterns or self.ignore_patterns):
            raise ValueError("is one file, as its source is a URL; leave allow_patterns and ignore_patterns out")
        return self

    def spec(self) -> WeightsSpec:
        secret = self.auth.auth_secret_name if self.auth else self.auth_secret_name
        patterns = FilePatterns(tuple(self.allow_patterns or ()), tuple(self.ignore_patterns or ()))
        return WeightsSpec(self.source, self.mount_location, secret, patterns)


class WorkspaceRequestV1(RequestV1):
    """The local paths from which the client made its archive. Ignored: the client has used them."""

    workspace_root: _Text | None = None
    external_dirs: _Texts | None = None
    exclude_dirs: _Texts | None = None
