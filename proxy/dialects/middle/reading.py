"""Reads a caller's JSON of unknown form: each function requires a type and names the field.

Pure. Raises `UntranslatableError` with the path of the field, never KeyError or TypeError.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from proxy.errors import UntranslatableError

Json = dict[str, Any]
Value = TypeVar("Value")


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


def require_known_members(
    members: Json, field: str, names: frozenset[str], neutral: Mapping[str, tuple[object, ...]]
) -> None:
    """Raise for a member that is neither in `known` nor null nor one of the `neutral` values, which request nothing."""
    for name, value in members.items():
        if name not in names and value is not None and value not in neutral.get(name, ()):
            raise UntranslatableError(f"{field}.{name}" if field else name)


def require_choice(value: object, field: str, choices: Mapping[str, str]) -> str:
    """Return the other dialect's word for `value`, which must be a key of `choices`."""
    word = choices.get(value) if isinstance(value, str) else None
    if word is None:
        raise UntranslatableError(field, f"must be one of {', '.join(choices)}")
    return word


def require_number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UntranslatableError(field, "must be a number")
    return value


def require_integer(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UntranslatableError(field, "must be an integer")
    return value


def require_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise UntranslatableError(field, "must be true or false")
    return value


def optional(require: Callable[[object, str], Value], container: Json, name: str, field: str) -> Value | None:
    """A member as `require` reads it; None if it is absent or null. `field`: the container's path."""
    value = container.get(name)
    return None if value is None else require(value, f"{field}.{name}" if field else name)


def objects_at(container: Json, name: str, field: str) -> list[tuple[Json, str]]:
    """The objects of a list member, each with its path; empty if the member is absent or null. `field`: its path."""
    entries = container.get(name)
    if entries is None:
        return []
    return [
        (require_object(entry, f"{field}.{n}"), f"{field}.{n}") for n, entry in enumerate(require_list(entries, field))
    ]
