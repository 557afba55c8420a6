"""Parts of a job's request: its directories, the checkpoints that it loads, and what only the original's clients send.

See docs/reference/training.md#what-the-originals-clients-send.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from control.api.protocol.bodies import MAX_MEMBERS
from control.api.protocol.schemas import NO_NUL, RequestV1

MAX_PATH_BYTES = 1024
_MAX_NAME_BYTES = 255
_OF_A_NODE = re.compile(r"node-[0-9]+(/|$)")
"""The nodes' own directories are in the job's."""
_Text = Annotated[str, Field(max_length=4096, json_schema_extra=NO_NUL)]
_Texts = Annotated[list[_Text], Field(max_length=MAX_MEMBERS)]
_Object = dict[str, Any]


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


def _only(default: Any, sentence: str) -> AfterValidator:
    """Accept one value, and answer any other with what is true here."""

    def check(value: Any) -> Any:
        if value != default:
            raise ValueError(sentence)
        return value

    return AfterValidator(check)


JobPath = Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES, json_schema_extra=NO_NUL)]
DockerAuth = Annotated[
    _Object,
    _only(None, "no backend pulls images, so it needs no credentials of a registry; leave docker_auth out"),
]
Weights = Annotated[
    list[_Object],
    Field(max_length=MAX_MEMBERS),
    _only([], "weights are not mirrored here; download them in a start command and leave weights out"),
]
SessionProvider = Annotated[
    str, _only("vs_code", "sessions are shells in a browser, for no other program; leave session_provider out")
]
AuthProvider = Annotated[
    str, _only("microsoft", "sessions are opened by a code of auth_codes, not by an account; leave auth_provider out")
]
Artifacts = Annotated[list[_Object], Field(max_length=0)]


class LoadCheckpointRequestV1(RequestV1):
    """The loading of checkpoints before the job's first command."""

    enabled: Annotated[bool, _only(False, "checkpoints are not loaded; read them in a start command")] | None = False
    checkpoints: list[_Object] | None = None
    download_folder: JobPath | None = None


class CacheRequestV1(RequestV1):
    """A directory that the jobs of a project share."""

    enabled: Annotated[bool, _only(False, "jobs share no cache; leave it out")] | None = False
    enable_legacy_hf_mount: bool | None = False
    require_cache_affinity: bool | None = True
    mount_base_path: JobPath | None = None


class WorkspaceRequestV1(RequestV1):
    """The local paths from which the client made its archive. Ignored: the client has used them."""

    workspace_root: _Text | None = None
    external_dirs: _Texts | None = None
    exclude_dirs: _Texts | None = None
