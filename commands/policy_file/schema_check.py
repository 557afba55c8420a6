"""Checks a value against the part of JSON Schema that `schema.py` uses. Problems come with the place and the remedy."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from commands.policy_file.schema import SCHEMA, Schema
from commands.policy_file.yaml_text import Place

_KINDS: dict[str, tuple[type, str]] = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, 'text; put a number, true, false or null in quotes ("…")'),
    "integer": (int, "a whole number"),
    "boolean": (bool, "true or false"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What breaks the schema, and where."""

    place: Place
    message: str


def problems_of(value: Any) -> Iterator[Problem]:
    """Every problem of a policy file's value, in the file's order where possible."""
    return _check(SCHEMA, value, ())


def _check(schema: Schema, value: Any, place: Place) -> Iterator[Problem]:
    if "$ref" in schema:
        yield from _check(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], value, place)
        return
    message = _scalar_problem(schema, value)
    if message is not None:
        yield Problem(place, message)
        return
    if isinstance(value, dict):
        yield from _check_object(schema, value, place)
    if isinstance(value, list):
        yield from _check_list(schema, value, place)


def _scalar_problem(schema: Schema, value: Any) -> str | None:
    """What is wrong with the value itself, whatever is inside."""
    if "const" in schema and (value != schema["const"] or isinstance(value, bool)):
        return f"must be {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {', '.join(schema['enum'])}"
    if "type" in schema:
        kind, wanted = _KINDS[schema["type"]]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            return f"must be {wanted}"
    if isinstance(value, str):
        return _text_problem(schema, value)
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"must be from {schema['minimum']} to {schema['maximum']}"
    return None


def _text_problem(schema: Schema, value: str) -> str | None:
    if len(value) < schema.get("minLength", 0):
        return "must not be empty"
    if len(value) > schema.get("maxLength", len(value)):
        return f"must have at most {schema['maxLength']} characters"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return f"must match {schema['pattern']}"
    return None


def _check_object(schema: Schema, value: dict[str, Any], place: Place) -> Iterator[Problem]:
    known = schema.get("properties", {})
    for name in value:
        if name not in known and "properties" in schema and not schema.get("additionalProperties", True):
            yield Problem((*place, name), f"unknown; known are {', '.join(known)}")
        elif known.get(name) is not None and known[name] is not False:
            yield from _check(known[name], value[name], (*place, name))
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem(place, f"{name} is missing")
    for condition in schema.get("allOf", ()):
        provider = condition["if"]["properties"]["provider"]["const"]
        if value.get("provider") == provider:
            yield from _check_provider(condition["then"], value, place)


def _check_provider(then: Schema, value: dict[str, Any], place: Place) -> Iterator[Problem]:
    for name in then["required"]:
        if name not in value:
            yield Problem(place, f"{value['provider']} needs {name}")
    for name in then["properties"]:
        if name in value:
            yield Problem((*place, name), f"{value['provider']} has no field {name}")


def _check_list(schema: Schema, value: list[Any], place: Place) -> Iterator[Problem]:
    if len(value) > schema.get("maxItems", len(value)):
        yield Problem(place, f"must have at most {schema['maxItems']} items")
        return
    for index, item in enumerate(value):
        yield from _check(schema["items"], item, (*place, index))
