"""Control's settings, read once from the environment (docs/reference/settings.md). Secrets are kept out of `repr`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policy.endpoints import PROVIDER_NAMES, ProviderNames, provider_names, region_names
from policy.hosts import EgressRules, platform_hosts
from policy.identity.login_settings import LoginSettings, claim_name, issuer_url, role_pairs
from policy.sealing import parse_keys
from runtime.environment import Environment, SettingsError, access_token, http_url, number, redis_url, switch
from runtime.log_schema import DEFAULT_LEVEL, parse_level
from runtime.metrics_export.settings import MetricExportSettings, metric_export_settings
from runtime.secret_keys import secret_keys
from runtime.tracing.settings import TraceSettings, trace_settings

DEFAULT_DATABASE_URL = "sqlite+aiosqlite:///.tollgate/control.db"
DEFAULT_PORT = 8081


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `control.app.build`. `redis_url` None: no hints, and each process throttles by itself."""

    database_url: str = field(repr=False)
    internal_token: str = field(repr=False)
    secret_keys: Sequence[bytes] = field(repr=False)
    metrics_token: str = field(default="", repr=False)
    """The token that shows `/metrics` of all workspaces. Empty: nobody may read the series without a workspace."""
    redis_url: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    event_holdback_s: float = 60.0
    event_retention_days: float = 92.0
    usage_retention_days: float = 400.0
    audit_retention_days: float = 400.0
    request_retention_days: float = 7.0
    request_max_rows: float = 1_000_000
    """Most rows of the list of requests, of all workspaces together."""
    deployment_log_max_lines: float = 100_000
    deployment_log_max_bytes: float = 67_108_864
    deployment_log_retention_days: float = 7.0
    webhook_poll_interval_s: float = 0.5
    webhook_timeout_s: float = 15.0
    webhook_retry_for_s: float = 3 * 86_400.0
    egress_allow: str = ""
    platform_hosts: str = ""
    model_api_base_url: str = ""
    provider_names: ProviderNames = field(default_factory=lambda: PROVIDER_NAMES)
    """All names that targets may have for their providers, with the operator's own aliases."""
    regions: tuple[str, ...] = ()
    """The regions that endpoints may have besides UNRESTRICTED."""
    egress_ca_file: str | None = None
    proxy_url: str | None = None
    """The URL at which the console's calls reach the proxy; None: it makes none."""
    portal_cost: bool = False
    portal_keys: bool = False
    """True: usage pages show customers what their calls cost, their spend limits and their balance."""
    login: LoginSettings | None = None
    """The identity provider of the console; None: people log in with keys alone."""
    checkpoint_store: str | None = None
    """The place from which the files of training checkpoints are read; None: nowhere."""
    tombstone_retention_s: float = 7 * 86_400.0
    drain_timeout_s: float = 25.0
    log_level: str = DEFAULT_LEVEL
    traces: TraceSettings | None = None
    """None: off, and no tracer or exporter is imported."""
    metric_export: MetricExportSettings | None = None
    """None: metrics are for Prometheus alone, and no exporter is imported."""

    @property
    def sums_retention_days(self) -> float:
        """The days for which hourly sums are kept: never shorter than the events that they add up."""
        return max(self.usage_retention_days, self.event_retention_days)

    @property
    def egress_rules(self) -> EgressRules:
        """Rules for upstream URLs. The platform's own hosts are those of the setting and that of the model API.

        See docs/reference/management-api.md#egress-rules.
        """
        return EgressRules.parse(self.egress_allow, platform_hosts(self.platform_hosts, self.model_api_base_url))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings. Raises `SettingsError` at the first one that is missing or invalid."""
        read = Environment(environ)
        read.parsed("TOLLGATE_EGRESS_ALLOW", EgressRules.parse, "")
        fields: dict[str, Any] = {field: read.text(name) for name, field in _TEXTS.items() if read.has(name)}
        fields |= {field: read.parsed(name, parse) for name, (field, parse) in _PARSED.items() if read.has(name)}
        fields |= {field: _number(read, name, least) for name, (field, least) in _NUMBERS.items() if read.has(name)}
        fields.setdefault("database_url", DEFAULT_DATABASE_URL)
        return cls(
            internal_token=read.parsed("TOLLGATE_INTERNAL_TOKEN", access_token),
            secret_keys=control_keys(read),
            drain_timeout_s=read.seconds("TOLLGATE_DRAIN_TIMEOUT_S", 25),
            traces=trace_settings(read, "TOLLGATE_TRACES"),
            metric_export=metric_export_settings(read, "TOLLGATE_METRICS"),
            login=_login(read),
            **fields,
        )


def control_keys(read: Environment) -> Sequence[bytes]:
    """The secret keys that this environment names. Raises `SettingsError`."""
    return secret_keys(read, "TOLLGATE_SECRET_KEY", "TOLLGATE_SECRET_KEY_FILE", parse_keys)


def _login(read: Environment) -> LoginSettings | None:
    """The settings of the console's login by OpenID Connect: all of them, or none."""
    if not any(map(read.has, _LOGIN)):
        return None
    missing = [name for name in _LOGIN if not read.has(name) and name != "TOLLGATE_OIDC_CLIENT_SECRET"]
    if missing:
        raise SettingsError(f"{missing[0]} is not set, and the other settings TOLLGATE_OIDC_* need it")
    return LoginSettings(
        issuer=read.parsed("TOLLGATE_OIDC_ISSUER", issuer_url),
        client_id=read.text("TOLLGATE_OIDC_CLIENT_ID"),
        role_claim=read.parsed("TOLLGATE_OIDC_ROLE_CLAIM", claim_name),
        pairs=read.parsed("TOLLGATE_OIDC_ROLES", role_pairs),
        client_secret=read.text("TOLLGATE_OIDC_CLIENT_SECRET") if read.has("TOLLGATE_OIDC_CLIENT_SECRET") else "",
    )


def _port(text: str) -> int:
    value = int(number(int, text, "a port, 0 to 65535"))
    if not 0 <= value <= 65_535:
        raise ValueError("expected a port, 0 to 65535")
    return value


_LOGIN = (
    *("TOLLGATE_OIDC_ISSUER", "TOLLGATE_OIDC_CLIENT_ID", "TOLLGATE_OIDC_CLIENT_SECRET"),
    *("TOLLGATE_OIDC_ROLE_CLAIM", "TOLLGATE_OIDC_ROLES"),
)
_TEXTS = {
    "TOLLGATE_DATABASE_URL": "database_url",
    "TOLLGATE_CONTROL_HOST": "host",
    "TOLLGATE_EGRESS_ALLOW": "egress_allow",
    "TOLLGATE_PLATFORM_HOSTS": "platform_hosts",
    "TOLLGATE_EGRESS_CA_FILE": "egress_ca_file",
    "TOLLGATE_CHECKPOINT_STORE": "checkpoint_store",
}
_PARSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "TOLLGATE_REDIS_URL": ("redis_url", redis_url),
    "TOLLGATE_METRICS_TOKEN": ("metrics_token", access_token),
    "TOLLGATE_CONTROL_PORT": ("port", _port),
    "TOLLGATE_MODEL_API_BASE_URL": ("model_api_base_url", http_url),
    "TOLLGATE_PROXY_URL": ("proxy_url", http_url),
    "TOLLGATE_LOG_LEVEL": ("log_level", parse_level),
    "TOLLGATE_PORTAL_COST": ("portal_cost", switch),
    "TOLLGATE_PORTAL_KEYS": ("portal_keys", switch),
    "TOLLGATE_PROVIDER_ALIASES": ("provider_names", provider_names),
    "TOLLGATE_REGIONS": ("regions", region_names),
}
_NUMBERS = {
    "TOLLGATE_EVENT_HOLDBACK_S": ("event_holdback_s", 0),
    "TOLLGATE_EVENT_RETENTION_DAYS": ("event_retention_days", 1),  # 0 looks like "for ever" but would delete everything
    "TOLLGATE_USAGE_RETENTION_DAYS": ("usage_retention_days", 1),
    "TOLLGATE_AUDIT_RETENTION_DAYS": ("audit_retention_days", 1),
    "TOLLGATE_REQUEST_RETENTION_DAYS": ("request_retention_days", 0.01),
    "TOLLGATE_REQUEST_MAX_ROWS": ("request_max_rows", 1),
    "TOLLGATE_DEPLOYMENT_LOG_MAX_LINES": ("deployment_log_max_lines", 1),
    "TOLLGATE_DEPLOYMENT_LOG_MAX_BYTES": ("deployment_log_max_bytes", 1),
    "TOLLGATE_DEPLOYMENT_LOG_RETENTION_DAYS": ("deployment_log_retention_days", 0.01),
    "TOLLGATE_WEBHOOK_POLL_INTERVAL_S": ("webhook_poll_interval_s", 0.01),
    "TOLLGATE_WEBHOOK_TIMEOUT_S": ("webhook_timeout_s", 0.1),
    "TOLLGATE_WEBHOOK_RETRY_FOR_S": ("webhook_retry_for_s", 0),
    "TOLLGATE_TOMBSTONE_RETENTION_S": ("tombstone_retention_s", 0),
}
"""The field of each setting, and its minimum."""


def _number(read: Environment, name: str, least: float) -> float:
    try:
        value = float(read.text(name))
    except ValueError:
        value = -1.0
    if not least <= value < 1e9:
        raise SettingsError(f"{name} must be a number of at least {least}")
    return value
