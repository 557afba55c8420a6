"""Reads the members of JSON objects. Each raises KeyError or TypeError with the member's name if its type is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any


def text(wire: Mapping[str, Any], name: str) -> str:
    value = wire[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return value


def optional_text(wire: Mapping[str, Any], name: str) -> str | None:
    return None if wire[name] is None else text(wire, name)


def added_text(wire: Mapping[str, Any], name: str) -> str:
    """A text that older versions do not write; "" without it."""
    return text(wire, name) if name in wire else ""


def added_count(wire: Mapping[str, Any], name: str) -> int | None:
    """A number that older versions do not write, or null; None without it."""
    return None if wire.get(name) is None else count(wire, name)


def added_objects(wire: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Objects that older versions do not write; none without them."""
    return objects(wire, name) if name in wire else ()


def added_members(wire: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """An object that older versions do not write, or null; None without it."""
    return None if wire.get(name) is None else members(wire, name)


def count(wire: Mapping[str, Any], name: str) -> int:
    """A whole number of at least 0."""
    value = wire[name]
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} must be a whole number of at least 0")
    return value


def flag(wire: Mapping[str, Any], name: str) -> bool:
    value = wire[name]
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false")
    return value


def members(wire: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object."""
    value = wire[name]
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object")
    return value


def optional_members(wire: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return None if wire[name] is None else members(wire, name)


def objects(wire: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = wire[name]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TypeError(f"{name} must be an array of objects")
    return value


def added_texts(wire: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Texts that older versions do not write; none without them."""
    return texts(wire, name) if name in wire else ()


def texts(wire: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = wire[name]
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{name} must be an array of texts")
    return tuple(value)
