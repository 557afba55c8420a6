"""Slug → target: the form of a slug, the table of providers, what the secret of a target may be.

See docs/reference/management-api.md#targets.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
SLUG_PATTERN = re.compile(rf"(?P<prefix>{_SEGMENT})/(?P<name>{_SEGMENT})")
PREFIX_PATTERN = re.compile(_SEGMENT)
_PROJECT_PATTERN = re.compile(r"[A-Za-z0-9.:_-]{1,128}")
_LOCATION_PATTERN = re.compile(r"[A-Za-z0-9-]{1,63}")
MAX_CREDENTIAL_BYTES = 8192
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class EndpointRuleError(ValueError):
    """A slug or target breaks a rule; `field` is the path of the field in the request body."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class UnusableCredentialError(Exception):
    """A secret cannot be sent to an upstream. The message quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class VendorCConfig:
    """The project and location of a VENDOR_C target."""

    project_id: str
    location: str


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a slug. `provider` decides which of the other fields are set."""

    provider: str
    model_id: str | None = None
    environment_name: str | None = None
    secret_id: str | None = None
    target_model: str | None = None
    base_url: str | None = None
    vendor_c_config: VendorCConfig | None = None
    upstream_state: str | None = None
    dialects: tuple[str, ...] | None = None
    """The dialects that the server speaks, the preferred one first; None: the provider's, or found out by asking."""
    price_options: str | None = None

    @property
    def passes_upstream_state(self) -> bool:
        """Return whether callers may name state in the vendor's account, which all groups share. False by default."""
        return self.upstream_state == PASS

    @property
    def passes_price_options(self) -> bool:
        """Return whether callers may ask for what the vendor bills beside tokens. True by default."""
        return self.price_options is None or self.price_options == PASS


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """The address of a provider's servers: the setting, and its default. None: the operator must set it."""

    setting: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Provider:
    """Properties of a provider. Its name is its key in `PROVIDERS`."""

    title: str
    """The name that people read, as in the console."""
    trace_name: str
    """The `gen_ai.provider.name` of a span; OpenTelemetry's own name where it has one."""
    category: str
    dialects: tuple[str, ...]
    """The dialects of its servers, the best first."""
    required: frozenset[str]
    """The fields that a target must have."""
    optional: frozenset[str] = frozenset()
    base_url: BaseUrl | None = None
    """None: each target names its server, or has replicas."""
    may_lack_paths: bool = False
    """True if only the server can tell which dialects it speaks: it is asked in the caller's own first."""
    counts_tokens: bool = True
    """True if its servers may have the path that counts tokens; otherwise they are not asked."""


CHAT_COMPLETIONS = "chat_completions"
MESSAGES = "messages"
RESPONSES = "responses"
PASS = "PASS"  # noqa: S105  (no password)
REFUSE = "REFUSE"
ALLOWED_VALUES: Mapping[str, tuple[str, ...]] = {
    "upstream_state": (REFUSE, PASS),
    "dialects": tuple(dialect.upper() for dialect in (CHAT_COMPLETIONS, MESSAGES, RESPONSES)),
    "price_options": (PASS, REFUSE),
}
"""The optional fields of every target, and their values, the default first. `dialects` is a list, without a default."""
_OPENAI = (CHAT_COMPLETIONS, RESPONSES)
_HOSTED = "platform-hosted"
_THIRD_PARTY = "third party"
_CUSTOM = "custom"
_VENDOR_FIELDS = frozenset({"secret_id", "target_model"})

PLATFORM = "PLATFORM"
MODEL_API = "PLATFORM_MODEL_API"
VENDOR_A = "VENDOR_A"
VENDOR_B = "VENDOR_B"
VENDOR_C = "VENDOR_C"
COMPATIBLE = "VENDOR_B_COMPATIBLE"
PROVIDERS: Mapping[str, Provider] = {
    PLATFORM: Provider(
        title="a platform model",
        trace_name="platform",
        category=_HOSTED,
        dialects=_OPENAI,
        required=frozenset({"model_id"}),
        optional=frozenset({"environment_name", "target_model"}),
        may_lack_paths=True,
    ),
    MODEL_API: Provider(
        title="the shared model API",
        trace_name="platform_model_api",
        category=_HOSTED,
        dialects=_OPENAI,
        required=_VENDOR_FIELDS,
        base_url=BaseUrl("TOLLGATE_MODEL_API_BASE_URL"),
        may_lack_paths=True,
    ),
    VENDOR_A: Provider(
        title="vendor A (Messages)",
        trace_name="anthropic",
        category=_THIRD_PARTY,
        dialects=(MESSAGES,),
        required=_VENDOR_FIELDS,
        base_url=BaseUrl("TOLLGATE_VENDOR_A_BASE_URL", "https://api.anthropic.com"),
    ),
    VENDOR_B: Provider(
        title="vendor B (Chat Completions)",
        trace_name="openai",
        category=_THIRD_PARTY,
        dialects=_OPENAI,
        required=_VENDOR_FIELDS,
        base_url=BaseUrl("TOLLGATE_VENDOR_B_BASE_URL", "https://api.openai.com"),
        counts_tokens=False,
    ),
    VENDOR_C: Provider(
        title="vendor C (cloud)",
        trace_name="gcp.vertex_ai",
        category=_THIRD_PARTY,
        dialects=(CHAT_COMPLETIONS,),
        required=_VENDOR_FIELDS | {"vendor_c_config"},
        base_url=BaseUrl("TOLLGATE_VENDOR_C_BASE_URL", "https://{location}-aiplatform.googleapis.com"),
        counts_tokens=False,
    ),
    COMPATIBLE: Provider(
        title="a server that speaks Chat Completions",
        trace_name="vendor_b_compatible",
        category=_CUSTOM,
        dialects=_OPENAI,
        required=_VENDOR_FIELDS | {"base_url"},
        may_lack_paths=True,
    ),
}
"""The one table of providers: API, command line, policy files, console, doctor, proxy and traces read it.

An installation may meet a provider that only a newer control plane knows, so a look-up may find none.
"""


def is_platform_hosted(provider: str) -> bool:
    """Return whether the platform hosts the provider's servers: it decides what their 500 means.

    See docs/reference/inference.md#upstream-errors.
    """
    rules = PROVIDERS.get(provider)
    return rules is not None and rules.category == _HOSTED


def check_slug(slug: str, owned_prefixes: Collection[str]) -> None:
    """Raise unless `slug` is `{org_prefix}/{name}` under a prefix that the workspace owns."""
    match = SLUG_PATTERN.fullmatch(slug)
    if match is None:
        raise EndpointRuleError("slug", "a slug is {org_prefix}/{name}, each [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    if match["prefix"] not in owned_prefixes:
        owned = ", ".join(sorted(owned_prefixes)) or "none"
        raise EndpointRuleError("slug", f"prefix {match['prefix']!r} is not one this workspace owns ({owned})")


def check_target(target: Target) -> None:
    """Raise unless `target` has its provider's required fields and none that the provider does not list.

    Does not check the base URL (`policy.hosts` does), nor whether the secret and the model exist.
    """
    rules = PROVIDERS.get(target.provider)
    if rules is None:
        raise EndpointRuleError("provider", f"provider must be one of {', '.join(PROVIDERS)}")
    names = {f.name for f in fields(target) if f.name != "provider" and getattr(target, f.name) is not None}
    for name in sorted(rules.required - names):
        raise EndpointRuleError(name, f"{target.provider} needs {name}")
    for name in sorted(names - rules.required - rules.optional - ALLOWED_VALUES.keys()):
        raise EndpointRuleError(name, f"{target.provider} has no field {name}")
    for name in sorted(names):
        if isinstance(value := getattr(target, name), str) and not value.strip():
            raise EndpointRuleError(name, f"{name} must not be empty")
    _check_values(target)
    if target.vendor_c_config is not None:
        _check_vendor_c_config(target.vendor_c_config)


def check_credential(secret: str) -> None:
    """Raise `UnusableCredentialError` unless the secret of a target can be the value of a header field."""
    if _CONTROL_CHARACTER.search(secret) is not None:
        raise UnusableCredentialError("its value holds a line end or another control character")
    if len(secret.encode("utf-8", "surrogateescape")) > MAX_CREDENTIAL_BYTES:
        raise UnusableCredentialError(f"its value has more than {MAX_CREDENTIAL_BYTES} bytes")


def _check_values(target: Target) -> None:
    """Raise unless the fields that every target may have hold values that they may hold."""
    for name, allowed in ALLOWED_VALUES.items():
        value = getattr(target, name)
        values = value if isinstance(value, tuple) else (value,)
        if value is not None and not set(values) <= set(allowed):
            raise EndpointRuleError(name, f"{name} must be of {', '.join(allowed)}")
        if value is not None and len(set(values)) != max(1, len(values)):
            raise EndpointRuleError(name, f"{name} must name at least one value, and each once")


def _check_vendor_c_config(config: VendorCConfig) -> None:
    """Refuse characters that could redirect the URL of which both fields become part; the location is in its host."""
    if not _PROJECT_PATTERN.fullmatch(config.project_id):
        raise EndpointRuleError("vendor_c_config.project_id", "a project id is 1 to 128 of [A-Za-z0-9.:_-]")
    if not _LOCATION_PATTERN.fullmatch(config.location):
        raise EndpointRuleError("vendor_c_config.location", "a location is 1 to 63 of [A-Za-z0-9-]")
