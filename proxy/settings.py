"""All that the proxy reads from its environment, once, at start (docs/reference/settings.md); flags override.

The supervisor reads it and hands the same environment, flags folded in, to its workers. Nothing here changes while the
process runs; what changes is the snapshot. A wrong value is a `SettingsError` that names the setting, never its text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from policy.billing import MAX_REPORTED_TOKENS
from policy.hosts import EgressRules
from policy.limits.tiers import Tier, parse_tiers
from policy.sealing import parse_keys
from proxy.capacity.worker_capacity import CapacityLimits
from runtime.log_schema import DEFAULT_LEVEL, parse_level

DEFAULT_DATA_DIR = "./.tollgate"
DEFAULT_READY_GRACE_S = 5.0
MAX_BODY_BYTES = 100_000_000
REDIS_SCHEMES = ("unix", "redis", "rediss")

Parsed = TypeVar("Parsed")


class SettingsError(ValueError):
    """A setting is missing or malformed; the message names it and says what is expected."""


@dataclass(frozen=True, slots=True)
class VendorUrls:
    """Where the vendors' dialects are spoken: the operator's to set, so private addresses are allowed here.

    The platform's own model API has no public host that all installations share: None until the operator names it.
    """

    vendor_a: str
    vendor_b: str
    vendor_c: str
    model_api: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The proxy's settings; the names follow `TOLLGATE_*`."""

    redis_url: str = field(repr=False)
    control_url: str
    internal_token: str = field(repr=False)
    secret_keys: tuple[bytes, ...] = field(repr=False)
    refresh_interval_s: float
    request_timeout_s: float
    parking_timeout_s: float
    connect_timeout_s: float
    stream_idle_timeout_s: float
    drain_timeout_s: float
    ready_grace_s: float
    """Part of the drain timeout, and shorter: `/readyz` is 503 for this long before the listeners close."""
    max_body_bytes: int
    async_max_body_bytes: int
    max_reported_tokens: int
    limits_on_redis_loss: str
    vendors: VendorUrls
    tiers: Mapping[str, Tier]
    egress: EgressRules
    egress_ca_file: str | None
    metrics_max_entities: int
    metrics_max_slugs: int
    capacity: CapacityLimits
    journal_dir: Path
    replica_path: Path
    log_level: str
    shipped_retention_s: float
    shipped_max_bytes: int


def settings_from(environ: Mapping[str, str]) -> Settings:
    """The settings in `environ`; raises `SettingsError` at the first one that will not do."""
    read = _Reader(environ)
    data = Path(read.text("DATA", DEFAULT_DATA_DIR))
    drain_timeout_s = read.seconds("DRAIN_TIMEOUT_S", 25)
    return Settings(
        redis_url=read.parsed("REDIS_URL", _redis_url),
        control_url=read.parsed("CONTROL_URL", _http_url, "http://127.0.0.1:8081"),
        internal_token=read.text("INTERNAL_TOKEN"),
        secret_keys=read.parsed("SECRET_KEY", parse_keys),
        refresh_interval_s=read.seconds("REFRESH_INTERVAL_S", 60),
        request_timeout_s=read.seconds("REQUEST_TIMEOUT_S", 1200),
        parking_timeout_s=read.seconds("PARKING_TIMEOUT_S", 1200),
        connect_timeout_s=read.seconds("CONNECT_TIMEOUT_S", 5),
        stream_idle_timeout_s=read.seconds("STREAM_IDLE_TIMEOUT_S", 300),
        drain_timeout_s=drain_timeout_s,
        ready_grace_s=_ready_grace_s(read, drain_timeout_s),
        max_body_bytes=read.count("MAX_BODY_BYTES", MAX_BODY_BYTES),
        async_max_body_bytes=read.count("ASYNC_MAX_BODY_BYTES", 262_144),
        max_reported_tokens=read.count("MAX_REPORTED_TOKENS", MAX_REPORTED_TOKENS),
        limits_on_redis_loss=read.parsed("LIMITS_ON_REDIS_LOSS", _closed_or_local, "closed"),
        vendors=_vendors(read),
        tiers=read.parsed("MODEL_API_TIERS", parse_tiers, ""),
        egress=read.parsed("EGRESS_ALLOW", EgressRules.parse, ""),
        egress_ca_file=read.text("EGRESS_CA_FILE", "") or None,
        metrics_max_entities=read.count("METRICS_MAX_ENTITIES", 10_000),
        metrics_max_slugs=read.count("METRICS_MAX_SLUGS", 10_000),
        capacity=_capacity(read),
        journal_dir=Path(read.text("JOURNAL_DIR", str(data / "journal"))),
        replica_path=Path(read.text("REPLICA_PATH", str(data / "replica.db"))),
        log_level=read.parsed("LOG_LEVEL", parse_level, DEFAULT_LEVEL),
        shipped_retention_s=read.parsed("SHIPPED_RETENTION_S", _not_negative, "86400"),
        shipped_max_bytes=read.count("SHIPPED_MAX_BYTES", 8 * 1024**3),
    )


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What `snapshot show` needs, which talks to nobody: the replica's path, the keys if there are any, the tiers."""

    path: Path
    secret_keys: tuple[bytes, ...] = field(repr=False)
    tiers: Mapping[str, Tier]


def replica_settings(environ: Mapping[str, str]) -> ReplicaSettings:
    """These settings in `environ`; `SettingsError` as in `settings_from`."""
    read = _Reader(environ)
    data = Path(read.text("DATA", DEFAULT_DATA_DIR))
    keys = read.parsed("SECRET_KEY", parse_keys) if environ.get("TOLLGATE_SECRET_KEY") else ()
    path = Path(read.text("REPLICA_PATH", str(data / "replica.db")))
    return ReplicaSettings(path, keys, read.parsed("MODEL_API_TIERS", parse_tiers, ""))


def _vendors(read: "_Reader") -> VendorUrls:
    return VendorUrls(
        vendor_a=read.parsed("VENDOR_A_BASE_URL", _http_url, "https://api.anthropic.com"),
        vendor_b=read.parsed("VENDOR_B_BASE_URL", _http_url, "https://api.openai.com"),
        vendor_c=read.parsed("VENDOR_C_BASE_URL", _http_url, "https://{location}-aiplatform.googleapis.com"),
        model_api=read.parsed("MODEL_API_BASE_URL", _http_url) if read.has("MODEL_API_BASE_URL") else None,
    )


def _ready_grace_s(read: "_Reader", drain_timeout_s: float) -> float:
    """By default 5 s, but never more than half of the drain timeout: calls need the rest."""

    def parse(text: str) -> float:
        value = _number(float, text, "a number of seconds, 0 or more")
        if not 0 <= value < drain_timeout_s:
            raise ValueError("expected a number of seconds, 0 or more, and less than TOLLGATE_DRAIN_TIMEOUT_S")
        return float(value)

    return read.parsed("READY_GRACE_S", parse, str(min(DEFAULT_READY_GRACE_S, drain_timeout_s / 2)))


def _capacity(read: "_Reader") -> CapacityLimits:
    limits = CapacityLimits(
        max_in_flight=read.count("MAX_IN_FLIGHT", 10_000),
        max_parked=read.count("MAX_PARKED", 5_000),
        max_held_bytes=read.count("MAX_HELD_BYTES", 1 << 30),
        workspace_share=read.parsed("WORKSPACE_SHARE", _share, "0.75"),
    )
    if limits.max_held_bytes < read.count("MAX_BODY_BYTES", MAX_BODY_BYTES):
        raise SettingsError("TOLLGATE_MAX_HELD_BYTES: expected at least TOLLGATE_MAX_BODY_BYTES")
    return limits


class _Reader:
    """Reads one environment; an empty value counts as unset, as in `docker run -e NAME=`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def has(self, name: str) -> bool:
        return bool(self._environ.get(f"TOLLGATE_{name}", "").strip())

    def text(self, name: str, default: str | None = None) -> str:
        value = self._environ.get(f"TOLLGATE_{name}", "").strip() or default
        if value is None:
            raise SettingsError(f"TOLLGATE_{name} is not set, and there is no default for it")
        return value

    def parsed(self, name: str, parse: Callable[[str], Parsed], default: str | None = None) -> Parsed:
        text = self.text(name, default)
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError(f"TOLLGATE_{name}: {error}") from None

    def seconds(self, name: str, default: float) -> float:
        return self.parsed(name, _positive, str(default))

    def count(self, name: str, default: int) -> int:
        return self.parsed(name, _whole, str(default))


def _positive(text: str) -> float:
    value = _number(float, text, "a number of seconds above 0")
    if not 0 < value < float("inf"):
        raise ValueError("expected a number of seconds above 0")
    return float(value)


def _not_negative(text: str) -> float:
    value = _number(float, text, "a number of seconds, 0 or more")
    if not 0 <= value < float("inf"):
        raise ValueError("expected a number of seconds, 0 or more")
    return float(value)


def _share(text: str) -> float:
    value = _number(float, text, "a number from 0.01 to 0.99")
    if not 0.01 <= value <= 0.99:
        raise ValueError("expected a number from 0.01 to 0.99")
    return float(value)


def _whole(text: str) -> int:
    value = _number(int, text, "a whole number, 1 or more")
    if value < 1:
        raise ValueError("expected a whole number, 1 or more")
    return int(value)


def _number(kind: Callable[[str], Any], text: str, expected: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ValueError("expected an http(s)://host[:port] URL without credentials")
    return text.rstrip("/")


def _redis_url(text: str) -> str:
    if urlsplit(text).scheme not in REDIS_SCHEMES:
        raise ValueError(f"expected a URL of one of the schemes {', '.join(REDIS_SCHEMES)}")
    return text


def _closed_or_local(text: str) -> str:
    if text not in ("closed", "local"):
        raise ValueError("expected closed or local")
    return text
