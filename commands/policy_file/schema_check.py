"""Checks a value against the part of JSON Schema that `schema.py` uses. Problems come with the place and the remedy."""

import re
from dataclasses import dataclass
from typing import Any

from commands.policy_file.schema import SCHEMA, Schema
from commands.policy_file.yaml_text import Place

_KINDS: dict[str, tuple[type, str]] = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, 'text; put a number, true, false or null in quotes ("…")'),
    "integer": (int, "a whole number"),
    "number": (int, "a number"),  # others are text here
    "boolean": (bool, "true or false"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A breach of the schema, and its place."""

    place: Place
    message: str


def problems_of(value: Any) -> list[Problem]:
    """Every problem of a policy file's value, in the file's order where possible."""
    problems: list[Problem] = []
    _check(SCHEMA, value, (), problems)
    return problems


def _check(schema: Schema, value: Any, place: Place, problems: list[Problem]) -> None:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    message = _scalar_problem(schema, value)
    if message is not None:
        problems.append(Problem(place, message))
    elif isinstance(value, dict):
        _check_object(schema, value, place, problems)
    elif isinstance(value, list):
        _check_list(schema, value, place, problems)


def _scalar_problem(schema: Schema, value: Any) -> str | None:
    """Return what is wrong with the value itself, whatever is inside."""
    if "anyOf" in schema:
        problems = [_scalar_problem(choice, value) for choice in schema["anyOf"]]
        return None if None in problems else problems[0]
    if "const" in schema and (value != schema["const"] or isinstance(value, bool)):
        return f"must be {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {', '.join(schema['enum'])}"
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(_is_of(_KINDS[name][0], value) for name in names):
            return f"must be {' or '.join(_KINDS[name][1] for name in reversed(names))}"
    if isinstance(value, str):
        return _text_problem(schema, value)
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"must be from {schema['minimum']} to {schema['maximum']}"
    return None


def _is_of(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _text_problem(schema: Schema, value: str) -> str | None:
    if len(value) < schema.get("minLength", 0):
        return "must not be empty"
    if len(value) > schema.get("maxLength", len(value)):
        return f"must have at most {schema['maxLength']} characters"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return f"must match {schema['pattern']}"
    return None


def _check_object(schema: Schema, value: dict[str, Any], place: Place, problems: list[Problem]) -> None:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        inner = properties.get(name, others if isinstance(others, dict) else None)
        if name not in properties and "properties" in schema and not others:
            problems.append(Problem((*place, name), f"unknown; known are {', '.join(properties)}"))
        elif inner is not None and inner is not False:
            _check(inner, item, (*place, name), problems)
    problems += [Problem(place, f"{name} is missing") for name in schema.get("required", ()) if name not in value]
    for condition in schema.get("allOf", ()):
        provider = condition["if"]["properties"]["provider"]["const"]
        if value.get("provider") == provider:
            _check_provider(condition["then"], value, place, problems)


def _check_provider(then: Schema, value: dict[str, Any], place: Place, problems: list[Problem]) -> None:
    for name in then["required"]:
        if name not in value:
            problems.append(Problem(place, f"{value['provider']} needs {name}"))
    for name in then["properties"]:
        if name in value:
            problems.append(Problem((*place, name), f"{value['provider']} has no field {name}"))


def _check_list(schema: Schema, value: list[Any], place: Place, problems: list[Problem]) -> None:
    if len(value) > schema.get("maxItems", len(value)):
        problems.append(Problem(place, f"must have at most {schema['maxItems']} items"))
        return
    for index, item in enumerate(value):
        _check(schema["items"], item, (*place, index), problems)
