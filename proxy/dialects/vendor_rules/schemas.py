"""JSON schemas of tools and outputs, as far as vendors that enforce them have rules of their own.

Pure. Linear in the schema, however it is nested.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from proxy.errors import UntranslatableError
from proxy.json_text.exact_numbers import loads_exactly

Json = dict[str, Any]

_SCHEMA = ("items", "not", "if", "then", "else", "contains", "propertyNames", "additionalProperties")
_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""The members of a schema that hold a schema, a list of them, or an object of them."""


def closed_schema(schema: Json, field: str) -> Json:
    """A copy in which objects that do not mention `additionalProperties` allow none.

    Every value that satisfies the copy satisfies the original. Raises `UntranslatableError` for very deep nesting.
    """
    try:
        copy: Json = loads_exactly(orjson.dumps(schema))
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
        raise UntranslatableError(field, "nested too deeply to be written anew") from None
    for inner in _objects_in(copy):
        inner.setdefault("additionalProperties", False)
    return copy


def allows_only_required_members(schema: Json) -> bool:
    """Return whether every object has each of its members, and no other: OpenAI demands it of a strict schema."""
    return all(map(_is_exhaustive, _objects_in(schema)))


def _is_exhaustive(schema: Json) -> bool:
    members = schema.get("properties")
    required = schema.get("required")
    names = set(members) if isinstance(members, dict) else set()
    listed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return schema.get("additionalProperties") is False and names <= listed


def _objects_in(schema: Json) -> Iterator[Json]:
    """Yield the schemas of objects in a schema, itself included."""
    schemas: list[object] = [schema]
    while schemas:
        inner = schemas.pop()
        if isinstance(inner, dict):
            kind = inner.get("type")
            if kind == "object" or "properties" in inner or (isinstance(kind, list) and "object" in kind):
                yield inner
            schemas += _schemas_in(inner)


def _schemas_in(schema: Json) -> list[object]:
    schemas: list[object] = [schema.get(name) for name in _SCHEMA]
    for name in _SCHEMAS:
        if isinstance(inner := schema.get(name), list):
            schemas += inner
    for name in _NAMED_SCHEMAS:
        if isinstance(inner := schema.get(name), dict):
            schemas += inner.values()
    return schemas
