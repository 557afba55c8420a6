"""Adapts JSON schemas to what Messages accepts.

Pure.
"""

from typing import Any

import orjson

from proxy.dialects.upstream_request import UntranslatableError

Json = dict[str, Any]

_SCHEMA = ("items", "not", "if", "then", "else", "contains", "propertyNames", "additionalProperties")
_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""The members of a schema that hold a schema, a list of them, or an object of them."""


def closed_schema(schema: Json, field: str) -> Json:
    """A copy in which objects that do not mention `additionalProperties` allow none.

    Messages requires that of an output's schema. Every output that satisfies the copy satisfies the original.
    """
    try:
        copy: Json = orjson.loads(orjson.dumps(schema))
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
        raise UntranslatableError(field, "nested too deeply to be written anew") from None
    waiting: list[object] = [copy]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            if inner.get("type") == "object" or "properties" in inner:
                inner.setdefault("additionalProperties", False)
            waiting += _schemas_in(inner)
    return copy


def object_schema(schema: Json | None) -> Json:
    """The schema of a function's arguments, which Messages requires, with its type."""
    return {"type": "object"} | schema if schema else {"type": "object", "properties": {}}


def _schemas_in(schema: Json) -> list[object]:
    found: list[object] = [schema.get(name) for name in _SCHEMA]
    for name in _SCHEMAS:
        if isinstance(inner := schema.get(name), list):
            found += inner
    for name in _NAMED_SCHEMAS:
        if isinstance(inner := schema.get(name), dict):
            found += inner.values()
    return found
