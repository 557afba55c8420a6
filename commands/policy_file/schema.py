"""The JSON Schema of policy files (draft 2020-12): what editors check and what `document.py` checks are this value."""

import re
from collections.abc import Sequence
from typing import Any

from policy.billing import EVENT_TYPE
from policy.endpoints import ALIAS_PATTERN, ALLOWED_VALUES, FIELD_ALIASES, PROVIDER_NAMES, SLUG_PATTERN
from policy.limits.alerts import LIMIT_ALERT, MAX_PERCENTS, WHOLE
from policy.limits.groups import MAX_MODELS, Enforcement
from policy.limits.kinds import RATE_UNITS, USAGE_TYPES, USAGE_UNITS, LimitType, Unit
from policy.limits.limit import MAX_RATE_LIMITS, MAX_THRESHOLD, MAX_USAGE_LIMITS, MIN_THRESHOLD
from policy.price_wire import AMOUNT_MEMBERS, COUNT_MEMBERS, LONG_AMOUNTS, MAX_MODEL_TOKENS, MULTIPLIER_PATTERN
from policy.prices import AMOUNT_PATTERN, CURRENCY_PATTERN, DATE_PATTERN
from policy.spend.limits import MAX_SPEND_LIMITS, SpendEnforcement

VERSION = 1
_NO_NUL = r"^[^\u0000]*$"
_LOCATION = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
_SLUG = f"^{re.sub('[?]P<[a-z]+>', '', SLUG_PATTERN.pattern)}$"

Schema = dict[str, Any]


def _text(most: int, description: str, pattern: str = _NO_NUL) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": most, "pattern": pattern, "description": description}


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


def _list(items: str, description: str, most: int | None = None) -> Schema:
    bound = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": {"$ref": f"#/$defs/{items}"}, "description": description, **bound}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string", "maxLength": 257}, "minItems": 1, "description": description}


def _limit(types: Sequence[LimitType], units: Sequence[Unit]) -> Schema:
    return _object(
        ("type", "unit", "threshold"),
        type={"enum": [type.value for type in types]},
        unit={"enum": [unit.value for unit in units]},
        threshold={"type": "integer", "minimum": MIN_THRESHOLD, "maximum": MAX_THRESHOLD},
    )


_NAME_OF_SECRET = r"^[A-Za-z0-9][A-Za-z0-9 ._@:-]{0,254}$"  # noqa: S105 (a pattern, no secret)
_FIELDS: dict[str, Schema] = {
    "model": _text(255, "A platform model, by its name or id."),
    "environment_name": _text(128, "An environment of the model.", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"),
    "secret": _text(255, "The name of the upstream credential.", _NAME_OF_SECRET),
    "target_model": _text(512, "The model's name at the provider."),
    "base_url": _text(2048, "The provider's HTTPS origin and path."),
    "vendor_c_config": _object(
        ("project_id", "location"), project_id=_text(128, "", _LOCATION), location=_text(128, "", _LOCATION)
    ),
}
"""The fields of a target. The API's `secret_id` and `model_id` are names here."""
_FIELDS |= {alias: _FIELDS[name] for alias, name in FIELD_ALIASES.items()}
_OPTIONS: dict[str, Schema] = {name: {"enum": list(values)} for name, values in ALLOWED_VALUES.items()}
_OPTIONS["dialects"] = {"type": "array", "items": _OPTIONS["dialects"], "minItems": 1, "uniqueItems": True}
"""The optional fields that every target has."""


def in_file(field: str) -> str:
    """The name in policy files of a field of the API's targets."""
    return {"secret_id": "secret", "model_id": "model"}.get(field, field)


def _target() -> Schema:
    per_provider: list[Schema] = []
    for provider, rules in PROVIDER_NAMES.items():
        allowed = {in_file(name) for name in rules.required | rules.optional}
        others = dict.fromkeys(sorted(_FIELDS.keys() - allowed), False)
        then = {"required": sorted(map(in_file, rules.required)), "properties": others}
        per_provider.append({"if": {"properties": {"provider": {"const": provider}}}, "then": then})
    # An installation may have aliases of its own; `plan` asks it for them.
    names = [{"enum": list(PROVIDER_NAMES)}, {"type": "string", "pattern": f"^{ALIAS_PATTERN.pattern}$"}]
    return _object(("provider",), provider={"anyOf": names}, **_FIELDS, **_OPTIONS) | {"allOf": per_provider}


def _group(**more: Schema) -> Schema:
    return _object(
        ("external_entity_id",),
        external_entity_id=_text(255, "The operator's own id of the group."),
        name=_text(255, "A name for people."),
        limit_enforcement={"enum": [mode.value for mode in Enforcement]},
        models=_list("model", "The slugs that the group may call.", MAX_MODELS),
        groups=_list("nested_group", "The groups below this one."),
        alert_percents={
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "maximum": WHOLE},
            "maxItems": MAX_PERCENTS,
            "uniqueItems": True,
            "description": "The percents of its limits and its balance at which webhooks are told.",
        },
        spend_limits=_list("spend_limit", "What its calls may cost, at most one per unit.", MAX_SPEND_LIMITS),
        keys=_list("key", "What is set on its keys. Those that are not listed stay as they are."),
        **more,
    )


_AMOUNT: Schema = {
    "type": ["string", "number"],
    "pattern": f"^{AMOUNT_PATTERN.pattern}$",
    "minimum": 0,
    "maximum": 10**12 - 1,
}
_CURRENCY = _text(3, "ISO 4217.", f"^{CURRENCY_PATTERN.pattern}$")
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_MODEL_TOKENS}


def _price() -> Schema:
    factor = {"type": ["string", "number"], "pattern": f"^{MULTIPLIER_PATTERN.pattern}$", "minimum": 0, "maximum": 1000}
    long_amounts = dict.fromkeys(LONG_AMOUNTS, _AMOUNT)
    needed = ("above_input_tokens", *(name for name in LONG_AMOUNTS if name != "cache_write_per_million"))
    return _object(
        ("slug", "valid_from", "currency", "input_per_million", "output_per_million"),
        slug=_text(257, "{org_prefix}/{name}", _SLUG),
        valid_from=_text(10, "The UTC date from which it holds.", f"^{DATE_PATTERN.pattern}$"),
        currency=_CURRENCY,
        **dict.fromkeys(AMOUNT_MEMBERS, _AMOUNT),
        **dict.fromkeys(COUNT_MEMBERS, _COUNT),
        long_context=_object(needed, above_input_tokens=_COUNT, **long_amounts),
        service_tiers={"type": "object", "additionalProperties": _object(("multiplier",), multiplier=factor)},
    )


SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Tollgate policy file",
    **_object(
        ("version", "name"),
        version={"const": VERSION},
        name=_text(255, "The owner of what this file creates.", r"^[A-Za-z0-9][A-Za-z0-9 ._@:/-]{0,254}$"),
        secrets=_list("secret", "Upstream credentials, by reference."),
        endpoints=_list("endpoint", "Slugs and their targets."),
        groups=_list("group", "Groups, their access and their limits."),
        webhooks=_list("webhook", "Receivers of billing events and of alerts on limits."),
        prices=_list("price", "What calls through a slug cost, from a date on."),
    ),
    "$defs": {
        "secret": _object(
            ("name", "value_from"),
            name=_text(255, "The secret's name.", _NAME_OF_SECRET),
            value_from=_object(
                ("env",),
                env=_text(255, "The environment variable with the value.", r"^(?!TOLLGATE_)[A-Za-z_][A-Za-z0-9_]*$"),
            ),
        ),
        "endpoint": _object(
            ("slug", "target"),
            slug=_text(257, "{org_prefix}/{name}", _SLUG),
            region=_text(64, "A region of TOLLGATE_REGIONS, or UNRESTRICTED; it cannot change."),
            target={"$ref": "#/$defs/target"},
        ),
        "target": _target(),
        "group": _group(parent=_text(255, "The parent's external_entity_id.")),
        "nested_group": _group(),
        "model": _object(
            ("slug",),
            slug=_text(257, "{org_prefix}/{name}", _SLUG),
            rate_limits=_list("rate_limit", "At most one per type.", MAX_RATE_LIMITS),
            usage_limits=_list("usage_limit", "At most one per type and unit.", MAX_USAGE_LIMITS),
        ),
        "rate_limit": _limit(tuple(LimitType), RATE_UNITS),
        "usage_limit": _limit(USAGE_TYPES, USAGE_UNITS),
        "spend_limit": _object(
            ("unit", "amount", "currency"),
            unit={"enum": [unit.value for unit in USAGE_UNITS]},
            amount=_AMOUNT,
            currency=_CURRENCY,
            enforcement={"enum": [mode.value for mode in SpendEnforcement], "description": "SOFT by default."},
        ),
        "key": _object(
            (),
            name=_text(255, "The key's name, which is that of no other key of the group in use."),
            prefix=_text(64, "In place of a name.", r"^[A-Za-z0-9_]+$"),
            expires_at=_text(40, "ISO 8601, or never."),
            disabled={"type": "boolean"},
            allowed_ips=_texts("The addresses and networks that may use it, or any alone."),
            slugs=_texts("The group's slugs that it may call, or any alone."),
            rate_limits=_list("rate_limit", "Its own, over all its slugs, at most one per type.", MAX_RATE_LIMITS),
            spend_limits=_list("spend_limit", "What its calls may cost, at most one per unit.", MAX_SPEND_LIMITS),
        ),
        "webhook": _object(
            ("url",),
            url=_text(2048, "Where the events are sent."),
            description={"type": "string", "maxLength": 255, "pattern": _NO_NUL},
            enabled={"type": "boolean", "description": "True by default."},
            include_details={"type": "boolean", "description": "Messages with details and costs. False by default."},
            event_types={
                "type": "array",
                "items": {"enum": [EVENT_TYPE, LIMIT_ALERT]},
                "minItems": 1,
                "uniqueItems": True,
                "description": f"{EVENT_TYPE} by default.",
            },
            group=_text(255, "The external_entity_id of the group that it is told of, with those below it."),
        ),
        "price": _price(),
    },
}
