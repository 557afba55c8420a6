"""Slug → target: the form of a slug, the table of providers, what the secret of a target may be.

See docs/reference/management-api.md#targets.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
SLUG_PATTERN = re.compile(rf"(?P<prefix>{_SEGMENT})/(?P<name>{_SEGMENT})")
PREFIX_PATTERN = re.compile(_SEGMENT)
_PROJECT_PATTERN = re.compile(r"[A-Za-z0-9.:_-]{1,128}")
_LOCATION_PATTERN = re.compile(r"[A-Za-z0-9-]{1,63}")
MAX_CREDENTIAL_BYTES = 8192
_REGION_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ALIAS_PATTERN = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
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
class Alias:
    """Another name of a provider, equal to it in requests. Answers have the name that was last written."""

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """The fields of a target that have another name beside this alias, and that name."""


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
    aliases: tuple[Alias, ...] = ()


CHAT_COMPLETIONS = "chat_completions"
MESSAGES = "messages"
RESPONSES = "responses"
PASS = "PASS"  # noqa: S105  (no password)
REFUSE = "REFUSE"
UNRESTRICTED = "UNRESTRICTED"
"""The region of endpoints that name none; it needs no setting."""
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
        title="Anthropic (Messages)",
        trace_name="anthropic",
        category=_THIRD_PARTY,
        dialects=(MESSAGES,),
        required=_VENDOR_FIELDS,
        base_url=BaseUrl("TOLLGATE_VENDOR_A_BASE_URL", "https://api.anthropic.com"),
        aliases=(Alias("ANTHROPIC"),),
    ),
    VENDOR_B: Provider(
        title="OpenAI (Chat Completions)",
        trace_name="openai",
        category=_THIRD_PARTY,
        dialects=_OPENAI,
        required=_VENDOR_FIELDS,
        base_url=BaseUrl("TOLLGATE_VENDOR_B_BASE_URL", "https://api.openai.com"),
        counts_tokens=False,
        aliases=(Alias("OPENAI"),),
    ),
    VENDOR_C: Provider(
        title="Google Vertex AI (cloud)",
        trace_name="gcp.vertex_ai",
        category=_THIRD_PARTY,
        dialects=(CHAT_COMPLETIONS,),
        required=_VENDOR_FIELDS | {"vendor_c_config"},
        base_url=BaseUrl("TOLLGATE_VENDOR_C_BASE_URL", "https://{location}-aiplatform.googleapis.com"),
        counts_tokens=False,
        aliases=(Alias("VERTEX", {"vendor_c_config": "vertex_config"}),),
    ),
    COMPATIBLE: Provider(
        title="a server that speaks Chat Completions",
        trace_name="vendor_b_compatible",
        category=_CUSTOM,
        dialects=_OPENAI,
        required=_VENDOR_FIELDS | {"base_url"},
        may_lack_paths=True,
        aliases=(Alias("OPENAI_COMPATIBLE"),),
    ),
}
"""The one table of providers: API, command line, policy files, console, doctor, proxy and traces read it.

An installation may meet a provider that only a newer control plane knows, so a look-up may find none.
"""
_REFUSED = {"XAI": "XAI is no provider of its own here: use OPENAI_COMPATIBLE with its base_url"}
"""Names that clients of other gateways send, and what to write instead."""


@dataclass(frozen=True, slots=True)
class ProviderName:
    """A name that requests may have for a provider: its own or an alias. `fields`: see `Alias.fields`."""

    name: str
    provider: str
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The provider's title; of an alias, with the alias."""
        title = PROVIDERS[self.provider].title
        return title if self.name == self.provider else f"{title} as {self.name}"

    @property
    def required(self) -> frozenset[str]:
        """The fields that a target with this name must have."""
        return frozenset(self.fields.get(name, name) for name in PROVIDERS[self.provider].required)

    @property
    def optional(self) -> frozenset[str]:
        """The fields that a target with this name may have, besides those that every target may have."""
        return frozenset(self.fields.get(name, name) for name in PROVIDERS[self.provider].optional)

    def written(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target, which has its provider's own names, with this one and the fields' names beside it."""
        return {self.fields.get(name, name): value for name, value in target.items()} | {"provider": self.name}

    def own(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target, as it was written with this name, with the provider's own names. Undoes `written`."""
        own_names = {alias: name for name, alias in self.fields.items()}
        others = FIELD_ALIASES.keys() - own_names.keys()
        fields = {name: value for name, value in target.items() if name not in {*self.fields, *others}}
        return {own_names.get(name, name): value for name, value in fields.items()} | {"provider": self.provider}


ProviderNames = Mapping[str, ProviderName]
PROVIDER_NAMES: ProviderNames = {
    one.name: one
    for provider, rules in PROVIDERS.items()
    for one in (ProviderName(provider, provider), *(ProviderName(a.name, provider, a.fields) for a in rules.aliases))
}
"""Every name of a provider that needs no setting: each provider, and its aliases behind it."""
FIELD_ALIASES: Mapping[str, str] = {
    alias: name for one in PROVIDER_NAMES.values() for name, alias in one.fields.items()
}
"""The field of `Target` that each other name of a field stands for."""


def provider_names(text: str) -> ProviderNames:
    """All names, with the aliases of `ALIAS=PROVIDER,…` for the platform's own providers.

    ValueError for text in another form, another provider, and an alias that is taken. It never quotes the text.
    """
    names = dict(PROVIDER_NAMES)
    hosted = [name for name, rules in PROVIDERS.items() if rules.category == _HOSTED]
    for place, part in enumerate(filter(str.strip, text.split(",")), 1):
        alias, separator, provider = (side.strip() for side in part.partition("="))
        if not separator or ALIAS_PATTERN.fullmatch(alias) is None:
            raise ValueError(f"entry {place}: expected ALIAS=PROVIDER, the alias of at most 64 of A-Z, 0-9 and _")
        if provider not in hosted:
            raise ValueError(f"entry {place}: the provider must be {' or '.join(hosted)}")
        if alias in names or alias in _REFUSED:
            raise ValueError(f"entry {place}: the alias is a provider, or an alias already; choose another name")
        names[alias] = ProviderName(alias, provider)
    return names


def as_written(target: Mapping[str, Any], alias: str | None) -> dict[str, Any]:
    """Return the target of `target_to_wire` as it was last written. `alias`: the provider's name then, or None."""
    if alias is None:
        return dict(target)
    # An alias of a setting that was removed since is still what was written.
    return PROVIDER_NAMES.get(alias, ProviderName(alias, target["provider"])).written(target)


def own_provider(name: str) -> str:
    """Return the provider that `name` stands for; other names as they are."""
    return PROVIDER_NAMES[name].provider if name in PROVIDER_NAMES else name


def unknown_provider(name: object, names: Collection[str] = PROVIDER_NAMES) -> str:
    """Return what is wrong with a provider that is none of these names."""
    return _REFUSED.get(str(name), f"must be one of {', '.join(names)}")


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


def region_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names of regions. ValueError for names in another form, which it does not quote."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not all(map(_REGION_PATTERN.fullmatch, names)):
        raise ValueError("expected comma-separated names of regions, each [A-Za-z0-9][A-Za-z0-9._-]{0,63}")
    return names


def check_region(region: str, regions: Collection[str]) -> None:
    """Raise unless a new endpoint may have the region. `regions`: those that the operator's setting names."""
    if region != UNRESTRICTED and region not in regions:
        names = ", ".join((UNRESTRICTED, *regions))
        raise EndpointRuleError("region", f"region must be one of {names}; the setting TOLLGATE_REGIONS names others")


def check_target(target: Target) -> None:
    """Raise unless `target` has its provider's required fields and none that the provider does not list.

    Does not check the base URL (`policy.hosts` does), nor whether the secret and the model exist.
    """
    rules = PROVIDERS.get(target.provider)
    if rules is None:
        raise EndpointRuleError("provider", f"provider {unknown_provider(target.provider)}")
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
