"""Validation against the schemas of an OpenAPI 3.1 document."""

from collections.abc import Iterable
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Json = dict[str, Any]


def violations(document: Json, schema: Json, value: Any) -> list[str]:
    """What of a value the schema forbids. Its references are into the document."""
    validator = Draft202012Validator(schema | {"components": document["components"]}, format_checker=FormatChecker())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def shape(value: Any) -> Any:
    """The names of members, without values. Of a list the shape of its first item."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else None


def operations(document: Json) -> Iterable[Json]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]
