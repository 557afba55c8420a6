"""Validation against the schemas of an OpenAPI 3.1 document."""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]  # it has no annotations

Json = dict[str, Any]
_NAME = re.compile(r"#/components/schemas/(\w+)")


class Described:
    """A document, and the validators of its schemas. Each is made once: a document has hundreds."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self._validators: dict[str, Any] = {}

    @property
    def operations(self) -> Iterable[Json]:
        return [operation for methods in self.document["paths"].values() for operation in methods.values()]

    def violations(self, schema: Json, value: Any) -> list[str]:
        """The faults of a value by the schema that is referred to. Members that it does not name are some."""
        name = _NAME.fullmatch(schema["$ref"])
        assert name is not None
        validator = self._validators.get(name[1])
        if validator is None:
            validator = self._validators[name[1]] = self._validator(name[1])
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]

    @cached_property
    def _schemas(self) -> Json:
        schemas: Json = closed(self.document["components"]["schemas"])
        return schemas

    def _validator(self, name: str) -> Any:
        """A validator of one schema, with the schemas that it needs and no others."""
        needed = [name]
        for one in needed:
            needed += sorted(set(_NAME.findall(json.dumps(self._schemas[one]))) - set(needed))
        components = {"schemas": {one: self._schemas[one] for one in needed}}
        schema = {"$ref": f"#/components/schemas/{name}", "components": components}
        return Draft202012Validator(schema, format_checker=FormatChecker())


def closed(value: Any) -> Any:
    """The same schemas, whose objects have no member that is not described."""
    if isinstance(value, list):
        return [closed(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {name: closed(item) for name, item in value.items()}
    if value.get("type") == "object" and "properties" in value:
        result.setdefault("additionalProperties", False)
    return result


def shape(value: Any) -> Any:
    """The names of members, without values. Of a list the shape of its first item."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else None
