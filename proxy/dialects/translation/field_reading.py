"""Reads a caller's JSON of unknown form: each function requires a type and names the field.

Pure. Raises `UntranslatableError` with the path of the field, never KeyError or TypeError.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.dialects.upstream_request import UntranslatableError

Json = dict[str, Any]


def require_object(value: object, field: str) -> Json:
    if not isinstance(value, dict):
        raise UntranslatableError(field, "must be an object")
    return value


def require_list(value: object, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise UntranslatableError(field, "must be a list")
    return value


def require_text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise UntranslatableError(field, "must be text")
    return value


def require_json_object(text: str, field: str) -> Json:
    """Parse a JSON object inside a string. A blank string is the empty object."""
    try:
        return require_object(orjson.loads(text) if text.strip() else {}, field)
    except orjson.JSONDecodeError:
        raise UntranslatableError(field, "must be a JSON object in text") from None


def require_known_members(
    given: Json, field: str, known: frozenset[str], neutral: Mapping[str, tuple[object, ...]]
) -> None:
    """Raise for a member that is neither in `known` nor null nor one of the `neutral` values, which request nothing."""
    for name, value in given.items():
        if name not in known and value is not None and value not in neutral.get(name, ()):
            raise UntranslatableError(f"{field}.{name}" if field else name)


def require_choice(value: object, field: str, choices: Mapping[str, str]) -> str:
    """The other dialect's word for `value`, which must be a key of `choices`."""
    found = choices.get(value) if isinstance(value, str) else None
    if found is None:
        raise UntranslatableError(field, f"must be one of {', '.join(choices)}")
    return found
