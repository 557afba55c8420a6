"""The trainer's settings, read once from the environment (docs/reference/settings.md). `repr` shows no secrets."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from policy.hosts import EgressRules, platform_hosts
from policy.training.wire import optional_text, text, texts
from runtime.environment import Environment, access_token, http_url, switch
from runtime.log_schema import DEFAULT_LEVEL, parse_level
from runtime.tls.pinned import PeerTls, peer_tls

LOCAL = "local"
RAY = "ray"
OFF = "off"
BACKENDS = (LOCAL, RAY, OFF)
DEFAULT_STOP_GRACE_S = 10.0
_MEMORY = re.compile(r"([1-9][0-9]{0,8})(Mi|Gi|Ti)")
_WORKSPACE_ID = re.compile(r"[A-Za-z0-9_-]+")
_MIB_BYTES = 1024 * 1024
_MIB = {"Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The part of this machine that `local` may use. None: what the machine has."""

    cpu: int | None = None
    memory_mib: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """The bounds of one checkpoint's size: of a workspace that is named, and of every other."""

    others_bytes: int = 1024**4
    named_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the workspace's id."""

    def of(self, workspace_id: str) -> int:
        """The most bytes of a checkpoint of this workspace."""
        return self.named_bytes.get(workspace_id, self.others_bytes)


@dataclass(frozen=True, slots=True)
class WeightsTerms:
    """The places that weights may come from, wherever the nodes run."""

    hub_url: str = "https://huggingface.co"
    s3_url: str | None = None
    """The S3 of `s3://`; None: that of AWS."""
    egress_allow: str = ""
    platform_hosts: tuple[str, ...] = ()
    ca_pem: str = ""
    """Authorities that are trusted besides the system's."""

    def trusting(self, ca_pem: str) -> "WeightsTerms":
        return replace(self, ca_pem=ca_pem)

    def to_wire(self) -> dict[str, Any]:
        return asdict(self) | {"platform_hosts": list(self.platform_hosts)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "WeightsTerms":
        return cls(
            hub_url=text(wire, "hub_url"),
            s3_url=optional_text(wire, "s3_url"),
            egress_allow=text(wire, "egress_allow"),
            platform_hosts=texts(wire, "platform_hosts"),
            ca_pem=text(wire, "ca_pem"),
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `trainer.app.run`."""

    control_url: str
    internal_token: str = field(repr=False)
    directory: Path
    """The directory of the nodes' files and, by default, of the checkpoint store."""
    control_tls: PeerTls = True
    """The check of control's certificate."""
    backend: str = LOCAL
    ray_address: str | None = None
    has_ray_images: bool = False
    """The machines of the Ray cluster have Podman, and start nodes in their jobs' images."""
    checkpoint_store: str = ""
    """An fsspec URL."""
    checkpoint_sizes: CheckpointSizes = CheckpointSizes()
    capacity: Capacity = Capacity()
    stop_grace_s: float = DEFAULT_STOP_GRACE_S
    """The time from SIGTERM to SIGKILL."""
    user: str | None = None
    """The user that the nodes of `local` run as; None: the trainer's."""
    log_level: str = DEFAULT_LEVEL
    weights: WeightsTerms = WeightsTerms()
    weights_sizes: CheckpointSizes = CheckpointSizes()
    """The bounds of all weights of one job."""
    egress_ca_file: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings. Raises `SettingsError` at the first one that is missing or invalid."""
        read = Environment(environ)
        directory = read.parsed("TOLLGATE_TRAINING_DIR", Path, ".tollgate/training").absolute()
        return cls(
            control_url=read.parsed("TOLLGATE_CONTROL_URL", http_url, "http://127.0.0.1:8081"),
            control_tls=peer_tls(read, "TOLLGATE_CONTROL_CERT_FILE"),
            internal_token=read.parsed("TOLLGATE_INTERNAL_TOKEN", access_token),
            directory=directory,
            backend=read.parsed("TOLLGATE_TRAINING_BACKEND", parse_backend, LOCAL),
            ray_address=read.text("TOLLGATE_RAY_ADDRESS") if read.has("TOLLGATE_RAY_ADDRESS") else None,
            has_ray_images=read.parsed("TOLLGATE_RAY_IMAGES", switch, "0"),
            checkpoint_store=read.text("TOLLGATE_CHECKPOINT_STORE", (directory / "checkpoints").as_uri()),
            checkpoint_sizes=read.parsed("TOLLGATE_CHECKPOINT_MAX_SIZE", parse_checkpoint_sizes, "1Ti"),
            capacity=read.parsed("TOLLGATE_TRAINING_CAPACITY", parse_capacity)
            if read.has("TOLLGATE_TRAINING_CAPACITY")
            else Capacity(),
            stop_grace_s=read.seconds("TOLLGATE_TRAINING_STOP_GRACE_S", DEFAULT_STOP_GRACE_S),
            user=read.text("TOLLGATE_TRAINING_USER") if read.has("TOLLGATE_TRAINING_USER") else None,
            log_level=read.parsed("TOLLGATE_LOG_LEVEL", parse_level, DEFAULT_LEVEL),
            weights=_weights(read),
            weights_sizes=read.parsed("TOLLGATE_WEIGHTS_MAX_SIZE", parse_checkpoint_sizes, "1Ti"),
            egress_ca_file=read.text("TOLLGATE_EGRESS_CA_FILE", "") or None,
        )


def _weights(read: Environment) -> WeightsTerms:
    read.parsed("TOLLGATE_EGRESS_ALLOW", EgressRules.parse, "")
    model_api = read.text("TOLLGATE_MODEL_API_BASE_URL", "") or None
    has_store = read.has("TOLLGATE_WEIGHTS_STORE_URL")
    return WeightsTerms(
        hub_url=read.parsed("TOLLGATE_WEIGHTS_HUB_URL", http_url, WeightsTerms().hub_url),
        s3_url=read.parsed("TOLLGATE_WEIGHTS_STORE_URL", http_url) if has_store else None,
        egress_allow=read.text("TOLLGATE_EGRESS_ALLOW", ""),
        platform_hosts=tuple(platform_hosts(read.text("TOLLGATE_PLATFORM_HOSTS", ""), model_api)),
    )


def parse_backend(text: str) -> str:
    if text not in BACKENDS:
        raise ValueError(f"expected one of {', '.join(BACKENDS)}")
    return text


def parse_capacity(text: str) -> Capacity:
    """`cpu=4,memory=16Gi,nodes=8`, in any order, each at most once."""
    expected = "expected cpu=N,memory=NGi,nodes=N, each at most once"
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        field = {"cpu": "cpu", "memory": "memory_mib", "nodes": "nodes"}.get(name)
        if field is None or field in amounts:
            raise ValueError(expected)
        amounts[field] = parse_memory_mib(value) if name == "memory" else _positive(value, expected)
    return Capacity(**amounts)


def parse_checkpoint_sizes(text: str) -> CheckpointSizes:
    """`1Ti`, or `1Ti,ws_01…=10Gi` with other sizes for the workspaces of these ids."""
    others, *parts = (part.strip() for part in text.split(","))
    sizes: dict[str, int] = {}
    for part in parts:
        workspace_id, _, size = part.partition("=")
        if not _WORKSPACE_ID.fullmatch(workspace_id) or workspace_id in sizes:
            raise ValueError("expected SIZE,WORKSPACE_ID=SIZE,…, each workspace at most once")
        sizes[workspace_id] = parse_memory_mib(size) * _MIB_BYTES
    return CheckpointSizes(parse_memory_mib(others) * _MIB_BYTES, sizes)


def parse_memory_mib(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError("expected a size such as 512Mi or 16Gi")
    return int(match[1]) * _MIB[match[2]]


def _positive(text: str, expected: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise ValueError(expected)
    return int(text)
