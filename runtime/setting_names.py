"""The names of all settings (`TOLLGATE_*` environment variables) of both planes and the commands.

A name that is not listed is probably misspelt; `warnings_of` says so instead of ignoring it silently.
`docs/reference/settings.md` explains each setting. A test compares this list with the settings that the code reads.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

PREFIX = "TOLLGATE_"
NAMES = frozenset(
    {
        "TOLLGATE_API_KEY",
        "TOLLGATE_ASSUMED_OUTPUT_TOKENS",
        "TOLLGATE_ASYNC",
        "TOLLGATE_ASYNC_MAX_ANSWER_BYTES",
        "TOLLGATE_ASYNC_MAX_BODY_BYTES",
        "TOLLGATE_ASYNC_MAX_QUEUED_BYTES",
        "TOLLGATE_ASYNC_MAX_RUNNING",
        "TOLLGATE_ASYNC_REDIS_URL",
        "TOLLGATE_ASYNC_TIMEOUT_S",
        "TOLLGATE_ASYNC_WORKERS",
        "TOLLGATE_AUDIT_RETENTION_DAYS",
        "TOLLGATE_CHECKPOINT_MAX_SIZE",
        "TOLLGATE_CHECKPOINT_STORE",
        "TOLLGATE_CONNECT_TIMEOUT_S",
        "TOLLGATE_CONTROL_HOST",
        "TOLLGATE_CONTROL_PORT",
        "TOLLGATE_CONTROL_URL",
        "TOLLGATE_CORS_ORIGINS",
        "TOLLGATE_DATA",
        "TOLLGATE_DATABASE_URL",
        "TOLLGATE_DEPLOYMENT_LOG_MAX_BYTES",
        "TOLLGATE_DEPLOYMENT_LOG_MAX_LINES",
        "TOLLGATE_DEPLOYMENT_LOG_RETENTION_DAYS",
        "TOLLGATE_DRAIN_TIMEOUT_S",
        "TOLLGATE_EGRESS_ALLOW",
        "TOLLGATE_EGRESS_CA_FILE",
        "TOLLGATE_EVENT_HOLDBACK_S",
        "TOLLGATE_EVENT_RETENTION_DAYS",
        "TOLLGATE_FORWARD_KEY",
        "TOLLGATE_INTERNAL_TOKEN",
        "TOLLGATE_JOURNAL_DIR",
        "TOLLGATE_JOURNAL_MEMORY_DIR",
        "TOLLGATE_LIMITS_ON_REDIS_LOSS",
        "TOLLGATE_LOG_LEVEL",
        "TOLLGATE_MAX_BODY_BYTES",
        "TOLLGATE_MAX_HELD_BYTES",
        "TOLLGATE_MAX_IN_FLIGHT",
        "TOLLGATE_MAX_PARKED",
        "TOLLGATE_MAX_REPORTED_TOKENS",
        "TOLLGATE_METRICS",
        "TOLLGATE_METRICS_MAX_ENTITIES",
        "TOLLGATE_METRICS_MAX_SLUGS",
        "TOLLGATE_METRICS_TOKEN",
        "TOLLGATE_MODEL_API_BASE_URL",
        "TOLLGATE_MODEL_API_TIERS",
        "TOLLGATE_MODEL_HOST_SUFFIX",
        "TOLLGATE_OIDC_CLIENT_ID",
        "TOLLGATE_OIDC_CLIENT_SECRET",
        "TOLLGATE_OIDC_ISSUER",
        "TOLLGATE_OIDC_ROLES",
        "TOLLGATE_OIDC_ROLE_CLAIM",
        "TOLLGATE_PARKING_TIMEOUT_S",
        "TOLLGATE_PLATFORM_HOSTS",
        "TOLLGATE_PORTAL_COST",
        "TOLLGATE_PORTAL_KEYS",
        "TOLLGATE_PROVIDER_ALIASES",
        "TOLLGATE_PROXY_URL",
        "TOLLGATE_RAY_ADDRESS",
        "TOLLGATE_RAY_IMAGES",
        "TOLLGATE_READY_GRACE_S",
        "TOLLGATE_REDIS_SERVER",
        "TOLLGATE_REDIS_TIMEOUT_S",
        "TOLLGATE_REDIS_URL",
        "TOLLGATE_REFRESH_INTERVAL_S",
        "TOLLGATE_REGIONS",
        "TOLLGATE_REPLICA_PATH",
        "TOLLGATE_REQUEST_MAX_PER_S",
        "TOLLGATE_REQUEST_MAX_ROWS",
        "TOLLGATE_REQUEST_RETENTION_DAYS",
        "TOLLGATE_REQUEST_TIMEOUT_S",
        "TOLLGATE_SECRET_KEY",
        "TOLLGATE_SECRET_KEY_FILE",
        "TOLLGATE_SHIPPED_MAX_BYTES",
        "TOLLGATE_SHIPPED_RETENTION_S",
        "TOLLGATE_STREAM_IDLE_TIMEOUT_S",
        "TOLLGATE_TOMBSTONE_RETENTION_S",
        "TOLLGATE_TRACES",
        "TOLLGATE_TRAINING_BACKEND",
        "TOLLGATE_TRAINING_CAPACITY",
        "TOLLGATE_TRAINING_DIR",
        "TOLLGATE_TRAINING_STOP_GRACE_S",
        "TOLLGATE_TRAINING_USER",
        "TOLLGATE_TRUSTED_PROXIES",
        "TOLLGATE_URL",
        "TOLLGATE_USAGE_RETENTION_DAYS",
        "TOLLGATE_VENDOR_A_BASE_URL",
        "TOLLGATE_VENDOR_B_BASE_URL",
        "TOLLGATE_VENDOR_C_BASE_URL",
        "TOLLGATE_WEBHOOK_POLL_INTERVAL_S",
        "TOLLGATE_WEBHOOK_RETRY_FOR_S",
        "TOLLGATE_WEBHOOK_TIMEOUT_S",
        "TOLLGATE_WEIGHTS_HUB_URL",
        "TOLLGATE_WEIGHTS_MAX_SIZE",
        "TOLLGATE_WEIGHTS_STORE_URL",
        "TOLLGATE_WORKSPACE",
        "TOLLGATE_WORKSPACE_SHARE",
    }
)
SETTINGS_OF_COMMANDS = frozenset(
    {"TOLLGATE_API_KEY", "TOLLGATE_DATA", "TOLLGATE_FORWARD_KEY", "TOLLGATE_URL", "TOLLGATE_WORKSPACE"}
)
"""The settings that no part of the product reads."""
_SECRET_ENDS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def holds_secret(name: str, value: str) -> bool:
    """Return whether a setting's value may hold a secret: by its name, or as a URL with a user or parameters."""
    if name.endswith(_SECRET_ENDS):
        return True
    is_url = "://" in value
    return any(mark in value for mark in "@?") if is_url else name.endswith("_URL")


def is_unknown(name: str) -> bool:
    """Return whether a name has the TOLLGATE_ prefix but is not a setting."""
    return name.startswith(PREFIX) and name not in NAMES


def warnings_of(environment: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each unknown TOLLGATE_ name, with the setting that was probably meant."""
    for name in sorted(environment):
        if is_unknown(name):
            guess = get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in NAMES], n=1)
            hint = f"Did you mean {PREFIX}{guess[0]}?" if guess else "See docs/reference/settings.md."
            yield f"{name} is not a setting and is ignored. {hint}"
