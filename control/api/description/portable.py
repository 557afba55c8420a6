"""JSON schemas of pydantic, as generators of clients read them best. What they accept stays the same.

- No `default`: a member of a request that may be left out would be required in TypeScript. The description says it.
- No `title`: names of types come from the schemas and members alone.
- Every number has a `format`: without one, generators for some languages take 32 bits.
"""

import json
from typing import Any

Json = dict[str, Any]
_INT32 = 2**31


def portable(schema: Json) -> Json:
    """The same schema for clients; of what it holds, too."""
    result = {key: _member(key, value) for key, value in schema.items() if key not in ("title", "default")}
    default = schema.get("default")
    if default is not None and default != [] and "const" not in schema:
        sentence = f"Default: `{json.dumps(default)}`."
        result["description"] = " ".join(filter(None, (result.get("description"), sentence)))
    kind = schema.get("type")
    if kind == "number":
        result["format"] = "double"
    if kind == "integer":
        result["format"] = "int32" if _fits(schema) else "int64"
    return result


def _member(key: str, value: Any) -> Any:
    if key in ("properties", "patternProperties", "$defs"):
        return {name: portable(schema) for name, schema in value.items()}
    if key in ("const", "enum", "examples", "example", "required", "discriminator"):
        return value
    if isinstance(value, list):
        return [portable(item) if isinstance(item, dict) else item for item in value]
    return portable(value) if isinstance(value, dict) else value


def _fits(schema: Json) -> bool:
    """Tell whether the bounds leave only numbers of 32 bits."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    return low is not None and high is not None and low >= -_INT32 and high < _INT32
