"""Control's settings, read once from the environment (docs/reference/settings.md); flags of the commands override them.

Secrets in here are kept out of `repr`. Nothing else in control reads the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from policy.hosts import EgressRules
from policy.sealing import parse_keys
from runtime.log_schema import DEFAULT_LEVEL, parse_level

DEFAULT_DATABASE_URL = "sqlite+aiosqlite:///.tollgate/control.db"
DEFAULT_PORT = 8081


class SettingsError(ValueError):
    """A setting in the environment is missing or wrong; the message names it, never its value."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that `control.app.build` needs to know. `redis_url` None: no hints, throttling in this process alone."""

    database_url: str = field(repr=False)
    internal_token: str = field(repr=False)
    secret_keys: tuple[bytes, ...] = field(repr=False)
    redis_url: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    event_holdback_s: float = 60.0
    event_retention_days: float = 92.0
    webhook_poll_interval_s: float = 0.5
    webhook_timeout_s: float = 15.0
    webhook_retry_for_s: float = 3 * 86_400.0
    egress_allow: str = ""
    platform_hosts: str = ""
    model_api_base_url: str = ""
    egress_ca_file: str | None = None
    tombstone_retention_s: float = 7 * 86_400.0
    drain_timeout_s: float = 25.0
    log_level: str = DEFAULT_LEVEL

    @property
    def egress_rules(self) -> EgressRules:
        """Where upstream URLs may lead. The platform's own hosts: those named, and its model API's.

        See docs/reference/management-api.md#egress-rules.
        """
        hosts = [host.strip() for host in self.platform_hosts.split(",") if host.strip()]
        model_api = urlsplit(self.model_api_base_url).hostname
        return EgressRules.parse(self.egress_allow, [*hosts, *([model_api] if model_api else [])])

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], **flags: Any) -> "Settings":
        """The settings of this environment; `flags` that are not None win."""
        try:
            keys = parse_keys(environ.get("TOLLGATE_SECRET_KEY", ""))
        except ValueError as error:
            raise SettingsError(str(error)) from None
        found: dict[str, Any] = {to: environ[name] for name, to in _TEXTS.items() if environ.get(name)}
        found |= {to: _number(name, environ[name]) for name, to in _NUMBERS.items() if environ.get(name)}
        if environ.get("TOLLGATE_LOG_LEVEL"):
            found["log_level"] = _log_level(environ["TOLLGATE_LOG_LEVEL"])
        found |= {name: value for name, value in flags.items() if value is not None}
        found.setdefault("database_url", DEFAULT_DATABASE_URL)
        found["port"] = int(found.get("port", DEFAULT_PORT))
        return cls(internal_token=_token(environ), secret_keys=keys, **found)


_TEXTS = {
    "TOLLGATE_DATABASE_URL": "database_url",
    "TOLLGATE_REDIS_URL": "redis_url",
    "TOLLGATE_CONTROL_HOST": "host",
    "TOLLGATE_EGRESS_ALLOW": "egress_allow",
    "TOLLGATE_PLATFORM_HOSTS": "platform_hosts",
    "TOLLGATE_MODEL_API_BASE_URL": "model_api_base_url",
    "TOLLGATE_EGRESS_CA_FILE": "egress_ca_file",
}
_NUMBERS = {
    "TOLLGATE_CONTROL_PORT": "port",
    "TOLLGATE_EVENT_HOLDBACK_S": "event_holdback_s",
    "TOLLGATE_EVENT_RETENTION_DAYS": "event_retention_days",
    "TOLLGATE_WEBHOOK_POLL_INTERVAL_S": "webhook_poll_interval_s",
    "TOLLGATE_WEBHOOK_TIMEOUT_S": "webhook_timeout_s",
    "TOLLGATE_WEBHOOK_RETRY_FOR_S": "webhook_retry_for_s",
    "TOLLGATE_TOMBSTONE_RETENTION_S": "tombstone_retention_s",
    "TOLLGATE_DRAIN_TIMEOUT_S": "drain_timeout_s",
}


_LEAST = {
    "TOLLGATE_EVENT_RETENTION_DAYS": 1,  # none would be taken for "for ever", and is the opposite
    "TOLLGATE_WEBHOOK_POLL_INTERVAL_S": 0.01,
    "TOLLGATE_WEBHOOK_TIMEOUT_S": 0.1,
}


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get("TOLLGATE_INTERNAL_TOKEN", "").strip()
    if len(token) < 16:
        raise SettingsError("TOLLGATE_INTERNAL_TOKEN must be set, to at least 16 characters")
    return token


def _log_level(raw: str) -> str:
    try:
        return parse_level(raw)
    except ValueError as error:
        raise SettingsError(f"TOLLGATE_LOG_LEVEL: {error}") from None


def _number(name: str, raw: str) -> float:
    least = _LEAST.get(name, 0)
    try:
        value = float(raw)
    except ValueError:
        value = -1.0
    if not least <= value < 1e9:
        raise SettingsError(f"{name} must be a number of at least {least}")
    return value
