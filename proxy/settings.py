"""The proxy's settings, read once from the environment at start (docs/reference/settings.md). Flags override them.

The supervisor passes the same environment, flags included, to its workers. Settings do not change while the process
runs, but for the keys of a TOLLGATE_SECRET_KEY_FILE; the policy snapshot does. A `SettingsError` names the
setting, but never repeats its value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import MODEL_API, PROVIDERS
from policy.hosts import EgressRules, platform_hosts
from policy.limits.tiers import Tier, parse_tiers
from policy.sealing import parse_keys
from proxy.accounting.call_bound import ASSUMED_OUTPUT_TOKENS
from proxy.accounting.request_samples import LEAST
from proxy.callers.address_ranges import AddressRanges
from proxy.callers.caller_addresses import trusted_proxies
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.http_rules.cors import CorsRules, parse_cors_origins
from proxy.http_rules.model_paths import parse_host_suffix
from runtime.environment import Environment, SettingsError, access_token, http_url, number, redis_url
from runtime.log_schema import DEFAULT_LEVEL, parse_level
from runtime.metrics_export.settings import MetricExportSettings, metric_export_settings
from runtime.secret_keys import has_secret_keys, secret_keys
from runtime.tracing.settings import TraceSettings, trace_settings

DEFAULT_DATA_DIR = "./.tollgate"
DEFAULT_READY_GRACE_S = 7.0
JOURNAL_MEMORY_DIR = "/dev/shm"  # noqa: S108 (what is made in it is private)
MAX_BODY_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class AsyncSettings:
    """Settings of asynchronous requests; the names follow `TOLLGATE_ASYNC_*`."""

    enabled: bool
    """`TOLLGATE_ASYNC`. Otherwise their paths answer 503, and no worker runs them."""
    redis_url: str = field(repr=False)
    workers: int
    """Processes of this machine that run requests. With 0 it only accepts them."""
    max_body_bytes: int
    """The largest request, where its workspace has no bound of its own."""
    max_running: int
    """Attempts at once, per worker process."""
    max_queued_bytes: int
    """Payloads of one workspace that have not begun; above it 429."""
    max_answer_bytes: int
    """Answers of one workspace that wait for their webhooks; above it no further request of it begins."""
    timeout_s: float
    """Seconds from the start of the first attempt to the end of the last one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The proxy's settings; the names follow `TOLLGATE_*`."""

    redis_url: str = field(repr=False)
    redis_timeout_s: float
    """Seconds that a check of limits waits for Redis."""
    control_url: str
    internal_token: str = field(repr=False)
    secret_keys: Sequence[bytes] = field(repr=False)
    refresh_interval_s: float
    request_timeout_s: float
    parking_timeout_s: float
    connect_timeout_s: float
    stream_idle_timeout_s: float
    drain_timeout_s: float
    ready_grace_s: float
    """Part of the drain timeout, and shorter: `/readyz` is 503 for this long before the listeners close."""
    max_body_bytes: int
    async_requests: AsyncSettings
    max_reported_tokens: int
    assumed_output_tokens: int
    """The cap of a call that has none."""
    limits_on_redis_loss: str
    base_urls: Mapping[str, str]
    """The URLs of providers that have one. The operator sets them, so they may have private addresses."""
    tiers: Mapping[str, Tier]
    egress: EgressRules
    egress_ca_file: str | None
    metrics_max_entities: int
    metrics_max_slugs: int
    request_max_per_s: int
    """Most calls per workspace, second and machine in the list of requests."""
    metrics_token: str = field(repr=False)
    """Token with which the admin port shows all workspaces' series to other machines too. Empty: there is none."""
    capacity: CapacityLimits
    cors: CorsRules
    trusted_proxies: AddressRanges
    """The peers whose `X-Forwarded-For` is believed."""
    model_host_suffix: str
    """The end of models' own host names. Empty: models have none."""
    journal_dir: Path
    journal_memory_dir: Path | None
    """Directory in memory where the journal is written first. None: it is written to `journal_dir` alone."""
    replica_path: Path
    log_level: str
    shipped_retention_s: float
    shipped_max_bytes: int
    traces: TraceSettings | None
    """None: off, and no tracer or exporter is imported."""
    metric_export: MetricExportSettings | None
    """None: metrics are for Prometheus alone, and no exporter is imported."""

    @property
    def call_timeout_s(self) -> float:
        """The longest time from a call's admission to its end: it may be parked before it is dispatched."""
        return self.parking_timeout_s + self.request_timeout_s


def settings_from(environ: Mapping[str, str]) -> Settings:
    """The settings in `environ`. Raises `SettingsError` for the first invalid one."""
    read = Environment(environ)
    data = Path(read.text("TOLLGATE_DATA", DEFAULT_DATA_DIR))
    drain_timeout_s = read.seconds("TOLLGATE_DRAIN_TIMEOUT_S", 25)
    base_urls = _base_urls(read)
    return Settings(
        redis_url=read.parsed("TOLLGATE_REDIS_URL", redis_url),
        redis_timeout_s=read.parsed("TOLLGATE_REDIS_TIMEOUT_S", _redis_timeout_s, "0.05"),
        control_url=read.parsed("TOLLGATE_CONTROL_URL", http_url, "http://127.0.0.1:8081"),
        internal_token=read.parsed("TOLLGATE_INTERNAL_TOKEN", access_token),
        secret_keys=_secret_keys(read),
        refresh_interval_s=read.seconds("TOLLGATE_REFRESH_INTERVAL_S", 60),
        request_timeout_s=read.seconds("TOLLGATE_REQUEST_TIMEOUT_S", 1200),
        parking_timeout_s=read.seconds("TOLLGATE_PARKING_TIMEOUT_S", 1200),
        connect_timeout_s=read.seconds("TOLLGATE_CONNECT_TIMEOUT_S", 5),
        stream_idle_timeout_s=read.seconds("TOLLGATE_STREAM_IDLE_TIMEOUT_S", 300),
        drain_timeout_s=drain_timeout_s,
        ready_grace_s=_ready_grace_s(read, drain_timeout_s),
        max_body_bytes=read.count("TOLLGATE_MAX_BODY_BYTES", MAX_BODY_BYTES),
        async_requests=_async_requests(read),
        max_reported_tokens=read.count("TOLLGATE_MAX_REPORTED_TOKENS", MAX_REPORTED_TOKENS),
        assumed_output_tokens=read.count("TOLLGATE_ASSUMED_OUTPUT_TOKENS", ASSUMED_OUTPUT_TOKENS),
        limits_on_redis_loss=read.parsed("TOLLGATE_LIMITS_ON_REDIS_LOSS", _closed_or_local, "closed"),
        base_urls=base_urls,
        tiers=read.parsed("TOLLGATE_MODEL_API_TIERS", parse_tiers, ""),
        egress=_egress(read, base_urls.get(MODEL_API)),
        egress_ca_file=read.text("TOLLGATE_EGRESS_CA_FILE", "") or None,
        metrics_max_entities=read.count("TOLLGATE_METRICS_MAX_ENTITIES", 10_000),
        metrics_max_slugs=read.count("TOLLGATE_METRICS_MAX_SLUGS", 10_000),
        request_max_per_s=read.parsed("TOLLGATE_REQUEST_MAX_PER_S", _request_max_per_s, "100"),
        metrics_token=read.parsed("TOLLGATE_METRICS_TOKEN", access_token) if read.has("TOLLGATE_METRICS_TOKEN") else "",
        capacity=_capacity(read),
        cors=read.parsed("TOLLGATE_CORS_ORIGINS", parse_cors_origins, ""),
        trusted_proxies=read.parsed("TOLLGATE_TRUSTED_PROXIES", trusted_proxies, ""),
        model_host_suffix=read.parsed("TOLLGATE_MODEL_HOST_SUFFIX", parse_host_suffix)
        if read.has("TOLLGATE_MODEL_HOST_SUFFIX")
        else "",
        journal_dir=Path(read.text("TOLLGATE_JOURNAL_DIR", str(data / "journal"))),
        journal_memory_dir=read.parsed("TOLLGATE_JOURNAL_MEMORY_DIR", _directory_or_off, JOURNAL_MEMORY_DIR),
        replica_path=Path(read.text("TOLLGATE_REPLICA_PATH", str(data / "replica.db"))),
        log_level=read.parsed("TOLLGATE_LOG_LEVEL", parse_level, DEFAULT_LEVEL),
        shipped_retention_s=read.parsed("TOLLGATE_SHIPPED_RETENTION_S", _not_negative, "86400"),
        shipped_max_bytes=read.count("TOLLGATE_SHIPPED_MAX_BYTES", 8 * 1024**3),
        traces=trace_settings(read, "TOLLGATE_TRACES"),
        metric_export=metric_export_settings(read, "TOLLGATE_METRICS"),
    )


def _async_requests(read: Environment) -> AsyncSettings:
    default_url = read.parsed("TOLLGATE_REDIS_URL", redis_url)
    return AsyncSettings(
        enabled=read.parsed("TOLLGATE_ASYNC", _on_or_off, "on"),
        redis_url=read.parsed("TOLLGATE_ASYNC_REDIS_URL", redis_url, default_url),
        workers=read.parsed("TOLLGATE_ASYNC_WORKERS", _worker_count, "1"),
        max_body_bytes=read.count("TOLLGATE_ASYNC_MAX_BODY_BYTES", 262_144),
        max_running=read.count("TOLLGATE_ASYNC_MAX_RUNNING", 200),
        max_queued_bytes=read.count("TOLLGATE_ASYNC_MAX_QUEUED_BYTES", 256 << 20),
        max_answer_bytes=read.count("TOLLGATE_ASYNC_MAX_ANSWER_BYTES", 256 << 20),
        timeout_s=read.seconds("TOLLGATE_ASYNC_TIMEOUT_S", 3600),
    )


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """The settings of `snapshot show`, which makes no connection: replica path, secret keys if any, tiers."""

    path: Path
    secret_keys: Sequence[bytes] = field(repr=False)
    tiers: Mapping[str, Tier]


def replica_settings(environ: Mapping[str, str]) -> ReplicaSettings:
    """The same for `snapshot show`. Raises `SettingsError` like `settings_from`."""
    read = Environment(environ)
    data = Path(read.text("TOLLGATE_DATA", DEFAULT_DATA_DIR))
    keys = _secret_keys(read) if has_secret_keys(environ) else ()
    path = Path(read.text("TOLLGATE_REPLICA_PATH", str(data / "replica.db")))
    return ReplicaSettings(path, keys, read.parsed("TOLLGATE_MODEL_API_TIERS", parse_tiers, ""))


def _secret_keys(read: Environment) -> Sequence[bytes]:
    return secret_keys(read, "TOLLGATE_SECRET_KEY", "TOLLGATE_SECRET_KEY_FILE", parse_keys)


def journal_directory(environ: Mapping[str, str]) -> Path:
    """The same for `journal dump`."""
    read = Environment(environ)
    data = Path(read.text("TOLLGATE_DATA", DEFAULT_DATA_DIR))
    return Path(read.text("TOLLGATE_JOURNAL_DIR", str(data / "journal")))


def _base_urls(read: Environment) -> Mapping[str, str]:
    """The base URLs of the providers that have one here: a default, or what the operator set."""
    urls = {name: provider.base_url for name, provider in PROVIDERS.items()}
    return {
        name: read.parsed(url.setting, http_url, url.default)
        for name, url in urls.items()
        if url is not None and (url.default is not None or read.has(url.setting))
    }


def _egress(read: Environment, model_api_base_url: str | None) -> EgressRules:
    hosts = platform_hosts(read.text("TOLLGATE_PLATFORM_HOSTS", ""), model_api_base_url)
    return read.parsed("TOLLGATE_EGRESS_ALLOW", lambda text: EgressRules.parse(text, hosts), "")


def _ready_grace_s(read: Environment, drain_timeout_s: float) -> float:
    """Default to 7 s, but at most half of the drain timeout: calls in flight need the rest."""

    def parse(text: str) -> float:
        value = number(float, text, "a number of seconds, 0 or more")
        if not 0 <= value < drain_timeout_s:
            raise ValueError("expected a number of seconds, 0 or more, and less than TOLLGATE_DRAIN_TIMEOUT_S")
        return float(value)

    return read.parsed("TOLLGATE_READY_GRACE_S", parse, str(min(DEFAULT_READY_GRACE_S, drain_timeout_s / 2)))


def _capacity(read: Environment) -> CapacityLimits:
    limits = CapacityLimits(
        max_in_flight=read.count("TOLLGATE_MAX_IN_FLIGHT", 10_000),
        max_parked=read.count("TOLLGATE_MAX_PARKED", 5_000),
        max_held_bytes=read.count("TOLLGATE_MAX_HELD_BYTES", 1 << 30),
        workspace_share=read.parsed("TOLLGATE_WORKSPACE_SHARE", _share, "0.75"),
    )
    if limits.max_held_bytes < read.count("TOLLGATE_MAX_BODY_BYTES", MAX_BODY_BYTES):
        raise SettingsError("TOLLGATE_MAX_HELD_BYTES: expected at least TOLLGATE_MAX_BODY_BYTES")
    return limits


def _request_max_per_s(text: str) -> int:
    expected = f"a whole number from {LEAST} to 10000"
    value = int(number(int, text, expected))
    if not LEAST <= value <= 10_000:
        raise ValueError(f"expected {expected}")
    return value


def _not_negative(text: str) -> float:
    value = number(float, text, "a number of seconds, 0 or more")
    if not 0 <= value < float("inf"):
        raise ValueError("expected a number of seconds, 0 or more")
    return float(value)


def _between(least: float, most: float, what: str, text: str) -> float:
    expected = f"{what} from {least:g} to {most:g}"
    value = float(number(float, text, expected))
    if not least <= value <= most:
        raise ValueError(f"expected {expected}")
    return value


_redis_timeout_s = partial(_between, 0.01, 1, "a number of seconds")
_share = partial(_between, 0.01, 0.99, "a number")


def _closed_or_local(text: str) -> str:
    if text not in ("closed", "local"):
        raise ValueError("expected closed or local")
    return text


def _on_or_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("expected on or off")
    return text == "on"


def _directory_or_off(text: str) -> Path | None:
    if text == "off":
        return None
    if not Path(text).is_absolute():
        raise ValueError("expected an absolute path, or off")
    return Path(text)


def _worker_count(text: str) -> int:
    value = int(number(int, text, "a whole number from 0 to 64"))
    if not 0 <= value <= 64:
        raise ValueError("expected a whole number from 0 to 64")
    return value
